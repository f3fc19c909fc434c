"""Rows by statements that are written once, for the few paths where writing SQL costs more than running it.

Tables, columns and conversions are the models' own, and so is the transaction. There are no signals, no ``auto_now``
and no conditions but equality: whoever needs those uses the ORM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import NoneType
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Field, JSONField, Model
from django.db.models.expressions import Col

M = TypeVar("M", bound=Model)
AnyField = Field[Any, Any]
PLAIN = (str, int, NoneType)


def _connection() -> BaseDatabaseWrapper:
    """This thread's own: Django's stand-in for it looks it up again for each attribute."""
    return connections[DEFAULT_DB_ALIAS]


def fetch_rows(model: type[M], values: Sequence[Any], column: str, **equal: Any) -> list[M]:
    """The rows that have one of the values in ``column``, and these values in others; in no order."""
    connection = _connection()
    statement, names, conditions, among, converted = _select(
        model, tuple(equal), column, len(values), connection.vendor
    )
    wanted = [_prepared(among, value, connection) for value in values]
    with connection.cursor() as cursor:
        cursor.execute(statement, _conditions(conditions, equal, connection) + wanted)
        found = cursor.fetchall()
    columns = (
        [(place, column, _converters(column, connection)) for place, column in converted] if found else []
    )
    rows = [list(row) for row in found]
    for row in rows:
        for place, converted_column, converters in columns:
            for convert in converters:
                row[place] = convert(row[place], converted_column, connection)
    return [model.from_db(connection.alias, names, row) for row in rows]


def insert_rows(instances: Sequence[Model]) -> None:
    """Write new rows of one model; the instances get their keys. Raises IntegrityError, for all of them."""
    connection = _connection()
    statement, fields = _insert(type(instances[0]), len(instances))
    values = [
        _prepared(field, getattr(instance, field.attname), connection)
        for instance in instances
        for field in fields
    ]
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        keys = cursor.fetchall()
    for instance, (key,) in zip(instances, keys, strict=True):
        instance.pk = key
        instance._state.adding, instance._state.db = False, connection.alias


def update_rows(model: type[Model], changes: Mapping[str, Any], **equal: Any) -> int:
    """Change the rows with these values; says how many there were."""
    connection = _connection()
    statement, changed, conditions = _update(model, tuple(changes), tuple(equal))
    values = [_prepared(field, changes[field.attname], connection) for field in changed]
    with connection.cursor() as cursor:
        cursor.execute(statement, values + _conditions(conditions, equal, connection))
        return int(cursor.rowcount)


def _prepared(field: AnyField, value: Any, connection: BaseDatabaseWrapper) -> Any:
    # A text or number goes as it is, but for the columns that would make JSON of it.
    if isinstance(value, PLAIN) and not isinstance(field, JSONField):
        return value
    if isinstance(value, datetime) and isinstance(field, DateTimeField):
        return connection.ops.adapt_datetimefield_value(value)
    return field.get_db_prep_save(value, connection)


def _conditions(
    fields: Iterable[AnyField], equal: Mapping[str, Any], connection: BaseDatabaseWrapper
) -> list[Any]:
    return [_prepared(field, equal[field.attname], connection) for field in fields]


def _converters(column: Col, connection: BaseDatabaseWrapper) -> list[Any]:
    found = connection.ops.get_db_converters(column)
    return [*found, *column.output_field.get_db_converters(connection)]


def _fields(model: type[Model], names: Iterable[str]) -> tuple[AnyField, ...]:
    by_name = {field.attname: field for field in model._meta.concrete_fields}
    return tuple(by_name[name] for name in names)


# The statements. Names are quoted alike on all of Django's databases that we serve; what is converted differs.


def _quoted(name: str | None) -> str:
    assert name is not None  # no column of ours is without one
    return str(_connection().ops.quote_name(name))


def _columns(fields: Iterable[AnyField]) -> list[str]:
    return [_quoted(field.column) for field in fields]


def _equal(fields: Iterable[AnyField]) -> list[str]:
    return [f"{name} = %s" for name in _columns(fields)]


def _marks(number: int) -> str:
    return ", ".join(["%s"] * number)


@lru_cache(maxsize=64)
def _select(
    model: type[Model], equal: tuple[str, ...], column: str, number: int, vendor: str
) -> tuple[str, list[str], tuple[AnyField, ...], AnyField, list[tuple[int, Col]]]:
    fields, conditions, (among,) = (
        model._meta.concrete_fields,
        _fields(model, equal),
        _fields(model, [column]),
    )
    columns = [Col(model._meta.db_table, field) for field in fields]
    converted = [(place, col) for place, col in enumerate(columns) if _converters(col, _connection())]
    where = " AND ".join([*_equal(conditions), f"{_quoted(among.column)} IN ({_marks(number)})"])
    statement = f"SELECT {', '.join(_columns(fields))} FROM {_quoted(model._meta.db_table)} WHERE {where}"  # noqa: S608 - names of our own models
    return statement, [field.attname for field in fields], conditions, among, converted


@lru_cache(maxsize=64)
def _insert(model: type[Model], number: int) -> tuple[str, tuple[AnyField, ...]]:
    fields = tuple(field for field in model._meta.concrete_fields if not field.primary_key)
    names, rows = ", ".join(_columns(fields)), ", ".join([f"({_marks(len(fields))})"] * number)
    table, key = _quoted(model._meta.db_table), _quoted(model._meta.pk.column)
    return f"INSERT INTO {table} ({names}) VALUES {rows} RETURNING {key}", fields  # noqa: S608


@lru_cache(maxsize=64)
def _update(
    model: type[Model], changes: tuple[str, ...], equal: tuple[str, ...]
) -> tuple[str, tuple[AnyField, ...], tuple[AnyField, ...]]:
    changed, conditions = _fields(model, changes), _fields(model, equal)
    settings, where = ", ".join(_equal(changed)), " AND ".join(_equal(conditions))
    return f"UPDATE {_quoted(model._meta.db_table)} SET {settings} WHERE {where}", changed, conditions  # noqa: S608
