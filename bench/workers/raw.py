"""The database without Django: the same file with the same durability, for the yardstick of new items."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import connection


def columns_of(row: Any) -> dict[str, Any]:
    """What Django would hand to the driver for this row."""
    return {
        field.column: field.get_db_prep_save(field.pre_save(row, True), connection)
        for field in row._meta.local_concrete_fields
    }


def insert_statement(row: Any, skipped: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The statement, and the columns in the order of its placeholders."""
    names = [name for name in columns_of(row) if name not in skipped]
    marks = ", ".join("?" for _ in names)
    return f"INSERT INTO {row._meta.db_table} ({', '.join(names)}) VALUES ({marks})", names


def open_database() -> sqlite3.Connection:
    """The caller closes it and handles transactions."""
    connection.close()
    raw = sqlite3.connect(settings.DATABASES["default"]["NAME"], timeout=20, isolation_level=None)
    raw.executescript(settings.DATABASES["default"]["OPTIONS"]["init_command"])
    return raw
