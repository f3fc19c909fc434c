"""A whole installation with its surroundings: the supervisor and its parts, Redis, a database, the stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import redis

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.processes import die_with_parent
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.embedded_server import free_port
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from sandbox.launcher import SandboxHandle, start_sandbox
from tests.faults.invariants import Evidence
from tests.faults.passing import pass_time
from tests.faults.records import Records, Rows
from tests.faults.subject import Nursery
from tests.faults.world import LEAGUE, SYSTEMS, Process, matches_of
from tests.soak.disk import Disk
from tests.support.broker_process import BrokerProcess
from tests.support.gate import Gate, gate_to
from tests.support.postgres_server import PostgresServer, running_postgres
from tests.support.redis_server import RedisServer, start_redis

REPOSITORY = "broker-sandbox/demo"
CODE = f"/github/repos/{REPOSITORY}"
PERSON = {"Authorization": "token user:maintainer"}
KEYS = Keyspace(RedisNames())
LEASE_SECONDS = 12
HOUR = 3600.0
RESTART_SECONDS = 30.0
LAST_CALLS_SECONDS = 0.5  # the stand-ins finish what they have read before the gate was shut


class Outside:
    """The stand-ins behind a gate. They can be restarted, and then know all that they had answered."""

    def __init__(self, broker_port: int) -> None:
        self._stack = ExitStack()
        self._port, self._broker_port = free_port(), broker_port
        self.gate: Gate = self._stack.enter_context(gate_to(self._port))
        self.sandbox = self._start()
        prepare(self.sandbox)

    def _start(self) -> SandboxHandle:
        return self._stack.enter_context(
            start_sandbox(
                port=self._port,
                base_url=f"http://127.0.0.1:{self.gate.port}",
                broker_url=f"http://127.0.0.1:{self._broker_port}",
                webhook_secret="sandbox-webhook-secret",
                lively=True,
            )
        )

    def restart(self, seconds: float) -> None:
        """Calls are cut off in their middle and refused for so long.

        What has been answered is carried over: none of the real systems forgets it, and the broker would be
        blamed for labels and posts that nobody knows of.
        """
        self.gate.shut()
        try:
            time.sleep(LAST_CALLS_SECONDS)
            states = {system: self.sandbox.state(system) for system in SYSTEMS}
            self.sandbox.kill()
            time.sleep(seconds)
            fresh = self._start()
            for system, state in states.items():
                fresh.load(system, state)
            self.sandbox = fresh
        finally:
            self.gate.reopen()

    def close(self) -> None:
        self._stack.close()


class Site:
    def __init__(
        self,
        folder: Path,
        redis_server: RedisServer,
        outside: Outside,
        port: int,
        postgres: PostgresServer | None,
        disk: Disk | None,
        settings: Mapping[str, str],
    ) -> None:
        self.folder, self.redis_server, self.outside = folder, redis_server, outside
        self.postgres, self.disk = postgres, disk
        self.var = (disk.folder if disk else folder) / "var"
        self.var.mkdir()
        self.database_file = None if postgres else self.var / "broker.sqlite3"
        self.database_url = postgres.database("broker") if postgres else f"sqlite:///{self.database_file}"
        self.records = patient(Records.at(self.database_url))
        names = folder / "redis.json"
        names.write_text(json.dumps({"redis": {"ttl": {"heartbeat": LEASE_SECONDS}}}))
        self.store: redis.Redis = redis.Redis.from_url(redis_server.url, decode_responses=True)
        self.settings = {
            "PORT": str(port),
            "REDIS_URL": redis_server.url,
            "DATABASE_URL": self.database_url,
            "BROKER_REDIS_CONFIG": str(names),
            "BROKER_SANDBOX": "1",
            "BROKER_SANDBOX_URL": outside.sandbox.base_url,
            "BROKER_PRIORITY_GATE": "assignable",
            "BROKER_POLL_SECONDS": "60",
            "BROKER_REVIEW_DELAY_MINUTES": "0",
            "BROKER_REVIEW_TIMEOUT_MINUTES": "0",
            "GCS_BUCKET": "guides",
            "STORAGE_EMULATOR_HOST": f"{outside.sandbox.base_url}/gcs",
            "FIXTURE_LEAGUES": str(LEAGUE),
            "FIXTURE_STALE_MINUTES": "1",
            "FEED_LEASE_SECONDS": "30",
            "DJANGO_SETTINGS_MODULE": "broker_project.settings",
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        self.broker = BrokerProcess(self.var, **self.settings)
        self.url = f"http://127.0.0.1:{port}"
        self.evidence = Evidence(self.records, self.store, outside.sandbox, KEYS)
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self._nursery: Nursery | None = None
        self._runs = 0

    def begin(self) -> None:
        """Wait until it serves."""
        self.broker.wait_until_greeted()
        self._nursery = Nursery(self.broker.env, self.folder / "nursery.log")

    @property
    def sandbox(self) -> SandboxHandle:
        return self.outside.sandbox

    def restart_outside(self, seconds: float) -> None:
        self.outside.restart(seconds)
        self.evidence.sandbox = self.outside.sandbox

    # Processes

    def start_command(self, *arguments: str) -> Process:
        assert self._nursery is not None
        self._runs += 1
        log = self.folder / f"poll-{self._runs % 50}.log"
        log.unlink(missing_ok=True)
        order = {"run": "manage", "arguments": list(arguments), "pragmas": str(self.folder / "none")}
        found = self._nursery.ask("start", **order, log=str(log), count=0)
        process = Process(self._nursery, int(found["pid"]), log)
        process.go()
        return process

    def start_client(self, name: str) -> None:
        """The shipped client as a process of its own, with a command that takes a moment."""
        parent = os.getpid()
        command = [sys.executable, "-m", "broker_client", "run", "--url", self.url, "--agent-id", name]
        command += ["--timeout", "10", "--", "sh", "-c", "cat > /dev/null; sleep 1"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.clients[name] = subprocess.Popen(
                command,
                cwd=BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: die_with_parent(parent),
            )

    def part(self, words: str) -> psutil.Process | None:
        """A direct child of the supervisor; None while it is being started again."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.broker.process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    if words in " ".join(child.cmdline()):
                        return child
        return None

    def is_up(self) -> bool:
        try:
            return (
                httpx.get(f"{self.url}/health", timeout=5, trust_env=False, verify=False).status_code == 200
            )
        except httpx.TransportError:
            return False

    # Stores

    def mend(self) -> None:
        """No fault goes on."""
        self.sandbox.clear_faults()
        with suppress(redis.exceptions.RedisError):
            self.store.client_unpause()

    def pass_time(self, seconds: float = HOUR) -> None:
        pass_time(self.records, self.store, seconds)

    def poller_locks(self) -> list[str]:
        return [str(key) for key in self.store.scan_iter(match=KEYS.match(k.LOCK_PROCESS))]

    def close(self) -> None:
        for client in self.clients.values():
            if client.poll() is None:
                client.kill()
            client.wait()
        if self._nursery is not None:
            self._nursery.close()
        self.broker.close()
        self.store.close()

    # GitHub

    def github(self, method: str, path: str, data: object = None) -> httpx.Response:
        return self.sandbox.client.request(method, CODE + path, json=data, headers=PERSON)


