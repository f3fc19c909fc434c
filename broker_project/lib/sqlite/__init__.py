"""Django's SQLite, with one writer of a process at a time: see :mod:`broker_project.lib.sqlite.base`."""
