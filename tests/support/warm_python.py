"""Python programs in processes of their own that start in a third of the time: forked from a process with all imports.

They are real processes: their own environment, folder, signals and end. ``warm_host`` tells how.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from broker_project.lib.config.loader import BASE_DIR

Constants = Mapping[str, Mapping[str, Any]]


class WarmProcess:
    """As a ``subprocess.Popen`` in text mode. ``stdin`` and ``stdout`` are there if they were asked for as pipes."""

    def __init__(
        self, arguments: Sequence[str], outcome: IO[bytes], stdin: IO[str] | None, stdout: IO[str] | None
    ) -> None:
        self.args = list(arguments)
        self.pid = int(outcome.readline())
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._outcome = outcome
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and self._has_news(0):
                line = self._outcome.readline()
                # Without a line the host itself has ended and took its children along.
                self.returncode = int(line) if line else -signal.SIGKILL
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        while (status := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._has_news(min(left, 1))
        return status

    def _has_news(self, seconds: float) -> bool:
        return bool(select.select([self._outcome], [], [], seconds)[0])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _host() -> socket.socket:
    """The way to this test process's host; it ends when we do."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm_host", str(its.fileno())],
        cwd=BASE_DIR,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
    )
    its.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def start_python(
    *arguments: str,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
    cwd: Path = BASE_DIR,
    constants: Constants | None = None,
) -> WarmProcess:
    """Start what ``python *arguments`` would. Output goes to open files or, ``subprocess.PIPE``, to ours.

    ``constants`` by module and name have another value there; see ``warm_host``.
    ``PYTHON…`` variables have no effect on the interpreter, which runs already (unbuffered); only on its children.
    """
    request: dict[str, Any] = {"arguments": arguments, "environment": dict(env), "folder": str(cwd)}
    request["constants"] = constants or {}
    for module in request["constants"]:
        assert find_spec(module) is not None, f"there is no module {module}"
    sys.audit("subprocess.Popen", sys.executable, arguments, str(cwd), None)
    reader, writer = os.pipe()
    ours: list[IO[str] | None] = []
    with ExitStack() as its_files:
        nothing = its_files.enter_context(open(os.devnull, "r+b"))
        numbers = []
        for file, mode in ((stdin, "w"), (stdout, "r"), (stderr, "r")):
            if file == subprocess.PIPE:
                ends = os.pipe()
                ours.append(os.fdopen(ends[mode == "w"], mode, encoding="utf-8"))
                file = its_files.enter_context(os.fdopen(ends[mode == "r"], "r" if mode == "w" else "w"))
            else:
                ours.append(None)
            chosen = nothing if file == subprocess.DEVNULL else file
            numbers.append(chosen if isinstance(chosen, int) else chosen.fileno())
        numbers.append(its_files.enter_context(os.fdopen(writer, "wb")).fileno())
        socket.send_fds(_host(), [json.dumps(request).encode()], numbers)
    return WarmProcess(arguments, os.fdopen(reader, "rb", buffering=0), ours[0], ours[1])


def run_python(
    *arguments: str,
    env: Mapping[str, str],
    timeout: float = 180,
    cwd: Path = BASE_DIR,
    constants: Constants | None = None,
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` with captured text. A program that takes too long is killed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start_python(*arguments, env=env, stdout=out, stderr=err, cwd=cwd, constants=constants)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(process.args, status, *texts)
