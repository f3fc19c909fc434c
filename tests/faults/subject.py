"""The processes that faults are done to.

``python -m tests.faults.subject`` loads the application once and forks for every order, so that a fresh web
server or ``manage.py`` command is there in a fraction of a second, and a kill is a real kill. Orders come as
lines of JSON on standard input, answers go to standard output.

The hook at the database's edge is here, too, and not in the product: Django's own ``execute_wrappers`` count the
writing statements of a process and end it with SIGKILL right before the n-th. What lies between two of them, two
Redis round trips or two outside calls changes nothing anywhere, so these are all the places where a kill differs.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.processes import die_with_parent

CLOCK_VARIABLE = "FAULTS_CLOCK"  # a file with seconds, added to every look at the clock
PRELOADED = (
    "google.genai",
    "mastodon",
    "uvicorn",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.loops.asyncio",
    "uvicorn.lifespan.on",
    "broker_project.asgi",
    "broker_project.urls",
    "broker_project.management.commands.poll",
    "feeds.pollers",
    "fixtures.pollers",
    "tasks.pollers",
)
RELIEVED = "max_page_count=1073741823 busy_timeout=20000"
WRITES = ("INSERT", "UPDATE", "DELETE")


class Edge:
    """Counters that the forked process and its parent share."""

    FIELDS = struct.Struct("qqq")  # is counting, count, kill before this one

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, self.FIELDS.size)

    def read(self) -> tuple[int, int, int]:
        found: tuple[int, int, int] = self.FIELDS.unpack(self.memory[: self.FIELDS.size])
        return found

    def write(self, is_counting: int, count: int, kill_at: int) -> None:
        self.memory[: self.FIELDS.size] = self.FIELDS.pack(is_counting, count, kill_at)

    def pass_by(self) -> None:
        is_counting, count, kill_at = self.read()
        if not is_counting:
            return
        self.write(1, count + 1, kill_at)
        if count + 1 == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def watch_database(edge: Edge, pragmas: Path) -> None:
    """Count the writing statements of every connection.

    ``pragmas`` may hold lines for SQLite that make every connection one with less patience or a smaller disk, for as
    long as the file is there: some connections stay open.
    """
    from django.db.backends.signals import connection_created

    obeyed: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def obey(connection: Any) -> None:
        wanted = pragmas.read_text() if pragmas.exists() else ""
        if obeyed.get(connection, "") != wanted:
            for pragma in (wanted or RELIEVED).split():
                connection.connection.execute(f"PRAGMA {pragma}")
            obeyed[connection] = wanted

    def at_statement(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        obey(context["connection"])
        if sql.lstrip()[:6].upper() in WRITES:
            edge.pass_by()
        return execute(sql, params, many, context)

    def on_created(connection: Any, **kwargs: Any) -> None:
        obeyed.pop(connection, None)
        obey(connection)
        connection.execute_wrappers.append(at_statement)

    connection_created.connect(on_created, weak=False, dispatch_uid="faults")


def follow_clock(offset_file: Path) -> None:
    """The clock's edge: the product reads the time through Django alone, so this is where it can jump.

    To be called before anything of ours is imported: some functions take the clock as a default.
    """
    from django.utils import timezone

    real_now = timezone.now

    def jumping_now() -> datetime:
        return real_now() + timedelta(seconds=float(offset_file.read_text()))

    timezone.now = jumping_now


def serve_web(port: int) -> None:
    import uvicorn

    uvicorn.run(
        "broker_project.asgi:application", port=port, log_level="warning", timeout_graceful_shutdown=5
    )


def run_child(order: dict[str, Any], edge: Edge, start_pipe: int, parent: int) -> None:
    os.setsid()
    die_with_parent(parent)
    with open(order["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.read(start_pipe, 1)
    watch_database(edge, Path(order["pragmas"]))
    if order["run"] == "web":
        serve_web(order["port"])
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(["manage.py", *order["arguments"]])


class Forks:
    """The parent's side: one entry a child."""

    def __init__(self) -> None:
        self.edges: dict[int, Edge] = {}
        self.pipes: dict[int, int] = {}

    def start(self, order: dict[str, Any]) -> dict[str, Any]:
        edge, (reader, writer), parent = Edge(), os.pipe(), os.getpid()
        edge.write(order.get("count", 0), 0, order.get("kill_at", 0))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(writer)
                run_child(order, edge, reader, parent)
                code = 0
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
                if isinstance(exit_.code, str):
                    sys.stderr.write(f"{exit_.code}\n")
            except BaseException:  # noqa: BLE001 - written down; the exit status tells the rest
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(reader)
        self.edges[pid], self.pipes[pid] = edge, writer
        return {"pid": pid}

    def go(self, order: dict[str, Any]) -> dict[str, Any]:
        os.write(self.pipes[order["pid"]], b"1")
        return {}

    def arm(self, order: dict[str, Any]) -> dict[str, Any]:
        self.edges[order["pid"]].write(1, 0, order.get("kill_at", 0))
        return {}

    def count(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"count": self.edges[order["pid"]].read()[1]}

    def wait(self, order: dict[str, Any]) -> dict[str, Any]:
        """The exit status (negative: the signal), or null if it still runs after so many seconds."""
        pid, deadline = order["pid"], time.monotonic() + order.get("seconds", 0)
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                os.close(self.pipes.pop(pid))
                return {"status": os.waitstatus_to_exitcode(status), "count": self.edges.pop(pid).read()[1]}
            if time.monotonic() >= deadline:
                return {"status": None}
            time.sleep(0.005)


def main() -> None:
    import django

    if offset_file := os.environ.get(CLOCK_VARIABLE):
        follow_clock(Path(offset_file))
    django.setup()
    # What children would import anyway, once: google-genai alone takes a second.
    for name in PRELOADED:
        import_module(name)
    assert threading.active_count() == 1, threading.enumerate()  # a fork copies only the thread that forks
    print(json.dumps({"ready": len(PRELOADED)}), flush=True)
    forks = Forks()
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(forks, order.pop("do"))(order)), flush=True)


class Nursery:
    """The forking process as its user sees it."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        parent = os.getpid()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.subject"],
                cwd=BASE_DIR,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
        self.log = log
        self._answer()

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the nursery ended:\n{self.log.read_text(errors='replace')[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


if __name__ == "__main__":
    main()
