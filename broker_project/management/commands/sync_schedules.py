"""``manage.py sync_schedules``: bring django-q2's schedules in line with the table of pollers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from broker_project.ops.clock.schedules import sync_schedules


class Command(BaseCommand):
    help = "Make or update the schedule of every poller. Safe to run at any time."

    def handle(self, *args: Any, **options: Any) -> None:
        for line in sync_schedules():
            self.stdout.write(line)
