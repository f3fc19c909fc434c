"""`manage.py broker` as a real process with a folder of its own, and what can be seen of it from outside."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import psutil

from broker_project.lib.redis.embedded_server import free_port
from tests.support.warm_python import run_python, start_python

T = TypeVar("T")
OURS = ("BROKER_", "DJANGO_", "GITHUB_", "GEMINI_", "MASTODON_", "API_FOOTBALL_", "FEED_", "FIXTURE_", "GCS_")


def clean_environment(var: Path, **extra: str) -> dict[str, str]:
    """The environment of a stranger's shell: none of our settings but a folder and those asked for."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OURS) and name not in ("REDIS_URL", "DATABASE_URL", "PORT", "HOST", "CI")
    }
    return {**kept, "BROKER_ENV_FILE": "", "BROKER_VAR": str(var), **extra}


def run_manage(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return run_python("manage.py", *arguments, env=env)


def wait_for(look: Callable[[], T | None], what: str, seconds: float = 90) -> T:
    """The first true answer. Fails with ``what`` when none comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"did not happen within {seconds:g} s: {what}")


def http_status(port: int, path: str) -> int | None:
    """The status of an answer on this machine, or None if there is none. An httpx client costs 30 ms to make."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None


class BrokerProcess:
    """Started at once; ``close`` ends it whatever happened. ``seen`` are all processes that it ever had."""

    def __init__(self, var: Path, **settings: str) -> None:
        self.var = var
        self.port = int(settings.get("PORT") or free_port())
        self.env = clean_environment(var, **{**settings, "PORT": str(self.port)})
        self.log = var / "broker.log"
        with self.log.open("ab") as log:
            self.process = start_python("manage.py", "broker", env=self.env, stdout=log, stderr=log)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def status(self, path: str) -> int | None:
        """The status of an answer, or None if there is none."""
        return http_status(self.port, path)

    def wait_until_greeted(self) -> None:
        self.wait_for_text("Ctrl-C ends everything.")

    def wait_for_text(self, text: str, seconds: float = 90) -> None:
        def look() -> bool:
            if self.process.poll() is not None and text not in self.output:
                raise AssertionError(f"the broker ended while waiting for {text!r}:\n{self.output}")
            return text in self.output

        try:
            wait_for(look, text, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def family(self) -> list[psutil.Process]:
        """Itself and everything under it."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def part(self, words: str) -> psutil.Process:
        """The direct child whose command line contains ``words``."""

        def look() -> psutil.Process | None:
            for child in psutil.Process(self.process.pid).children():
                try:
                    if words in " ".join(child.cmdline()):
                        return child
                except psutil.NoSuchProcess:
                    continue
            return None

        return wait_for(look, f"a part with {words!r}")

    def workers(self) -> list[int]:
        """The cluster's living workers, by what they left on disk."""
        group = self.part("qcluster").pid
        names = [path.name for path in (self.var / "run" / "cluster").glob("worker-*")]
        pids = [int(name.rpartition("-")[2]) for name in names]
        return [pid for pid in pids if psutil.pid_exists(pid) and os.getpgid(pid) == group]

    def canary(self) -> str:
        """The token of the last canary that a worker ran."""
        try:
            return (self.var / "run" / "cluster" / "canary").read_text()
        except FileNotFoundError:
            return ""

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            family = self.family()
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            psutil.wait_procs(family, timeout=5)


def living(processes: list[psutil.Process]) -> list[str]:
    """Which of these still run, in words; zombies are gone as far as anybody is concerned."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except psutil.NoSuchProcess:
            continue
    return found


def password_of(output: str) -> str:
    match = re.search(r"Log-in +admin / (\S+)", output)
    assert match, output
    return match[1]
