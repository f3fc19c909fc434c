"""Several machines' worth of processes on one PostgreSQL, one Redis and one stand-in for GitHub."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from sandbox.launcher import SandboxHandle, start_sandbox
from tests.support.broker_process import wait_for
from tests.support.databases import database_url, drop_database
from tests.support.redis_server import start_redis
from tests.support.server import BrokerServer, BrokerWorld
from tests.support.warm_python import WarmProcess, start_python

REPOSITORY = "broker-sandbox/demo"
CODE = f"/github/repos/{REPOSITORY}"
STOP_SECONDS = 30
BATCH = 500  # issues in one order to the stand-in


class Site:
    """``servers`` are two processes that share nothing but the stores."""

    def __init__(self, folder: Path, world: BrokerWorld, stack: ExitStack) -> None:
        self.folder, self.world, self.stack = folder, world, stack
        self.clusters: list[WarmProcess] = []
        first = world.new_folder()
        stack.callback(drop_database, first)
        self.settings = {
            "DATABASE_URL": database_url(first),
            "DJANGO_SECRET_KEY": "the same secret key on every machine",
            "BROKER_PRIORITY_GATE": "assignable",
            "BROKER_LOG_LEVEL": "WARNING",
        }
        self.vars = [first, folder / "second"]
        self.vars[1].mkdir()
        self.servers = [world.start(var, 1, **self.settings) for var in self.vars]

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Site]:
        with ExitStack() as stack:
            redis_server = start_redis()
            stack.callback(redis_server.stop)
            sandbox = stack.enter_context(start_sandbox(seed=False))
            # What is measured here is ours: the stand-in sets no limit.
            sandbox.control("POST", "github/repositories", {"repository": REPOSITORY})
            sandbox.control("PATCH", "github/settings", {"rate_limit": 100_000_000, "webhooks": False})
            sandbox.keep_calls(500_000)
            world = BrokerWorld(folder, redis_server, sandbox)
            stack.callback(world.redis.close)
            stack.callback(world.end)
            yield cls(folder, world, stack)

    @property
    def sandbox(self) -> SandboxHandle:
        return self.world.sandbox

    @property
    def first(self) -> BrokerServer:
        return self.servers[0]

    def query(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        return self.first.query(statement, *values)

    def start_cluster(self, number: int) -> None:
        """A django-q2 cluster beside one of the servers."""
        var, env = self.vars[number], self.servers[number].env
        with (var / "cluster.log").open("ab") as log:
            process = start_python("manage.py", "qcluster", env=env, stdout=log, stderr=log)
        self.clusters.append(process)
        self.stack.callback(end_cluster, process)
        folder = var / "run" / "cluster"
        wait_for(lambda: len(list(folder.glob("worker-*"))) >= 3, f"cluster {number} has its workers")

    def has_worked(self, number: int) -> bool:
        """Whether a worker of that cluster ever began a task."""
        return (self.vars[number] / "run" / "cluster" / "beat").exists()

    def open_issues(self, count: int) -> list[int]:
        """New issues on GitHub that anybody may take; the broker is not told."""
        numbers: list[int] = []
        for begin in range(0, count, BATCH):
            issues = [
                {"title": f"work {n}", "body": "## 成果物\n- x", "labels": ["P1", "BACKENDCODER"]}
                for n in range(begin, min(begin + BATCH, count))
            ]
            made = self.sandbox.control("POST", "github/issues", {"repository": REPOSITORY, "issues": issues})
            numbers += made["numbers"]
        return numbers

    def queue_pollers(self, times: int, *names: str) -> None:
        """Ask the clusters for each of these so often, all at once."""
        code = (
            "from django_q.tasks import async_task\n"
            f"for name in {list(names) * times!r}:\n"
            "    async_task('broker_project.ops.clock.pollers.run_scheduled', name, 'test')\n"
        )
        self.first.manage("shell", "--no-imports", "-c", code)


def end_cluster(process: WarmProcess) -> None:
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    for left in alive:
        left.kill()
