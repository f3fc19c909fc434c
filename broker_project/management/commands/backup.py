"""``manage.py backup FILE``: one file with everything that cannot be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django import db
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError

from broker_project.lib.redaction import redact
from broker_project.lib.redis.locks import LockHeld
from broker_project.lib.redis.startup import ensure_redis
from broker_project.ops.backups.archive import BadBackup
from broker_project.ops.backups.backup import make_backup


class Command(BaseCommand):
    help = (
        "Write the database, the secret key, the stored files and Redis' flags and statistics into one file."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="where to; an earlier backup there is replaced")
        parser.add_argument("--without-redis", action="store_true", help="leave out flags and statistics")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["without_redis"]:
                sizes = make_backup(options["file"], with_redis=False)
            else:
                with ensure_redis():
                    sizes = make_backup(options["file"])
        except BadBackup as error:
            raise CommandError(str(error)) from None
        except LockHeld:
            raise CommandError("Another backup is being made.") from None
        except (db.Error, RedisError, OSError) as error:
            raise CommandError(f"The backup could not be made: {redact(str(error), 300)}") from None
        total = sum(sizes.values())
        self.stdout.write(f"{options['file']}: {len(sizes)} parts, {total} bytes before compression.")
        self.stdout.write("It holds the secret key and people's data: keep it where only you can read it.")
