"""``manage.py poll`` in processes of its own, on a database of its own: a kill is a real kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

from tests.support.databases import copy_database, database_url, make_database, rows

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_SECONDS = 120


class PollWorld:
    """A folder with a migrated database, and the sandbox of the test process."""

    def __init__(self, folder: Path, **environment: str) -> None:
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
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def start_waiting(self, *arguments: str) -> subprocess.Popen[str]:
        """A process that begins when a line is written to it: its id is known before it does anything."""
        command = f'read line && exec "{sys.executable}" manage.py {" ".join(arguments)}'
        return subprocess.Popen(
            ["sh", "-c", command],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

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


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.close()
    process.stdin = None


def migrated_template(folder: Path) -> Path:
    """The folder of a migrated database to copy; migrating takes seconds, copying none."""
    make_database(folder)
    done = PollWorld(folder).run("migrate", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    return folder


def world_from(template: Path, folder: Path, **environment: str) -> PollWorld:
    copy_database(template, folder)
    return PollWorld(folder, **environment)
