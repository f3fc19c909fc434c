#!/usr/bin/env python
"""Django's command line for Broker."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed here: run `make run` once, or use .venv/bin/python.")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
