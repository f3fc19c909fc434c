"""``python -m bench.workers``: a program of :mod:`bench.json_lines` with Django set up."""

from __future__ import annotations

import os

import django

from bench import json_lines

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
    django.setup()
    from bench.workers import feeds, fixtures, issues

    json_lines.serve({**issues.COMMANDS, **feeds.COMMANDS, **fixtures.COMMANDS})
