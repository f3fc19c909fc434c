"""``python -m bench.work``: a program of :mod:`bench.lines` with Django set up."""

from __future__ import annotations

import os

import django

from bench import lines

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
    django.setup()
    from bench.work import feeds, fixtures, issues

    lines.serve({**issues.COMMANDS, **feeds.COMMANDS, **fixtures.COMMANDS})
