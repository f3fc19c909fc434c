"""``manage.py keys``: the table of our Redis keys, and commands to look at, copy, clean and check them.

Keys of others are never touched.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser

from broker_project.lib.redaction import redact
from broker_project.lib.redis.client import keyspace, raw_client
from broker_project.lib.redis.keys import REGISTRY, Life
from broker_project.lib.redis.locks import LockHeld
from broker_project.lib.redis.startup import ensure_redis
from broker_project.ops.backups.archive import BadBackup
from broker_project.ops.backups.keys import backup_keys, restore_keys
from broker_project.ops.redis_console.check import CheckResult, check_keys
from broker_project.ops.redis_console.scanning import (
    BadPattern,
    Walk,
    cleanup_keys,
    explain,
    find_key,
    globs_for,
    look_up,
    printable,
)
from broker_project.ops.redis_console.usage import measure_usage
from broker_project.ops.redis_console.values import view_key

SHOWN_FINDINGS = 100


class Command(BaseCommand):
    help = "List, show, measure, back up, restore, clean and check the keys of this installation in Redis."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(
            dest="action", metavar="ACTION", help="without one the table of all keys is printed"
        )

        def action(name: str, text: str) -> ArgumentParser:
            made: ArgumentParser = actions.add_parser(name, help=text, description=text)
            return made

        pattern_help = "for instance issue:* or poppo:issue:*; all keys if left out"
        listing = action("list", "name the keys with type and seconds to live")
        listing.add_argument("pattern", nargs="?", help=pattern_help)
        listing.add_argument("--limit", type=int, help="stop after so many")
        action("show", "one key: what it is for, and its value").add_argument(
            "key", help="with or without its prefix"
        )
        action("usage", "keys and bytes by component, with the largest key of each")
        backup = action("backup", "copy keys into a file")
        backup.add_argument("file", type=Path)
        backup.add_argument("pattern", nargs="?", help=pattern_help)
        restore = action("restore", "bring the keys of a backup back")
        restore.add_argument("file", type=Path)
        restore.add_argument("--replace", action="store_true", help="overwrite keys that exist")
        action("cleanup", "remove temp:*, session:expired:* and stats:*:old, nothing else")
        check = action("check", "report unknown keys, wrong types, times to live, JSON and sizes")
        check.add_argument("--json", action="store_true", help="for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] is None:
            self.print_table()
            return
        run = getattr(self, f"run_{options['action']}")
        try:
            with ensure_redis():
                run(raw_client(), options)
        except (BadPattern, BadBackup) as error:
            raise CommandError(str(error)) from None
        except LockHeld as error:
            raise CommandError(f"Another backup is running: it holds {error}.") from None
        except redis.exceptions.ReadOnlyError:
            raise CommandError("Redis is read-only: it takes no changes.") from None
        except redis.exceptions.RedisError as error:
            raise CommandError(f"Redis does not answer as it should: {redact(str(error), 300)}") from None
        except BrokenPipeError:
            # `keys list | head` closes the pipe, which is fine.
            sys.stderr.close()
            sys.exit(0)

    def print_table(self) -> None:
        """Every entry, a line each: name, type, seconds to live, who writes it, what for. Redis is not asked."""
        keys = keyspace()
        for spec in REGISTRY.values():
            ttl = spec.ttl if isinstance(spec.ttl, Life) else keys.ttl_seconds(spec)
            name = keys.prefix(spec) + keys.pattern(spec)
            self.stdout.write(f"{name}\t{spec.kind}\t{ttl}\t{spec.writer}\t{spec.purpose}")

    def run_list(self, client: redis.Redis, options: dict[str, Any]) -> None:
        limit = options["limit"]
        if limit is not None and limit < 1:
            raise CommandError("--limit must be 1 or more.")
        shown = 0
        for batch in Walk(client, options["pattern"]):
            for facts in look_up(client, batch):
                ttl = "-" if facts.ttl_seconds is None else str(facts.ttl_seconds)
                self.stdout.write(f"{printable(facts.name)}\t{facts.kind}\t{ttl}")
                shown += 1
                if shown == limit:
                    return
        if not shown:
            self.stderr.write("No key matches.")

    def run_show(self, client: redis.Redis, options: dict[str, Any]) -> None:
        view = view_key(client, find_key(client, options["key"]))
        if view is None:
            raise CommandError("The key has just expired.")
        facts, spec = view.facts, view.spec
        lines = [("key", printable(facts.name)), ("type", facts.kind)]
        lines.append(("expires", "never" if facts.ttl_seconds is None else f"in {facts.ttl_seconds} s"))
        lines.append(("memory", f"{facts.size_bytes} bytes"))
        if spec is None:
            lines.append(("entry", "none: nothing of ours is called so"))
        else:
            lines += [("entry", spec.name), ("for", spec.purpose), ("written by", spec.writer)]
        for title, value in lines:
            self.stdout.write(f"{title:11}{value}")
        for note in view.notes:
            self.stdout.write(str(note))
        if view.text:
            self.stdout.write(view.text)
        for left, right in view.rows:
            self.stdout.write(f"{left}\t{right}" if left else right)

    def run_usage(self, client: redis.Redis, options: dict[str, Any]) -> None:
        usage = measure_usage(client)
        self.stdout.write(f"{'component':34}{'keys':>10}{'bytes':>14}  largest key")
        for row in usage.components:
            largest = f"{row.largest} ({row.largest_bytes})" if row.largest else ""
            self.stdout.write(f"{row.component:34}{row.keys:>10}{row.size_bytes:>14}  {largest}")
        self.stdout.write(f"{'all':34}{usage.keys:>10}{usage.size_bytes:>14}")

    def run_backup(self, client: redis.Redis, options: dict[str, Any]) -> None:
        globs_for(options["pattern"])  # a bad pattern is refused before anything is locked or written
        with ProgressBar(self) as bar:
            count = backup_keys(client, options["file"], options["pattern"], progress=bar.show)
        self.stdout.write(f"{count} keys written to {options['file']}.")

    def run_restore(self, client: redis.Redis, options: dict[str, Any]) -> None:
        with ProgressBar(self) as bar:
            report = restore_keys(client, options["file"], replace=options["replace"], progress=bar.show)
        self.stdout.write(
            f"{report.restored} keys restored, {report.expired} had expired, {report.left_alone} left alone."
        )

    def run_cleanup(self, client: redis.Redis, options: dict[str, Any]) -> None:
        for pattern, count in cleanup_keys(client).items():
            self.stdout.write(f"{pattern}: {count} removed")

    def run_check(self, client: redis.Redis, options: dict[str, Any]) -> None:
        result = check_keys(client)
        if options["json"]:
            self.stdout.write(json.dumps(check_document(result), ensure_ascii=False))
        else:
            for finding in result.findings[:SHOWN_FINDINGS]:
                self.stdout.write(
                    f"{finding.problem}: {printable(finding.key)}: {redact(str(finding.detail), 300)}"
                )
            if result.problems > SHOWN_FINDINGS:
                self.stdout.write(f"… and {result.problems - SHOWN_FINDINGS} more (--json names up to 1000)")
            self.stdout.write(f"{result.checked} keys checked, {result.problems} problems.")
        if result.problems:
            self.stdout.flush()
            sys.exit(1)


def check_document(result: CheckResult) -> dict[str, Any]:
    return {
        "checked": result.checked,
        "problems": result.problems,
        "counts": {str(problem): count for problem, count in result.counts.items()},
        "findings": [
            {
                "problem": str(finding.problem),
                "key": printable(finding.key),
                "entry": getattr(explain(finding.key), "name", None),
                "detail": redact(str(finding.detail), 300),
            }
            for finding in result.findings
        ],
        "findings_left_out": result.problems - len(result.findings),
    }


class ProgressBar:
    """Updated in place on a terminal; elsewhere printed once at the end."""

    WIDTH = 40

    def __init__(self, command: BaseCommand) -> None:
        self.stream = command.stderr
        self.is_terminal = bool(self.stream.isatty())
        self.line = ""

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.line:
            self.stream.write(("\r" if self.is_terminal else "") + self.line)

    def show(self, done: int, total: int) -> None:
        filled = self.WIDTH * done // total if total else self.WIDTH
        self.line = f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] {done}/{total}"
        if self.is_terminal:
            self.stream.write("\r" + self.line, ending="")
            self.stream.flush()
