"""What goes wrong with Redis, the database and the disk under them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from random import Random

import psutil
import psycopg

from tests.soak.disk import allow_writing, forbid_writing
from tests.soak.signals import stopped
from tests.soak.site import Site

LOCK_SECONDS = 5.0  # so long somebody tries to get the lock that he then does not give back


def restart_redis(site: Site) -> bool:
    site.redis_server.restart()
    return True


def flush_redis(site: Site) -> bool:
    site.store.flushall()
    return True


@contextmanager
def full_redis(site: Site) -> Iterator[bool]:
    """It reads and answers, and refuses every write."""
    site.store.config_set("maxmemory-policy", "noeviction")
    site.store.config_set("maxmemory", "1")
    try:
        yield True
    finally:
        site.store.config_set("maxmemory", "0")


def restart_database(site: Site) -> bool:
    assert site.postgres is not None
    site.postgres.restart()
    return True


def kill_database(site: Site, random: Random) -> bool:
    """One of its processes, by SIGKILL: the server ends all others and recovers from its log."""
    assert site.postgres is not None
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(site.postgres.process.pid).children()
        if children:
            random.choice(children).kill()
            return True
    return False


def stopped_database(site: Site) -> AbstractContextManager[bool]:
    assert site.postgres is not None
    return stopped(site.postgres.process.pid)


@contextmanager
def locked_database(site: Site) -> Iterator[bool]:
    """Somebody has begun to write and does not end."""
    if site.database_file is None:
        with psycopg.connect(site.database_url) as connection:
            connection.execute(b"LOCK TABLE tasks_assignment, tasks_issue IN ACCESS EXCLUSIVE MODE")
            yield True
            connection.rollback()
        return
    with closing(sqlite3.connect(site.database_file, isolation_level=None, timeout=LOCK_SECONDS)) as file:
        try:
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            yield False
            return
        yield True
        file.execute("ROLLBACK")


@contextmanager
def read_only_database(site: Site) -> Iterator[bool]:
    """Its disk became read-only, or it is the standby after a switch-over."""
    if site.database_file is None:
        set_read_only(site, "on")
        try:
            yield True
        finally:
            set_read_only(site, "off")
        return
    log = site.database_file.with_name(site.database_file.name + "-wal")
    files = [path for path in (site.database_file, log) if path.exists()]
    forbid_writing(files)
    try:
        yield True
    finally:
        allow_writing(files)


def set_read_only(site: Site, switch: str) -> None:
    options = "-c default_transaction_read_only=off"
    with psycopg.connect(site.database_url, autocommit=True, options=options) as connection:
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {switch}".encode())
        connection.execute(b"SELECT pg_reload_conf()")


@contextmanager
def full_disk(site: Site) -> Iterator[bool]:
    """Nothing may grow any more. A database server that ended of it is started again, as by its service manager."""
    assert site.disk is not None
    if site.database_file is not None:
        # The log is emptied first: what has room in it could be written for a long time yet.
        with closing(sqlite3.connect(site.database_file, timeout=LOCK_SECONDS)) as file:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    site.disk.fill()
    try:
        yield True
    finally:
        site.disk.relieve()
        if site.postgres is not None and site.postgres.process.poll() is not None:
            site.postgres.restart()
