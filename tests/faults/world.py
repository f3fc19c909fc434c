"""A broker of its own to break: stores behind gates, stand-ins, and real processes on top of them."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import redis

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.embedded_server import free_port
from broker_project.lib.redis.keyspace import Keyspace, RedisNames
from sandbox.launcher import SandboxHandle, start_sandbox
from tests.faults.invariants import Evidence, broken
from tests.faults.passing import pass_time
from tests.faults.records import Records
from tests.faults.subject import Nursery
from tests.support.broker_process import clean_environment, http_status, wait_for
from tests.support.gate import Gate, gate_to
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer, start_redis

CODE = "/github/repos/broker-sandbox/demo"
PERSON = {"Authorization": "token user:maintainer"}
BODY = "## 成果物\n- something\n"
HOUR = 3600.0
LIMIT_SECONDS = 60.0
BUSY_MILLISECONDS = 300  # how long a process of ours waits for a locked database, in the tests of that
KEYS = Keyspace(RedisNames())
LEAGUE = 45  # a cup: few matches a day
SYSTEMS = ("github", "gemini", "mastodon", "football", "gcs", "feed")


@dataclass
class Process:
    """One process of the broker. ``status`` is known once it has ended; negative: the signal."""

    nursery: Nursery
    pid: int
    log: Path
    port: int = 0
    status: int | None = None
    statements: int = 0

    def go(self) -> None:
        self.nursery.ask("go", pid=self.pid)

    def arm(self, kill_at: int = 0) -> None:
        """Count database statements from now on, and die right before the one with this number."""
        self.nursery.ask("arm", pid=self.pid, kill_at=kill_at)

    def counted(self) -> int:
        if self.status is None:
            self.statements = int(self.nursery.ask("count", pid=self.pid)["count"])
        return self.statements

    def wait(self, seconds: float = LIMIT_SECONDS) -> int | None:
        if self.status is None:
            found = self.nursery.ask("wait", pid=self.pid, seconds=seconds)
            self.status = found["status"]
            self.statements = int(found.get("count", 0))
        return self.status

    @property
    def is_alive(self) -> bool:
        return self.wait(0) is None

    def kill(self) -> None:
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


@dataclass(frozen=True)
class Snapshot:
    """Everything that is stored somewhere."""

    folder: Path
    keys: dict[bytes, tuple[bytes, int]]
    systems: dict[str, Any]


class FaultWorld:
    """One for a session: ``begin`` puts every store back to a snapshot."""

    def __init__(
        self,
        folder: Path,
        redis_server: RedisServer,
        redis_gate: Gate,
        outside_gate: Gate,
        sandbox: SandboxHandle,
        postgres: PostgresServer | None = None,
    ) -> None:
        self.folder = folder
        self.var = folder / "var"
        self.var.mkdir()
        self.redis_server, self.redis_gate = redis_server, redis_gate
        self.outside_gate, self.sandbox = outside_gate, sandbox
        self.store: redis.Redis = redis.Redis.from_url(redis_server.url, decode_responses=True)
        self.raw: redis.Redis = redis.Redis.from_url(redis_server.url)
        self.postgres = postgres
        self.database_url = (
            postgres.database("broker") if postgres else f"sqlite:///{self.var / 'broker.sqlite3'}"
        )
        self.records = Records.at(self.database_url)
        self.processes: list[Process] = []
        self.hands = ThreadPoolExecutor(1)  # a thread that lives as long as the world
        self.snapshots: dict[str, Snapshot] = {}
        self.log = folder / "subject.log"
        self.pragmas = folder / "pragmas"
        self.environment = clean_environment(
            self.var,
            REDIS_URL=f"redis://127.0.0.1:{redis_gate.port}/0",
            DATABASE_URL=self.database_url,
            BROKER_SANDBOX="1",
            BROKER_SANDBOX_URL=sandbox.base_url,
            GCS_BUCKET="guides",
            STORAGE_EMULATOR_HOST=f"{sandbox.base_url}/gcs",
            FIXTURE_LEAGUES=str(LEAGUE),
            BROKER_CALL_SECONDS="1",
            BROKER_LOG_LEVEL="INFO",
            DJANGO_SETTINGS_MODULE="broker_project.settings",
            PYTHONUNBUFFERED="1",
        )
        self.nursery = Nursery(self.environment, self.log)
        self.evidence = Evidence(self.records, self.store, sandbox, KEYS)

    # Processes

    def start(self, *arguments: str, nursery: Nursery | None = None) -> Process:
        """``manage.py`` with these arguments; it begins with ``go``."""
        return self._start({"run": "manage", "arguments": list(arguments)}, nursery)

    def _start(self, order: dict[str, Any], nursery: Nursery | None) -> Process:
        home = nursery or self.nursery
        log = self.folder / f"process-{len(self.processes)}.log"
        log.unlink(missing_ok=True)
        found = home.ask("start", **order, pragmas=str(self.pragmas), log=str(log), count=1)
        process = Process(home, int(found["pid"]), log, order.get("port", 0))
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> str:
        """Run a command to its end, which must be a good one; what it printed."""
        process = self.start(*arguments)
        process.go()
        assert process.wait() == 0, f"manage.py {' '.join(arguments)}: {process.status}\n{process.output}"
        return process.output

    def start_web(self, nursery: Nursery | None = None) -> Process:
        """A web server that answers."""
        port = free_port()
        process = self._start({"run": "web", "port": port}, nursery)
        process.go()

        def is_up() -> bool:
            if not process.is_alive:
                raise AssertionError(f"the server ended with {process.status}:\n{process.output}")
            return http_status(port, "/health") == 200

        wait_for(is_up, "the server answers")
        return process

    def end_processes(self) -> None:
        for process in self.processes:
            process.kill()
        self.processes.clear()

    # Stores

    def mend(self) -> None:
        """Whatever a fault did to a store or a gate is over."""
        self.hands.submit(len, ()).result()  # a restart that is still going on
        for gate in (self.redis_gate, self.outside_gate):
            gate.disarm()
        with suppress(ProcessLookupError):
            os.kill(self.redis_server.process.pid, signal.SIGCONT)
        self.store.replicaof("NO", "ONE")
        self.store.config_set("maxmemory", 0)
        self.store.client_unpause()
        self.sandbox.clear_faults()

    def begin(self, name: str = "empty") -> None:
        """Every store as it was in a snapshot, no process, no fault."""
        self.end_processes()
        self.mend()
        self.restore(self.snapshots[name])
        self.evidence.csv_rows_seen.clear()
        self.evidence.clock_is_steady = True
        self.evidence.remember_csv()

    def snapshot(self, name: str) -> None:
        self.end_processes()
        folder = self.folder / f"snapshot-{name}"
        folder.mkdir(exist_ok=True)
        self.save_database(folder)
        keys = {key: (self.raw.dump(key) or b"", max(0, self.raw.pttl(key))) for key in self.raw.scan_iter()}
        systems = {system: self.sandbox.state(system) for system in SYSTEMS}
        self.snapshots[name] = Snapshot(folder, keys, systems)

    def restore(self, snapshot: Snapshot) -> None:
        self.load_database(snapshot.folder)
        pipe = self.raw.pipeline(transaction=False)
        pipe.flushall()
        for key, (value, ttl) in snapshot.keys.items():
            pipe.restore(key, ttl, value)
        pipe.execute()
        self.sandbox.reset(seed=False)
        for system, state in snapshot.systems.items():
            self.sandbox.load(system, state)
        self.sandbox.clear_calls()
        shutil.rmtree(self.var / "downloads", ignore_errors=True)

    def save_database(self, folder: Path) -> None:
        if self.postgres is not None:
            self.postgres.copy_database("broker", _database_of(folder))
            return
        self.records.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(self.var / "broker.sqlite3", folder / "broker.sqlite3")

    def load_database(self, folder: Path) -> None:
        if self.postgres is not None:
            self.postgres.copy_database(_database_of(folder), "broker")
            return
        for ending in ("-wal", "-shm"):
            (self.var / f"broker.sqlite3{ending}").unlink(missing_ok=True)
        shutil.copy(folder / "broker.sqlite3", self.var / "broker.sqlite3")

    def pass_time(self, seconds: float = HOUR) -> None:
        pass_time(self.records, self.raw, seconds)

    @contextmanager
    def locked_database(self) -> Iterator[None]:
        """Another process holds SQLite's write lock, and ours wait for it only a moment."""
        self.pragmas.write_text(f"busy_timeout={BUSY_MILLISECONDS}\n")
        connection = sqlite3.connect(self.var / "broker.sqlite3", isolation_level=None, timeout=20)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
            connection.close()
            self.pragmas.unlink()

    def pack_database(self) -> None:
        """Small, full pages: whatever is added needs a new one."""
        connection = sqlite3.connect(self.var / "broker.sqlite3", isolation_level=None)
        for line in (
            "PRAGMA journal_mode=DELETE",
            "PRAGMA page_size=512",
            "VACUUM",
            "PRAGMA journal_mode=WAL",
        ):
            connection.execute(line)
        connection.close()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """The database file may not grow by a single page: SQLite says SQLITE_FULL, as it does without space."""
        pages = self.records.value("PRAGMA page_count")
        self.pragmas.write_text(f"max_page_count={pages}\n")
        try:
            yield
        finally:
            self.pragmas.unlink()

    # GitHub and agents

    def github(self, method: str, path: str, data: Any = None) -> Any:
        answer = self.sandbox.client.request(method, CODE + path, json=data, headers=PERSON)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def open_issue(self, *labels: str) -> int:
        found = self.github("POST", "/issues", {"title": "work", "body": BODY, "labels": list(labels)})
        return int(found["number"])

    def post(self, web: Process, path: str, data: Any = None, seconds: float = 30) -> httpx.Response | None:
        """The answer to a call of the API; None if there was none."""
        try:
            return httpx.post(
                f"http://127.0.0.1:{web.port}{path}",
                json=data or {},
                timeout=seconds,
                trust_env=False,
                verify=False,
            )
        except httpx.TransportError:
            return None

    def ask(self, web: Process, agent: str = "agent-1", **more: Any) -> httpx.Response | None:
        body = {"agent_id": agent, "timeout": 0, **more}
        return self.post(web, "/api/v1/request-task", body)

    # The end

    def settle(self) -> None:
        """What the pollers do by themselves in the hour after."""
        self.pass_time()
        for name in ("zombies", "issues", "zombies"):
            self.run("poll", name, "--force")

    def check(self) -> None:
        """Nothing that must hold is broken."""
        found = broken(self.evidence)
        assert not found, "\n".join(found)


