"""The processes that a run starts: servers, and programs that answer commands. Loopback only."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import psutil

from broker_project.lib.processes import kill_group, wait_until_gone

OURS = ("BROKER_", "DJANGO_", "GITHUB_", "GEMINI_", "MASTODON_", "API_FOOTBALL_", "FEED_", "FIXTURE_", "GCS_")
STORES = ("REDIS_URL", "DATABASE_URL", "STORAGE_EMULATOR_HOST", "PORT", "HOST", "WEB_WORKERS")
START_SECONDS = 60.0
STOP_SECONDS = 6.0
WANTED_FILES = 16_384


class BenchFailed(Exception):
    """The bench itself did not work; says nothing about the product."""


def clean_environment(**more: str) -> dict[str, str]:
    """The environment variables of this process without any of ours, and those that are given."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(OURS) and name not in STORES
    }
    return {**kept, "BROKER_ENV_FILE": "", "PYTHONUNBUFFERED": "1", **more}


def raise_file_limit() -> int:
    """Allow as many open files as the machine permits, for this process and its children. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft


class Program:
    """A child process: how it ends, its CPU time, its memory."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path | None = None) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.seen = psutil.Process(process.pid)

    @property
    def cpu_seconds(self) -> float:
        times = self.seen.cpu_times()
        return float(times.user + times.system)

    @property
    def memory_bytes(self) -> int:
        """Memory that this process shares with no other."""
        return int(self.seen.memory_full_info().uss)

    @property
    def threads(self) -> int:
        return int(self.seen.num_threads())

    def check(self) -> None:
        if self.process.poll() is not None:
            raise BenchFailed(f"{self.name} ended with {self.process.returncode}:\n{self.end_of_log()}")

    def end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log and self.log.exists() else ""

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            if not wait_until_gone(self.process, time.monotonic() + STOP_SECONDS):
                kill_group(self.process)
                self.process.wait()


class Server(Program):
    """Reading ``port`` waits until the server answers, so several can start at the same time."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        super().__init__(name, process, log)
        self._port = port
        self._is_ready = False

    @property
    def port(self) -> int:
        until = time.monotonic() + START_SECONDS
        while not self._is_ready:
            self.check()
            if time.monotonic() > until:
                raise BenchFailed(f"{self.name} does not answer:\n{self.end_of_log()}")
            try:
                self._is_ready = self._call("GET", "/health", None, {})[0] == 200
            except OSError:
                time.sleep(0.05)
        return self._port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """One request on a connection of its own; the status and the JSON of the answer."""
        assert self.port
        return self._call(method, path, body, headers or {})

    def _call(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            given = {"Content-Type": "application/json", "Connection": "close", **headers}
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text else None


class CommandProcess(Program):
    """A program of :mod:`bench.json_lines`: ``ask`` sends a command and waits for its answer."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        super().__init__(name, process, log)
        assert process.stdin is not None
        assert process.stdout is not None
        self._to: IO[bytes] = process.stdin
        self._from: IO[bytes] = process.stdout

    def send(self, command: str, **given: Any) -> None:
        """Send a command without waiting; :meth:`receive` has the answer."""
        self._to.write(json.dumps([command, given]).encode() + b"\n")
        self._to.flush()

    def receive(self) -> Any:
        line = self._from.readline()
        if not line:
            raise BenchFailed(f"{self.name} ended:\n{self.end_of_log()}")
        document = json.loads(line)
        if "error" in document:
            raise BenchFailed(f"{self.name}: {document['error']}\n{self.end_of_log()}")
        return document["answer"]

    def ask(self, command: str, **given: Any) -> Any:
        self.send(command, **given)
        return self.receive()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._to.close()
        super().stop()
        self._from.close()
