"""The databases of worlds that run in processes of their own: one for each folder.

They are SQLite files in the folder, or with ``BROKER_TEST_DATABASE=postgres`` databases of the test run's own
PostgreSQL, named after the folder. Whoever has the folder has the database.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import set_json_loads

SERVER = "TEST_POSTGRES_SERVER"  # set by tests/environment.py; a worker of the run finds it there


def is_postgres() -> bool:
    return bool(os.environ.get(SERVER))


def database_file(folder: Path) -> Path:
    return folder / "broker.sqlite3"


def database_name(folder: Path) -> str:
    return "world_" + hashlib.sha256(str(folder).encode()).hexdigest()[:24]


def database_url(folder: Path) -> str:
    if is_postgres():
        return f"{os.environ[SERVER]}/{database_name(folder)}"
    return f"sqlite:///{database_file(folder)}"


def make_database(folder: Path) -> None:
    """An empty one. A SQLite file comes by itself."""
    if is_postgres():
        on_server("CREATE DATABASE {}", database_name(folder))


def copy_database(source: Path, target: Path) -> None:
    """A second one with the same rows; nobody may be connected to the first."""
    if is_postgres():
        on_server("CREATE DATABASE {} TEMPLATE {}", database_name(target), database_name(source))
        return
    # With what is still in its log.
    with (
        closing(sqlite3.connect(database_file(source))) as old,
        closing(sqlite3.connect(database_file(target))) as new,
    ):
        old.backup(new)


def drop_database(folder: Path) -> None:
    """Whoever is still connected is thrown out."""
    if is_postgres():
        on_server("DROP DATABASE IF EXISTS {} WITH (FORCE)", database_name(folder))


def on_server(statement: str, *names: str) -> None:
    """Run a statement about whole databases; ``{}`` stands for a name."""
    with psycopg.connect(f"{os.environ[SERVER]}/postgres", autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def rows(folder: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """What a stranger with SQL sees or changes. ``?`` stands for a value; JSON comes as text."""
    return _execute(folder, statement, values)[1]


def query(folder: Path, statement: str, *values: Any) -> list[dict[str, Any]]:
    """The same by the names of the columns."""
    names, found = _execute(folder, statement, values)
    return [dict(zip(names, row, strict=True)) for row in found]


def _execute(
    folder: Path, statement: str, values: tuple[Any, ...]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    if is_postgres():
        with psycopg.connect(database_url(folder), autocommit=True) as connection:
            set_json_loads(lambda data: data if isinstance(data, str) else bytes(data).decode(), connection)
            cursor = connection.execute(statement.replace("?", "%s"), values or None)
            description = cursor.description or []
            return [column.name for column in description], cursor.fetchall() if description else []
    with closing(sqlite3.connect(database_file(folder), timeout=20)) as database:
        done = database.execute(statement, values)
        found = done.fetchall()
        database.commit()
        return [column[0] for column in done.description or []], found