def _database_of(folder: Path) -> str:
    return folder.name.replace("-", "_")


@contextmanager
def fault_world(folder: Path, postgres: PostgresServer | None = None) -> Iterator[FaultWorld]:
    """A world with an empty repository that three issues were opened in; all of them on offer."""
    server = start_redis()
    port = free_port()
    with gate_to(server.port) as redis_gate, gate_to(port) as outside_gate:
        base_url = f"http://127.0.0.1:{outside_gate.port}"
        with start_sandbox(port=port, base_url=base_url) as sandbox:
            world = FaultWorld(folder, server, redis_gate, outside_gate, sandbox, postgres)
            try:
                prepare(world)
                yield world
            finally:
                world.end_processes()
                world.nursery.close()
                world.hands.shutdown()
                world.store.close()
                world.raw.close()
    server.stop()


def matches_of(sandbox: SandboxHandle, league: int) -> list[str]:
    """The ids of a competition's matches of these days."""
    today = datetime.now(UTC).date()
    days = {"from": str(today - timedelta(days=2)), "to": str(today + timedelta(days=2))}
    found = []
    for season in (today.year, today.year - 1):
        answer = sandbox.client.get(
            "/football/fixtures",
            params={**days, "league": league, "season": season},
            headers={"x-apisports-key": "sandbox-football"},
        )
        found += [str(entry["fixture"]["id"]) for entry in answer.json()["response"]]
    return found


def prepare(world: FaultWorld) -> None:
    sandbox = world.sandbox
    sandbox.reset("github", seed=False)
    sandbox.control("POST", "github/repositories", {"repository": "broker-sandbox/demo"})
    sandbox.load("football", {"daily_limit": 10**6, "minute_limit": 10**6})
    world.run("migrate", "--verbosity", "0")
    for _ in range(3):
        world.open_issue("P1", "BACKENDCODER")
    world.run("poll", "issues", "--force")
    deadline = time.monotonic() + 10
    while world.store.exists(KEYS.key(k.LOCK_PROCESS, name="issues")) and time.monotonic() < deadline:
        time.sleep(0.01)
    world.snapshot("empty")
