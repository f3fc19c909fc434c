"""``manage.py create_agent NAME [--role R …]``: make an agent and print its token once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from tasks.services.agents import BadAgent, create_agent


class Command(BaseCommand):
    help = "Make an agent and print its token, which is shown only this once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--role", action="append", default=[], dest="roles", help="repeat for several")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            _agent, token = create_agent(options["name"], options["roles"], timezone.now())
        except BadAgent as error:
            raise CommandError(str(error)) from None
        self.stdout.write(token)
        self.stderr.write("This token is not kept: note it now. The agent sends it as a bearer token.")
