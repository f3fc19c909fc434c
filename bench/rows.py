"""Rows by the hundred thousand, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain, islice
from typing import Any

from django.db import connection, transaction
from django.db.models import AutoField, DateTimeField, DecimalField, JSONField, Model

Values = dict[str, Any]
CHUNK = 5000  # rows in one transaction


def insert_rows(model: type[Model], rows: Iterable[Values]) -> None:
    """By executemany, a chunk at a time: model instances would take minutes. All rows must have the same names."""
    waiting = iter(rows)
    first = next(waiting, None)
    if first is None:
        return
    fields = {
        field.attname: field
        for field in model._meta.concrete_fields
        if field.attname in first or not isinstance(field, AutoField)
    }
    constant = {
        name: field.get_db_prep_save(field.get_default(), connection)
        for name, field in fields.items()
        if name not in first
    }
    # Only these need a conversion. Asking every field about every value would take most of the time.
    adapters = {
        name: partial(field.get_db_prep_save, connection=connection)
        for name, field in fields.items()
        if name in first and isinstance(field, DateTimeField | JSONField | DecimalField)
    }
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(field.column)) for field in fields.values())
    places = ", ".join(["%s"] * len(fields))
    statement = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({places})"
    every = chain([first], waiting)
    while chunk := list(islice(every, CHUNK)):
        for row in chunk:
            for name, adapt in adapters.items():
                row[name] = adapt(row[name])
        whole = ({**constant, **row} for row in chunk)
        adapted = [tuple(row[name] for name in fields) for row in whole]
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.executemany(statement, adapted)
