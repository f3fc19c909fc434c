"""Migrated databases to copy: migrating takes seconds, copying milliseconds.

The SQLite file is kept between runs under a name that changes with the product's source. The PostgreSQL template lives
as long as the server of the run. Whichever process needs one first makes it; the others wait for the lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.db import connection
from psycopg import sql

from broker_project.lib.config.loader import BASE_DIR
from tests.support.databases import SERVER, database_file, database_name, is_postgres, on_server

KEPT = BASE_DIR / ".pytest_cache" / "databases"
POSTGRES_TEMPLATE = "migrated"
POSTGRES_LOCK = 5016  # any number: nobody else takes advisory locks in the database `postgres`
# Models and what is done after a migration decide about rows as well (content types, permissions, groups).
SOURCES = ("broker_project", "tasks", "feeds", "fixtures")


@cache
def source_key() -> str:
    """Changes with every file that can have a say in what a migrated database holds."""
    digest = hashlib.sha256((BASE_DIR / "requirements.txt").read_bytes())
    for path in sorted(path for package in SOURCES for path in (BASE_DIR / package).rglob("*.py")):
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def migrated_file() -> Path:
    """A SQLite file in which nothing but the migrations has been done. Not to be opened for writing."""
    KEPT.mkdir(parents=True, exist_ok=True)
    template = KEPT / f"{source_key()}.sqlite3"
    with _only_one_process(KEPT / "lock"):
        if not template.exists():
            for old in KEPT.glob("*.sqlite3*"):
                old.unlink()
            making = template.with_suffix(".sqlite3.new")
            _migrate(f"sqlite:///{making}")
            with closing(sqlite3.connect(making)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            making.rename(template)
    return template


def migrated_postgres() -> str:
    """The name of the template on the server of this run."""
    with psycopg.connect(f"{os.environ[SERVER]}/postgres", autocommit=True) as server:
        server.execute("SELECT pg_advisory_lock(%s)", [POSTGRES_LOCK])  # until the connection ends
        found = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [POSTGRES_TEMPLATE]).fetchone()
        if not found:
            making = f"{POSTGRES_TEMPLATE}_new"
            on_server("CREATE DATABASE {}", making)
            _migrate(f"{os.environ[SERVER]}/{making}")
            on_server("ALTER DATABASE {} RENAME TO {}", making, POSTGRES_TEMPLATE)
    return POSTGRES_TEMPLATE


def make_migrated_database(folder: Path) -> None:
    """The database of a world in processes of its own; see ``databases``."""
    if is_postgres():
        on_server("CREATE DATABASE {} TEMPLATE {}", database_name(folder), migrated_postgres())
    else:
        shutil.copyfile(migrated_file(), database_file(folder))


def _migrate(url: str) -> None:
    """In a process of its own: the connection of this one is to another database."""
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=BASE_DIR,
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def disconnect() -> None:
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]


@contextmanager
def _only_one_process(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class FileDatabase:
    """A copy of the SQLite template, and the way back to it after a test that committed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.template = migrated_file()
        shutil.copyfile(self.template, name)

    def restore(self) -> None:
        """Page by page into the file that is there: connections of other threads stay good."""
        with (
            closing(sqlite3.connect(f"file:{self.template}?mode=ro&immutable=1", uri=True)) as source,
            closing(sqlite3.connect(self.name, timeout=20)) as target,
        ):
            source.backup(target)


class PostgresDatabase:
    """A copy of the PostgreSQL template. Its rows are kept a second time, in a schema of their own.

    Truncating all tables takes 50 ms; only those that changed are restored. Sequences go on, as after a rollback.
    """

    def __init__(self, name: str) -> None:
        on_server("CREATE DATABASE {} TEMPLATE {}", name, migrated_postgres())
        with psycopg.connect(f"{os.environ[SERVER]}/{name}", autocommit=True) as database:
            database.execute("CREATE SCHEMA template")
            tables = database.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
            steps = [self._step(database, sql.Identifier(table)) for (table,) in tables]
            database.execute(
                sql.SQL(
                    "CREATE FUNCTION template.restore() RETURNS void LANGUAGE plpgsql"
                    # No foreign keys: the order of the tables does not matter.
                    " SET session_replication_role = replica AS $$ BEGIN {} END $$"
                ).format(sql.SQL(" ").join(steps))
            )

    def _step(self, database: psycopg.Connection[Any], table: sql.Identifier) -> sql.Composable:
        """What brings one table back. Most are empty in the template."""
        kept = database.execute(
            sql.SQL("CREATE TABLE template.{0} AS TABLE public.{0}").format(table)
        ).rowcount
        if not kept:
            return sql.SQL("DELETE FROM public.{};").format(table)
        return sql.SQL(
            "IF EXISTS (TABLE public.{0} EXCEPT TABLE template.{0})"
            " OR (SELECT count(*) FROM public.{0}) <> {1} THEN DELETE FROM public.{0};"
            " INSERT INTO public.{0} OVERRIDING SYSTEM VALUE TABLE template.{0}; END IF;"
        ).format(table, sql.Literal(kept))

    def restore(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT template.restore()")


def use_copy_of_template() -> FileDatabase | PostgresDatabase:
    """From here on Django's connection is to a copy of the template."""
    name = str(connection.settings_dict["TEST"]["NAME"] or f"test_{connection.settings_dict['NAME']}")
    made = PostgresDatabase(name) if is_postgres() else FileDatabase(name)
    disconnect()
    connection.settings_dict["NAME"] = settings.DATABASES["default"]["NAME"] = name
    return made
