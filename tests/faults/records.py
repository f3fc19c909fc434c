"""What a stranger with SQL sees: the same few lines for SQLite, PostgreSQL and a configured Django."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

Rows = list[tuple[Any, ...]]
Select = Callable[[str, Sequence[Any]], Rows]


class Records:
    """``rows(sql, *values)`` with ``?`` for values; writes are committed at once."""

    def __init__(self, select: Select, *, is_postgres: bool) -> None:
        self._select = select
        self.is_postgres = is_postgres

    @classmethod
    def at(cls, database_url: str) -> Records:
        """A new connection for each question: none is in the way of a restart or a lock."""
        if database_url.startswith("postgres"):
            return cls(lambda sql, values: _ask_postgres(database_url, sql, values), is_postgres=True)
        path = database_url.removeprefix("sqlite:///")
        return cls(lambda sql, values: _ask_sqlite(path, sql, values), is_postgres=False)

    @classmethod
    def of_django(cls) -> Records:
        """The configured database of this process."""
        from django.db import connection

        def select(sql: str, values: Sequence[Any]) -> Rows:
            with connection.cursor() as cursor:
                cursor.execute(sql.replace("?", "%s"), list(values))
                return list(cursor.fetchall()) if cursor.description else []

        return cls(select, is_postgres=connection.vendor == "postgresql")

    def rows(self, sql: str, *values: Any) -> Rows:
        return self._select(sql, values)

    def value(self, sql: str, *values: Any) -> Any:
        (row,) = self._select(sql, values)
        return row[0]

    def shift(self, table: str, column: str, seconds: float) -> None:
        """Move a column of times into the past."""
        if self.is_postgres:
            change = f"{column} - interval '{seconds} seconds'"
        else:
            change = f"strftime('%Y-%m-%d %H:%M:%f', {column}, '-{seconds} seconds')"
        self.rows(f"UPDATE {table} SET {column} = {change} WHERE {column} IS NOT NULL")


def moment(value: Any) -> datetime | None:
    """A time as either database gives it."""
    if value is None:
        return None
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _ask_sqlite(path: str, sql: str, values: Sequence[Any]) -> Rows:
    connection = sqlite3.connect(path, timeout=20)
    try:
        found = connection.execute(sql, list(values)).fetchall()
        connection.commit()
        return found
    finally:
        connection.close()


def _ask_postgres(url: str, sql: str, values: Sequence[Any]) -> Rows:
    import psycopg

    with psycopg.connect(url, connect_timeout=10) as connection:
        cursor = connection.execute(sql.replace("?", "%s").encode(), list(values))
        return list(cursor.fetchall()) if cursor.description else []
