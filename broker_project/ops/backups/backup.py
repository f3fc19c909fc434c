"""What goes into a backup: the database, the key that its hashes and signatures need, the stored files, and those
keys of Redis that are made nowhere else (flags, settings, statistics). Everything else in Redis is rebuilt.
"""

from __future__ import annotations

import hmac
import shutil
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from broker_project.lib.redis.client import raw_client
from broker_project.ops.backups import archive as parts
from broker_project.ops.backups.archive import BadBackup, Heading, check_target, work_folder, write_archive
from broker_project.ops.backups.databases import dump_database, is_empty
from broker_project.ops.backups.keys import write_keys

KEPT_COMPONENTS = ("flags", "config", "stats")


def make_backup(path: Path, *, with_redis: bool = True) -> dict[str, int]:
    """Write the archive while everything runs; the size of each part. Raises :class:`BadBackup`."""
    check_target(path, with_database=True)
    if is_empty():
        raise BadBackup("DATABASE_URL: there are no tables in the database, so there is nothing to back up.")
    with work_folder() as folder:
        files = {parts.DATABASE: folder / "database"}
        dump_database(files[parts.DATABASE])
        if with_redis:
            files[parts.KEYS] = folder / "keys"
            write_keys(raw_client(), files[parts.KEYS], name="archive", components=KEPT_COMPONENTS)
        for name in (parts.SECRET_KEY, parts.ADMIN_PASSWORD):
            found = settings.BROKER.var / name
            # A key from the environment stays there; a file would be another key that is not in use.
            if found.is_file() and not (name == parts.SECRET_KEY and settings.BROKER.secret_key_is_given):
                files[name] = Path(shutil.copyfile(found, folder / name))
        files |= stored_files(folder)
        write_archive(path, heading(), files)
        return {name: file.stat().st_size for name, file in files.items()}


def heading() -> Heading:
    applied = MigrationRecorder(connection).applied_migrations()
    names = tuple(sorted(f"{app}.{name}" for app, name in applied))
    moment = timezone.now().isoformat(timespec="seconds")
    return Heading(moment, connection.vendor, names, key_mark(settings.SECRET_KEY))


def key_mark(key: str) -> str:
    """Tells whether two keys are the same, without revealing them."""
    return hmac.digest(key.encode(), b"broker-backup", "sha256").hex()[:32]


def stored_files(folder: Path) -> dict[str, Path]:
    """Copies of the files under ``var/gcs/``: the originals may change before they are packed."""
    root = settings.BROKER.var / parts.STORED
    found = {}
    for number, path in enumerate(sorted(root.rglob("*"))):
        name = f"{parts.STORED}/{path.relative_to(root).as_posix()}"
        if path.is_file() and not path.is_symlink() and parts.is_name(name):
            found[name] = Path(shutil.copyfile(path, folder / f"stored-{number}"))
    return found