def patient(records: Records) -> Records:
    """Questions of ours wait for a database that is being restarted; the broker's own do not get this help."""

    def select(sql: str, values: Sequence[Any]) -> Rows:
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                return records.rows(sql, *values)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)

    return Records(select, is_postgres=records.is_postgres)


def end_client(process: subprocess.Popen[bytes], seconds: float = 20) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def opened_site(
    folder: Path, *, is_postgres: bool, disk: Disk | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Site]:
    """``settings`` are added to those of the broker."""
    with ExitStack() as stack:
        redis_server = start_redis()
        stack.callback(redis_server.stop)
        postgres = stack.enter_context(own_postgres(disk)) if is_postgres else None
        port = free_port()
        outside = Outside(port)
        stack.callback(outside.close)
        site = Site(folder, redis_server, outside, port, postgres, disk, settings or {})
        stack.callback(site.close)
        site.begin()
        yield site


@contextmanager
def own_postgres(disk: Disk | None) -> Iterator[PostgresServer]:
    """A server with an empty database. What it has committed outlives its own sudden end."""
    usual = tempfile.tempdir
    if disk is not None:
        tempfile.tempdir = str(disk.folder)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_postgres())
        finally:
            tempfile.tempdir = usual
        server.copy_database("template1", "broker")
        with psycopg.connect(server.database(), autocommit=True) as connection:
            connection.execute(b"ALTER DATABASE broker SET synchronous_commit = on")
        yield server


def prepare(sandbox: SandboxHandle) -> None:
    """An empty repository and feed, no quotas, and of the matches only those that will be added."""
    sandbox.reset("github", seed=False)
    sandbox.control("POST", "github/repositories", {"repository": REPOSITORY})
    sandbox.control("PATCH", "github/settings", {"rate_limit": 100_000_000})
    sandbox.load("feed", {"items": [], "bulk": 0})
    called_off = {fixture_id: {"status": "PST"} for fixture_id in matches_of(sandbox, LEAGUE)}
    limits = {"daily_limit": 10**7, "minute_limit": 10**7}
    sandbox.load("football", {**limits, "overrides": called_off})
