"""What a run works with: a temporary folder, installations of the product, servers, stand-ins, programs.

Everything is started through an :class:`Environment` and ended with it, however the run ends. Loopback only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis

from bench.figures import Round
from bench.processes import BenchFailed, CommandProcess, Program, Server, clean_environment
from bench.round_trips import RoundTripCounter
from broker_project.lib.processes import die_with_parent, start_bound_process
from broker_project.lib.redis.embedded_server import EmbeddedRedis

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "bench"
WEBHOOK_SECRET = "webhook-secret-of-the-bench"
REPOSITORY = "bench/issues"
NOBODY = "http://127.0.0.1:9"  # nothing answers there


class Stores:
    """The stores of one installation: a folder with its database, and a Redis."""

    def __init__(self, environment: Environment, name: str, var: Path, github_url: str) -> None:
        self.name = name
        self.var = var
        self.embedded = EmbeddedRedis(var)
        self.embedded.ensure()
        environment.at_end(self.embedded.stop)
        assert self.embedded.process is not None
        self.redis_program = Program("redis", self.embedded.process)
        self.redis: redis.Redis = redis.Redis.from_url(self.embedded.url, decode_responses=True)
        environment.at_end(self.redis.close)
        self.env = clean_environment(
            BROKER_VAR=str(var),
            REDIS_URL=self.embedded.url,
            BROKER_NAMESPACE=NAMESPACE,
            BROKER_SANDBOX="1",
            BROKER_SANDBOX_URL=NOBODY,  # a section that needs the sandbox starts it
            BROKER_AGENT_AUTH="open",
            BROKER_LOG_LEVEL="WARNING",
            GITHUB_REPOSITORY=REPOSITORY,
            GITHUB_TOKEN="bench-token-of-no-worth",
            GITHUB_API_URL=github_url,
            GITHUB_WEBHOOK_SECRET=WEBHOOK_SECRET,
        )

    @property
    def redis_port(self) -> int:
        return int(self.embedded.url.rsplit(":", 1)[1].split("/")[0])

    def commands(self) -> dict[str, int]:
        """Commands by name since Redis started, also those inside scripts, without the ones of this question."""
        stats: Any = self.redis.info("commandstats")
        rows = {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items()}
        ours = ("info", "latency|latest", "latency|reset")
        return {name: count for name, count in rows.items() if name not in ours}


class Environment:
    """Use it in a ``with``: what it started ends with it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._stack = contextlib.ExitStack()
        self.folder = Path()
        self._migrated: Path | None = None
        self._numbers: Iterator[int] = iter(range(1, 10_000))

    def __enter__(self) -> Environment:
        self.folder = Path(tempfile.mkdtemp(prefix="broker-bench-"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def at_end(self, call: Callable[[], object]) -> None:
        self._stack.callback(call)

    def new_folder(self, name: str) -> Path:
        folder = self.folder / f"{name}-{next(self._numbers)}"
        folder.mkdir()
        return folder

    # Programs

    def program(self, *command: str, env: Mapping[str, str]) -> None:
        """Run something to its end."""
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            raise BenchFailed(f"{' '.join(command)}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")

    def command_process(self, module: str, env: Mapping[str, str] | None = None) -> CommandProcess:
        parent = os.getpid()
        log = self.folder / f"{module}-{next(self._numbers)}.log"
        with log.open("wb") as errors:
            # Its own session, as start_bound_process makes it, but with pipes: it ends when its input ends.
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=ROOT,
                env=dict(env or clean_environment()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
        started = CommandProcess(module, process, log)
        self.at_end(started.stop)
        return started

    def server(self, name: str, module: str, *arguments: str, env: Mapping[str, str]) -> Server:
        """A server that is given an open socket by its file number."""
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
            port = listener.getsockname()[1]
            log = self.folder / f"{name}-{port}.log"
            with log.open("wb") as output:
                process = start_bound_process(
                    [sys.executable, "-m", module, str(listener.fileno()), *arguments],
                    cwd=ROOT,
                    env=env,
                    output=output,
                    pass_fds=[listener.fileno()],
                )
        server = Server(name, process, log, port)
        self.at_end(server.stop)
        return server

    # What sections need

    def stores(self, name: str, github_url: str = NOBODY) -> Stores:
        """A new installation with an empty, migrated database."""
        folder = self.new_folder(name)
        if self._migrated is not None:
            shutil.copytree(self._migrated, folder, dirs_exist_ok=True)
            return Stores(self, name, folder, github_url)
        stores = Stores(self, name, folder, github_url)
        self.program("manage.py", "migrate", "--verbosity", "0", env=stores.env)
        self._migrated = self.new_folder("migrated")
        for file in (*folder.glob("*.sqlite3*"), folder / "secret_key"):
            shutil.copy(file, self._migrated)
        return stores

    def product(self, stores: Stores, **settings: str) -> Server:
        """The web part, started as the supervisor starts it."""
        return self.server("product", "broker_project.ops.supervisor.web", env={**stores.env, **settings})

    def counted(self, stores: Stores) -> tuple[Server, RoundTripCounter]:
        """The product with its database statements and Redis round trips counted."""
        round_trips = RoundTripCounter(stores.redis_port)
        round_trips.start()
        env = {**stores.env, "REDIS_URL": round_trips.url}
        server = self.server("counted", "bench.serve", "bench.counted:application", env=env)
        self.at_end(round_trips.stop)
        return server, round_trips

    def bare(self, stores: Stores) -> Server:
        env = clean_environment(BENCH_REDIS_URL=stores.embedded.url)
        return self.server("bare", "bench.serve", "bench.bare:application", env=env)

    def bare_assignment(self, stores: Stores, github: Server) -> Server:
        env = clean_environment(
            BENCH_REDIS_URL=stores.embedded.url,
            BENCH_GITHUB_URL=github.url,
            BENCH_DATABASE=str(self.new_folder("bare") / "bare.sqlite3"),
        )
        return self.server("bare assignment", "bench.serve", "bench.bare_assignment:application", env=env)

    def github(self) -> Server:
        return self.server("github", "bench.serve", "bench.github:application", env=clean_environment())

    def worker(self, stores: Stores, **settings: str) -> CommandProcess:
        """A program with Django set up on these stores; see :mod:`bench.workers`."""
        return self.command_process("bench.workers", {**stores.env, **settings})

    def load(self) -> CommandProcess:
        return self.command_process("bench.load")


def measured_round(
    load: CommandProcess, server: Server, others: Mapping[str, Program], **given: Any
) -> tuple[Round, Any]:
    """One round of load, with the CPU time that each process spent on it, and the generator's own answer."""
    programs = {"server": server, "load": load, **others}
    port = server.port
    before = {name: program.cpu_seconds for name, program in programs.items()}
    answer = load.ask("run", port=port, **given)
    spent = {name: program.cpu_seconds - before[name] for name, program in programs.items()}
    server.check()
    numbers = {name: answer[name] for name in ("seconds", "count", "p50_ms", "p95_ms", "p99_ms")}
    return Round(**numbers, cpu_seconds=spent), answer
