"""Restore a backup of everything. All of it is checked before anything is changed."""

from __future__ import annotations

import os
import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from broker_project.lib.migrations import unknown_migrations
from broker_project.lib.redis.client import raw_client
from broker_project.lib.var_folder_lock import is_var_folder_held
from broker_project.ops.backups import archive as parts
from broker_project.ops.backups.archive import BadBackup, Heading, read_heading, unpack, work_folder
from broker_project.ops.backups.backup import key_mark
from broker_project.ops.backups.databases import check_dump, connections_of_others, is_empty, load_database
from broker_project.ops.backups.keys import put_keys, read_keys
from broker_project.ops.redis_console.scanning import Walk


@dataclass(frozen=True)
class Restored:
    heading: Heading
    files: int
    keys: int
    pending_migrations: int


def restore(path: Path, *, force: bool = False) -> Restored:
    """Replace what is here by a backup. Raises :class:`BadBackup`; then nothing has changed, unless the database
    itself failed while it was written."""
    check_heading(path, read_heading(path), force)
    with work_folder() as folder:
        heading, files = unpack(path, folder)
        check_heading(path, heading, force)
        if parts.DATABASE not in files:
            raise BadBackup(f"{path} holds no database.")
        check_dump(files[parts.DATABASE])
        if parts.KEYS in files:
            deque(read_keys(files[parts.KEYS], path), maxlen=0)  # raises where it is damaged
        check_here(force)
        load_database(files[parts.DATABASE])
        stored = put_files(files, force)
        keys = replace_keys(files.get(parts.KEYS), path)
    executor = MigrationExecutor(connection)
    pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return Restored(heading, stored, keys, len(pending))


def check_heading(path: Path, heading: Heading, force: bool) -> None:
    if not heading.database:
        raise BadBackup(f"{path} holds keys of Redis alone, for `manage.py keys restore`.")
    if heading.database != connection.vendor:
        raise BadBackup(
            f"DATABASE_URL: {path} is of a {heading.database} database, and this one is {connection.vendor}."
        )
    applied = [(app, name) for app, _, name in (entry.partition(".") for entry in heading.migrations)]
    newer = unknown_migrations(applied, MigrationLoader(None))
    if newer:
        raise BadBackup(f"{path} was made by a newer version of Broker ({newer[0]}).")
    is_given = settings.BROKER.secret_key_is_given
    if is_given and heading.key != key_mark(settings.SECRET_KEY) and not force:
        raise BadBackup(
            "DJANGO_SECRET_KEY is not the one of the backup: no agent's token and no log-in would be good any more. "
            "Set it to the same value, or add --force and make new tokens."
        )


def check_here(force: bool) -> None:
    if is_var_folder_held(settings.BROKER.var) or connections_of_others():
        raise BadBackup(
            "Broker is running, or somebody else uses its database: stop Broker first, all of its parts."
        )
    if not force and not is_empty():
        raise BadBackup("DATABASE_URL: the database is not empty; --force replaces everything in it.")
    if (
        not force
        and (parts_here := settings.BROKER.var / parts.STORED).is_dir()
        and any(parts_here.iterdir())
    ):
        raise BadBackup(f"{parts_here} is not empty; --force replaces everything in it.")


def put_files(files: dict[str, Path], force: bool) -> int:
    """The secret key, the sandbox's password and the stored files; how many of the last."""
    var: Path = settings.BROKER.var
    if settings.BROKER.secret_key_is_given:
        files = {name: file for name, file in files.items() if name != parts.SECRET_KEY}
    for name in (parts.SECRET_KEY, parts.ADMIN_PASSWORD):
        if name in files:
            os.replace(files[name], var / name)
    stored = {name: file for name, file in files.items() if name.startswith(f"{parts.STORED}/")}
    if force:
        shutil.rmtree(var / parts.STORED, ignore_errors=True)
    for name, file in stored.items():
        (var / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, var / name)
    return len(stored)


def replace_keys(part: Path | None, shown: Path) -> int:
    """Remove every key, since they describe the state before, then put back those of the backup."""
    client = raw_client()
    for batch in Walk(client):
        client.unlink(*batch)
    if part is None:
        return 0
    try:
        return put_keys(client, part, shown).restored
    except BadBackup as error:
        raise BadBackup(f"The keys of Redis were not restored: {error}") from None
