"""``manage.py poll`` in processes of its own, on a database file of its own: a kill is a real kill."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_SECONDS = 120


class PollWorld:
    """A folder with a migrated database, and the sandbox of the test process."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.database = folder / "broker.sqlite3"
        self.environment = {
            **os.environ,
            "BROKER_VAR": str(folder),
            "DATABASE_URL": f"sqlite:///{self.database}",
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
        connection = sqlite3.connect(self.database, timeout=20)
        try:
            found = connection.execute(sql, values).fetchall()
            connection.commit()
            return found
        finally:
            connection.close()

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
    """A migrated database file to copy; migrating takes seconds, copying none."""
    world = PollWorld(folder)
    done = world.run("migrate", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    world.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    return world.database


def world_from(template: Path, folder: Path, **environment: str) -> PollWorld:
    shutil.copy(template, folder / "broker.sqlite3")
    return PollWorld(folder, **environment)
