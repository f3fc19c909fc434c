"""What must be true before anything is started. Each failure is one sentence; nothing is left half done."""

from __future__ import annotations

import errno
import secrets
import socket
from pathlib import Path

from django import db
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction
from django.db.migrations.exceptions import (
    BadMigrationError,
    CircularDependencyError,
    InconsistentMigrationHistory,
    NodeNotFoundError,
)
from django.db.migrations.executor import MigrationExecutor
from django_q.tasks import async_task

from broker_project.lib.config.loader import Config
from broker_project.lib.config.outside import Source
from broker_project.lib.files import write_whole
from broker_project.lib.migrations import unknown_migrations
from broker_project.lib.redaction import redact
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.locks import LockHeld, awaited_lock, new_owner
from broker_project.models import PollerRun
from broker_project.ops.clock.cluster import FIRST_ROUND
from broker_project.ops.supervisor.terminal import Terminal

MIGRATION_LOCK_SECONDS = 30.0
MIGRATION_WAIT_SECONDS = 300.0
ADMIN_NAME = "admin"
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised here, not bound


class CannotStart(Exception):
    """The text is one sentence for the operator."""


def first_line(error: Exception) -> str:
    text = redact(str(error)).strip() or type(error).__name__
    return " ".join(text.split())[:300].rstrip(".")


def open_listener(host: str, port: int) -> socket.socket:
    """The listening socket, opened before anything else is done, so that the port is ours."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise CannotStart(f"HOST={host} is not an address of this machine.") from None
    # A name with both kinds of address is served on IPv4, which most programs try.
    family, _, _, _, address = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0]
    try:
        return socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        raise CannotStart(explain_bind(error, host, port)) from None


def url_of(listener: socket.socket) -> str:
    """An address under which this machine reaches its own listener."""
    host = str(listener.getsockname()[0])
    host = ANYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def explain_bind(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"PORT {port} on {host} is already in use: stop what listens there or choose another with PORT=…."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"PORT {port} may not be opened by this user: choose one above 1023 with PORT=…."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"HOST={host} is not an address of this machine."
    return f"HOST={host}, PORT={port} cannot be listened on: {error.strerror}."


def check_database() -> None:
    """It answers, lets us in and is new enough. Asked without the pool, which would keep retrying."""
    try:
        if connection.vendor == "postgresql":
            parameters = {"connect_timeout": 5, **connection.get_connection_params()}
            with db.utils.DatabaseErrorWrapper(connection):
                connection.Database.connect(**parameters).close()  # type: ignore[attr-defined]
        connection.ensure_connection()
        connection.check_database_version_supported()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except db.NotSupportedError as error:
        raise CannotStart(f"DATABASE_URL: the database is too old: {first_line(error)}.") from None
    except db.Error as error:
        raise CannotStart(f"DATABASE_URL: the database cannot be used: {first_line(error)}.") from None


def prepare_database(terminal: Terminal) -> None:
    """Bring the tables up to date: all migrations or none of them. Several machines may do this at once."""
    if not pending_migrations():
        return
    terminal.say("preparing the database")
    key = keyspace().key(k.LOCK_PROCESS, name="migration")
    try:
        with awaited_lock(
            redis_client(), key, new_owner("migration"), MIGRATION_LOCK_SECONDS, MIGRATION_WAIT_SECONDS
        ):
            if pending_migrations():
                migrate()
    except LockHeld:
        raise CannotStart("another process has been migrating the database for too long.") from None


def pending_migrations() -> list[str]:
    """The migrations to apply. Tables that are newer than this code, or half migrated, are refused."""
    try:
        executor = MigrationExecutor(connection)
        executor.loader.check_consistent_history(connection)
        applied = executor.loader.applied_migrations
        newer = unknown_migrations(applied, executor.loader)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except InconsistentMigrationHistory as error:
        raise CannotStart(f"DATABASE_URL: the tables are half migrated: {first_line(error)}.") from None
    except (BadMigrationError, CircularDependencyError, NodeNotFoundError) as error:
        raise CannotStart(
            f"the migrations of this version do not fit together: {first_line(error)}."
        ) from None
    except db.Error as error:
        raise CannotStart(f"DATABASE_URL: the database cannot be used: {first_line(error)}.") from None
    if newer:
        raise CannotStart(f"DATABASE_URL: the tables were made by a newer version of Broker ({newer[0]}).")
    return [str(migration) for migration, _ in plan]


def migrate() -> None:
    """In one transaction: a failure leaves the tables as they were."""
    # SQLite rebuilds tables and wants foreign keys unchecked meanwhile, which cannot be set inside a transaction.
    connection.disable_constraint_checking()
    try:
        with transaction.atomic():
            call_command("migrate", interactive=False, verbosity=0)
    except db.Error as error:
        raise CannotStart(
            f"DATABASE_URL: the database could not be migrated and was left as it was: {first_line(error)}."
        ) from None
    finally:
        if connection.connection is not None and not connection.needs_rollback:
            connection.enable_constraint_checking()
        connection.close()


def queue_first_round() -> None:
    """On a new database let the pollers run now, not at their next scheduled time."""
    if PollerRun.objects.exists():
        return
    for names in first_round(settings.BROKER):
        async_task(FIRST_ROUND, names, save=False)


def first_round(config: Config) -> list[list[str]]:
    """Groups that run in parallel, each in order. Only stand-ins are sent all items of a feed at once."""
    items = ["items"] if config.mastodon.source is not Source.REAL else []
    return [["issues"], ["feeds", *items], ["fixtures"]]


def admin_log_in(var: Path) -> str:
    """A sentence about logging in. In the sandbox the account is made on the first start."""
    if not settings.BROKER.sandbox:
        return "make one with: .venv/bin/python manage.py createsuperuser"
    users = get_user_model()._default_manager
    path = var / "admin_password"
    user = users.filter(username=ADMIN_NAME).first()
    if user is None:
        if users.filter(is_superuser=True).exists():
            return "as you made it"
        password = secrets.token_urlsafe(12)
        # The file first: an account whose password nobody can look up would lock everybody out.
        write_whole(path, f"{password}\n")
        users.create_superuser(username=ADMIN_NAME, email="", password=password)
        return f"{ADMIN_NAME} / {password}   (kept in {path})"
    known = path.read_text().strip() if path.exists() else ""
    if known and user.check_password(known):
        return f"{ADMIN_NAME} / {known}   (kept in {path})"
    return f"{ADMIN_NAME}, with the password that you chose"
