"""``manage.py poll NAME``: run one poller once, in the foreground, and print its counts."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from broker_project.lib.redis.startup import ensure_redis
from broker_project.models import PollerRun
from broker_project.ops.clock.pollers import PollOptions, poller_table, run_poller


def parse_date(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a date: write YYYY-MM-DD") from None


class Command(BaseCommand):
    help = "Run one poller once in the foreground and print its counts."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", help="one of the names that --list prints")
        parser.add_argument("--list", action="store_true", help="name the pollers with their schedules")
        parser.add_argument(
            "--force", action="store_true", help="even if not due, paused or under maintenance"
        )
        parser.add_argument("--all", action="store_true", help="items: go on until nothing is due")
        parser.add_argument("--date", type=parse_date, help="fixtures: another day, YYYY-MM-DD")
        parser.add_argument("--dry-run", action="store_true", help="fixtures: say what would be done")
        parser.add_argument("--debug", action="store_true", help="fixtures: leave the status table alone")

    def handle(self, *args: Any, **options: Any) -> None:
        # The table reads intervals from Redis that were changed there.
        with ensure_redis():
            self.poll(options)

    def poll(self, options: dict[str, Any]) -> None:
        table = poller_table()
        if options["list"]:
            for spec in table.values():
                self.stdout.write(f"{spec.name:10} {spec.schedule:28} {spec.purpose}")
            return
        name = options["name"]
        if name not in table:
            known = ", ".join(table)
            raise CommandError(
                f"There is no poller {name!r}; these are: {known}." if name else f"Name one of: {known}."
            )
        given = PollOptions(
            force=options["force"],
            all=options["all"],
            dry_run=options["dry_run"],
            debug=options["debug"],
            date=options["date"],
            by="command line",
            report=lambda text: self.stderr.write(text),
        )
        result = run_poller(name, given)
        if result.outcome is PollerRun.Outcome.FAILED:
            raise CommandError(f"{name}: {result.message}")
        if result.message:
            self.stdout.write(result.message)
        else:
            counts = " ".join(f"{key}={value}" for key, value in result.counts.items())
            self.stdout.write(f"{name}: {counts or 'nothing to do'}")
