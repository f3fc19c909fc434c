"""Run as a process of its own: every poller against far sides that answer with what they were sent."""

from __future__ import annotations

import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
django.setup()

from django.core.management import CommandError, call_command  # noqa: E402


def main(pollers: list[str]) -> None:
    for name in pollers:
        # What an operator would do by hand; a failure is a sentence on his screen.
        try:
            call_command("poll", name, "--force", stdout=sys.stdout, stderr=sys.stderr)
        except CommandError as error:
            print(f"{name} failed: {error}", file=sys.stderr)


if __name__ == "__main__":
    for line in sys.stdin:
        main(line.split())
        print("round done", flush=True)
