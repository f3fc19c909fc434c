"""The database as one file: dumped while others use it, loaded while nobody does."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from broker_project.lib.redaction import redact
from broker_project.ops.backups.archive import BadBackup

GONE_LOOKS, GONE_SECONDS = 10, 0.3
BUSY_SECONDS = 60.0


def dump_database(target: Path) -> None:
    """A consistent snapshot of the whole database. Raises :class:`BadBackup`."""
    if connection.vendor == "sqlite":
        with closing(open_sqlite(database_path())) as source, closing(open_sqlite(target)) as copy:
            # In one step: a copy in steps starts over whenever somebody writes.
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
        check_sqlite(target)
    else:
        run_tool("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={target}")


def check_dump(dump: Path) -> None:
    if connection.vendor == "sqlite":
        check_sqlite(dump)
    else:
        run_tool("pg_restore", "--list", f"--file={os.devnull}", str(dump), is_connected=False)


def load_database(dump: Path) -> None:
    """Replace all tables and rows: all or nothing where the database can do that."""
    connection.close()
    if connection.vendor == "sqlite":
        # Through SQLite and not by renaming, so that a process with the file open sees the new content.
        with closing(open_sqlite(dump)) as source, closing(open_sqlite(database_path())) as target:
            try:
                source.backup(target)
            except sqlite3.Error as error:
                raise BadBackup(f"The database could not be written: {error}.") from None
        return
    # pg_restore has a transaction of its own. If it fails, the database is empty and the backup still exists.
    drop_tables()
    run_tool(
        "pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", str(dump)
    )


def is_empty() -> bool:
    if connection.vendor == "sqlite" and not database_path().exists():
        return True
    return not table_names()


def connections_of_others() -> int:
    """Connections to this database from any machine, as far as the database can tell.

    Our own pool may hold several, so it is closed first. A closed connection is listed for another moment.
    """
    if connection.vendor == "sqlite":
        return 0
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]
    count = 0
    with psycopg.connect(**connection_parameters(), autocommit=True) as alone:
        for _ in range(GONE_LOOKS):
            found = alone.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchone()
            count = int(found[0]) if found else 0
            if not count:
                break
            time.sleep(GONE_SECONDS)
    return count


def connection_parameters() -> dict[str, Any]:
    """The settings that libpq accepts."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = {key: value for key, value in connection.get_connection_params().items() if key in known}
    given.pop("client_encoding", None)
    return given


def database_path() -> Path:
    return Path(str(connection.settings_dict["NAME"]))


def open_sqlite(path: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, timeout=BUSY_SECONDS)
    except sqlite3.Error as error:
        raise BadBackup(f"{path} cannot be opened: {error}.") from None


def check_sqlite(path: Path) -> None:
    try:
        with closing(open_sqlite(path)) as database:
            verdict = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        verdict = str(error)
    if verdict != "ok":
        raise BadBackup(f"The copy of the database is damaged: {verdict}.")


def table_names() -> list[str]:
    with connection.cursor() as cursor:
        return connection.introspection.table_names(cursor)


def drop_tables() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        for name in table_names():
            cursor.execute(f"DROP TABLE IF EXISTS {connection.ops.quote_name(name)} CASCADE")
    connection.close()


def run_tool(name: str, *arguments: str, is_connected: bool = True) -> None:
    """Run a PostgreSQL program. The password is passed by the environment: command lines are public."""
    program = shutil.which(name)
    if program is None:
        raise BadBackup(
            f"{name} is not on PATH: install PostgreSQL's client programs of the server's version."
        )
    env = dict(os.environ)
    command = [program, *arguments]
    if is_connected:
        given = connection_parameters()
        env["PGPASSWORD"] = str(given.pop("password", "") or "")
        command.append(f"--dbname={make_conninfo(**given)}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise BadBackup(f"{name} failed: {redact(' '.join(lines), 500) or done.returncode}.")
