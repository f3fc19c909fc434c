"""``manage.py poll`` in processes of its own, on a database of its own: a kill is a real kill."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

from tests.support.broker_process import run_manage
from tests.support.databases import database_url, rows
from tests.support.template_database import make_migrated_database
from tests.support.warm_python import start_python

LIMIT_SECONDS = 120
NUMBERS = itertools.count()


class PollWorld:
    """A folder with a migrated database, and the sandbox of the test process."""

    def __init__(self, folder: Path, **environment: str) -> None:
        make_migrated_database(folder)
        self.folder = folder
        self.environment = {
            **os.environ,
            "BROKER_VAR": str(folder),
            "DATABASE_URL": database_url(folder),
            "BROKER_SANDBOX_URL": settings.BROKER.sandbox_url,
            "REDIS_URL": settings.REDIS_URL,
            **environment,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_manage(*arguments, env=self.environment)

    def start_waiting(self, *arguments: str) -> WaitingPoll:
        """A process that begins when it is told to: its id is known before it does anything."""
        return WaitingPoll(self.folder, self.environment, arguments)

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return rows(self.folder, sql, *values)

    def add_items(self, urls: Iterable[str], status: int = 0) -> None:
        moment = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
        for url in urls:
            self.rows(
                "INSERT INTO items (url, title, published_at, status, retry_count, created_at,"
                " last_checked_at) VALUES (?, '題名', ?, ?, 0, ?, ?)",
                *(url, moment, status, moment, moment),
            )


class WaitingPoll:
    """``manage.py`` with these arguments, waiting for a line on its standard input."""

    PROGRAM = """
import runpy, sys
sys.stdin.readline()
sys.argv[0] = "manage.py"
runpy.run_path("manage.py", run_name="__main__")
"""

    def __init__(self, folder: Path, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        self.log = folder / f"poll-{next(NUMBERS)}.log"
        with self.log.open("wb") as log:
            self.process = start_python(
                "-c",
                self.PROGRAM,
                *arguments,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.close()

    def wait(self) -> int:
        """The exit status; negative: the signal."""
        return self.process.wait(LIMIT_SECONDS)
