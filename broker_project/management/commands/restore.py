"""``manage.py restore FILE``: put a backup in the place of what is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django import db
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from broker_project.lib.redaction import redact
from broker_project.lib.redis.startup import ensure_redis
from broker_project.ops.backups.archive import BadBackup
from broker_project.ops.backups.restore import restore


class Command(BaseCommand):
    help = "Restore what `backup` wrote. Stop Broker first. A database that is not empty is refused without --force."
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--force", action="store_true", help="replace a database that is not empty")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with ensure_redis():
                done = restore(options["file"], force=options["force"])
        except BadBackup as error:
            raise CommandError(str(error)) from None
        except (db.Error, RedisError, OSError) as error:
            raise CommandError(f"The backup could not be restored: {redact(str(error), 300)}") from None
        self.stdout.write(
            f"Restored the backup of {done.heading.made_at}: the database, {done.files} stored files, "
            f"{done.keys} keys of Redis."
        )
        if done.pending_migrations:
            self.stdout.write(
                f"It is of an older version: run `manage.py migrate` ({done.pending_migrations} steps)."
            )
