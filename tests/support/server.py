"""The application's web server as real processes, on stores of their own.

A test folder gets the fixtures by one line in its ``conftest.py``::

    from tests.support.server import _broker_world, broker_server, broker_world  # noqa: F401

``broker_server`` is a running server with the sandbox's issues in its database and Redis. Tests that need
other settings, no server yet or several take ``broker_world`` and call ``start(BROKER_AGENT_AUTH="token")``.

Redis and the sandbox belong to this test process alone and are not those of the settings (``store`` and
``sandbox`` in ``tests/conftest.py``): flushing them disturbs nobody. Migrating and the first poll happen once
a session; each test begins with copies of what they left.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis

from broker_project.lib.redis.embedded_server import free_port
from sandbox.launcher import SandboxHandle, start_sandbox
from tests.support.broker_process import clean_environment, http_status, run_manage, wait_for
from tests.support.databases import copy_database, database_url, drop_database, query
from tests.support.redis_server import RedisServer, start_redis
from tests.support.template_database import make_migrated_database
from tests.support.warm_python import WarmProcess, start_python

WEBHOOK_SECRET = "webhook-secret-of-the-tests"


class BrokerServer:
    """One uvicorn process. ``start`` again after ``stop`` or ``kill``: same port, same stores."""

    def __init__(self, world: BrokerWorld, var: Path, workers: int = 1, **settings: str) -> None:
        self.world = world
        self.workers = workers
        self.var = var
        self.port = free_port()
        self.env = clean_environment(
            var,
            **{
                "DATABASE_URL": database_url(var),
                "REDIS_URL": world.redis_server.url,
                "BROKER_SANDBOX_URL": world.sandbox.base_url,
                "GITHUB_WEBHOOK_SECRET": WEBHOOK_SECRET,
                "PYTHONUNBUFFERED": "1",
                **settings,
            },
        )
        self.log = var / f"server-{self.port}.log"
        self.drain_seconds = 10
        self.process: WarmProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def sandbox(self) -> SandboxHandle:
        return self.world.sandbox

    @property
    def redis(self) -> redis.Redis:
        return self.world.redis

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = ["-m", "uvicorn", "broker_project.asgi:application", "--port", str(self.port)]
        command += ["--log-level", "warning", "--timeout-graceful-shutdown", str(self.drain_seconds)]
        command += ["--workers", str(self.workers)] if self.workers > 1 else []
        with self.log.open("ab") as log:
            self.process = start_python(*command, env=self.env, stdout=log, stderr=log)
        wait_for(self._is_up, "the server answers")

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.output}")
        return http_status(self.port, "/health") == 200

    def client(self, token: str = "", **options: Any) -> httpx.Client:
        """A client for this server. Close it, or use it in a ``with``."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        given = {"timeout": 30, "trust_env": False, "verify": False, **options}
        return httpx.Client(base_url=self.url, headers=headers, **given)

    def manage(self, *arguments: str) -> str:
        """Run ``manage.py`` on the same stores; its standard output. Fails the test if it fails."""
        done = run_manage(*arguments, env=self.env)
        assert done.returncode == 0, f"manage.py {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Straight from its database; ``?`` stands for a value."""
        return query(self.var, statement, *values)

    def poll(self, name: str) -> str:
        return self.manage("poll", name, "--force")

    def create_agent(self, name: str, *roles: str) -> str:
        """A new agent's token."""
        given = [part for role in roles for part in ("--role", role)]
        return self.manage("create_agent", name, *given).strip()

    def send_webhook(self, event: str, payload: dict[str, Any], delivery: str) -> httpx.Response:
        """A signed delivery, as GitHub would send it."""
        body, headers = self.signed(event, payload, delivery)
        with self.client() as client:
            return client.post("/webhooks/github", content=body, headers=headers)

    def signed(self, event: str, payload: dict[str, Any], delivery: str) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a delivery."""
        body = json.dumps(payload).encode()
        digest = hmac.new(WEBHOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery,
            "X-Hub-Signature-256": f"sha256={digest}",
            "Content-Type": "application/json",
        }
        return body, headers

    def another(self, **settings: str) -> BrokerServer:
        """A second server process on the same database, Redis and sandbox."""
        return self.world.start(self.var, 1, **settings)

    def worker_processes(self) -> list[psutil.Process]:
        """With several workers, their processes: the children that listen."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if any("spawn_main" in part for part in child.cmdline())]

    def stop(self) -> None:
        """SIGTERM, and wait for the clean end. uvicorn ends by the very signal once it has cleaned up."""
        assert self.process is not None
        self.process.terminate()
        try:
            assert self.process.wait(20) in (0, -signal.SIGTERM), self.output
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not end on SIGTERM:\n{self.output}") from None

    def kill(self) -> None:
        """SIGKILL: nothing is said to anybody."""
        if self.process is not None and self.process.poll() is None:
            for worker in self.worker_processes():
                worker.kill()
            self.process.kill()
            self.process.wait()


class BrokerWorld:
    """What servers share: a Redis, a sandbox, and a folder to copy with the migrated and filled database."""

    def __init__(self, folder: Path, redis_server: RedisServer, sandbox: SandboxHandle) -> None:
        self.folder = folder
        self.redis_server = redis_server
        self.sandbox = sandbox
        self.redis: redis.Redis = redis.Redis.from_url(redis_server.url, decode_responses=True)
        self._raw: redis.Redis = redis.Redis.from_url(redis_server.url)
        self._servers: list[BrokerServer] = []
        self._folders: list[Path] = []
        self._numbers = itertools.count(1)
        self._template = folder / "template"
        self._template.mkdir()
        make_migrated_database(self._template)
        BrokerServer(self, self._template).poll("issues")
        self._github = sandbox.state("github")
        self._keys = {key: self._raw.dump(key) or b"" for key in self._raw.scan_iter()}

    def begin(self) -> None:
        """Redis and sandbox as they were after the first poll."""
        self._raw.flushall()
        pipe = self._raw.pipeline(transaction=False)
        for key, value in self._keys.items():
            pipe.restore(key, 0, value)
        pipe.execute()
        self.sandbox.reset()
        self.sandbox.load("github", self._github)
        self.sandbox.clear_calls()

    def new_folder(self) -> Path:
        """A folder with a copy of the filled database."""
        folder = self.folder / f"var-{next(self._numbers)}"
        folder.mkdir()
        copy_database(self._template, folder)
        self._folders.append(folder)
        return folder

    def start(self, var: Path | None = None, workers: int = 1, **settings: str) -> BrokerServer:
        """A running server; on a database of its own unless ``var`` names another server's folder."""
        server = BrokerServer(self, var or self.new_folder(), workers, **settings)
        self._servers.append(server)
        server.start()
        return server

    def end(self) -> None:
        for server in self._servers:
            server.kill()
        self._servers.clear()
        for folder in self._folders:
            drop_database(folder)
        self._folders.clear()


@pytest.fixture(scope="session")
def _broker_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWorld]:
    server = start_redis()
    with start_sandbox() as sandbox:
        world = BrokerWorld(tmp_path_factory.mktemp("broker"), server, sandbox)
        yield world
        world.redis.close()
    server.stop()


@pytest.fixture
def broker_world(_broker_world: BrokerWorld) -> Iterator[BrokerWorld]:
    """Fresh stores and no server yet. All servers started through it are gone after the test."""
    _broker_world.begin()
    yield _broker_world
    _broker_world.end()


@pytest.fixture
def broker_server(broker_world: BrokerWorld) -> BrokerServer:
    """A running server in the sandbox's open mode, with the sandbox's issues on offer."""
    return broker_world.start()
