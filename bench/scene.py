"""What a run has on its stage: a temporary folder, databases, Redis servers, servers, stand-ins, programs.

Everything is started through a :class:`Scene` and ended with it, however the run ends. Loopback only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import psutil
import redis

from bench.figures import Round
from bench.turns import TurnCounter
from broker_project.lib.processes import die_with_parent, kill_group, start_bound_process, wait_until_gone
from broker_project.lib.redis.embedded_server import EmbeddedRedis

ROOT = Path(__file__).resolve().parent.parent
OURS = ("BROKER_", "DJANGO_", "GITHUB_", "GEMINI_", "MASTODON_", "API_FOOTBALL_", "FEED_", "FIXTURE_", "GCS_")
STORES = ("REDIS_URL", "DATABASE_URL", "STORAGE_EMULATOR_HOST", "PORT", "HOST", "WEB_WORKERS")
START_SECONDS = 60.0
STOP_SECONDS = 6.0
ANSWER_SECONDS = 540.0
NAMESPACE = "bench"
WEBHOOK_SECRET = "webhook-secret-of-the-bench"
REPOSITORY = "bench/issues"
WANTED_FILES = 16_384


class BenchFailed(Exception):
    """The bench itself did not work; says nothing about the product."""


def clean_environment(**more: str) -> dict[str, str]:
    """The environment of a stranger's shell, and what is asked for."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(OURS) and name not in STORES
    }
    return {**kept, "BROKER_ENV_FILE": "", "PYTHONUNBUFFERED": "1", **more}


def raise_file_limit() -> int:
    """As many open files as the machine lets us have, for us and for whatever we start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft


class Program:
    """A child process: its end, its CPU time, its memory."""

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
        """What only this process has in memory."""
        return int(self.seen.memory_full_info().uss)

    @property
    def threads(self) -> int:
        return int(self.seen.num_threads())

    def check(self) -> None:
        if self.process.poll() is not None:
            raise BenchFailed(f"{self.name} ended with {self.process.returncode}:\n{self.last_words()}")

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log and self.log.exists() else ""

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            if not wait_until_gone(self.process, time.monotonic() + STOP_SECONDS):
                kill_group(self.process)
                self.process.wait()


class Server(Program):
    """Whoever asks for its port waits until it answers: several can be started before the first is needed."""

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
                raise BenchFailed(f"{self.name} does not answer:\n{self.last_words()}")
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


class Talker(Program):
    """A program of :mod:`bench.lines`: ``ask`` tells it what to do and waits for the answer."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        super().__init__(name, process, log)
        assert process.stdin is not None
        assert process.stdout is not None
        self._to: IO[bytes] = process.stdin
        self._from: IO[bytes] = process.stdout

    def tell(self, command: str, **given: Any) -> None:
        """Without waiting; :meth:`hear` has the answer."""
        self._to.write(json.dumps([command, given]).encode() + b"\n")
        self._to.flush()

    def hear(self) -> Any:
        line = self._from.readline()
        if not line:
            raise BenchFailed(f"{self.name} ended:\n{self.last_words()}")
        document = json.loads(line)
        if "error" in document:
            raise BenchFailed(f"{self.name}: {document['error']}\n{self.last_words()}")
        return document["answer"]

    def ask(self, command: str, **given: Any) -> Any:
        self.tell(command, **given)
        return self.hear()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._to.close()
        super().stop()
        self._from.close()


class Stores:
    """An installation of the product: a folder with its database, and a Redis."""

    def __init__(self, scene: Scene, name: str, var: Path, github_url: str) -> None:
        self.name = name
        self.var = var
        self.embedded = EmbeddedRedis(var)
        self.embedded.ensure()
        scene.at_end(self.embedded.stop)
        assert self.embedded.process is not None
        self.redis_program = Program("redis", self.embedded.process)
        self.redis: redis.Redis = redis.Redis.from_url(self.embedded.url, decode_responses=True)
        scene.at_end(self.redis.close)
        self.env = clean_environment(
            BROKER_VAR=str(var),
            REDIS_URL=self.embedded.url,
            BROKER_NAMESPACE=NAMESPACE,
            BROKER_SANDBOX="1",
            # Nothing answers there: what a section needs of the sandbox it starts itself.
            BROKER_SANDBOX_URL="http://127.0.0.1:9",
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
        """Commands by name since Redis started, those inside scripts included; not what asking costs."""
        stats: Any = self.redis.info("commandstats")
        rows = {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items()}
        ours = ("info", "latency|latest", "latency|reset")
        return {name: count for name, count in rows.items() if name not in ours}


class Scene:
    """The stage. Use it in a ``with``."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._stack = contextlib.ExitStack()
        self.folder = Path()
        self._migrated: Path | None = None
        self._numbers: Iterator[int] = iter(range(1, 10_000))

    def __enter__(self) -> Scene:
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

    def talker(self, module: str, env: Mapping[str, str] | None = None) -> Talker:
        parent = os.getpid()
        log = self.folder / f"{module}-{next(self._numbers)}.log"
        with log.open("wb") as errors:
            # Its own session, as start_bound_process does it, but with pipes: end of input ends it.
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
        talker = Talker(module, process, log)
        self.at_end(talker.stop)
        return talker

    def server(self, name: str, module: str, *arguments: str, env: Mapping[str, str]) -> Server:
        """A server on a socket that is opened here, started with its number."""
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

    # What the sections ask for

    def stores(self, name: str, github_url: str = "http://127.0.0.1:9") -> Stores:
        """A new installation with an empty, migrated database."""
        folder = self.new_folder(name)
        stores = Stores(self, name, folder, github_url)
        if self._migrated is None:
            self.program("manage.py", "migrate", "--verbosity", "0", env=stores.env)
            self._migrated = self.new_folder("migrated")
        else:
            for file in self._migrated.iterdir():
                shutil.copy(file, folder)
            return stores
        for file in folder.glob("*.sqlite3*"):
            shutil.copy(file, self._migrated)
        shutil.copy(folder / "secret_key", self._migrated)
        return stores

    def product(self, stores: Stores, **settings: str) -> Server:
        """The web part, started as the supervisor starts it."""
        return self.server("product", "broker_project.ops.supervisor.web", env={**stores.env, **settings})

    def counted(self, stores: Stores) -> tuple[Server, TurnCounter]:
        """The product with its statements and its round trips counted."""
        turns = TurnCounter(stores.redis_port)
        turns.start()
        env = {**stores.env, "REDIS_URL": turns.url}
        server = self.server("counted", "bench.serve", "bench.counted:application", env=env)
        self.at_end(turns.stop)
        return server, turns

    def bare(self, stores: Stores, *options: str) -> Server:
        env = clean_environment(BENCH_REDIS_URL=stores.embedded.url)
        return self.server("bare", "bench.serve", "bench.bare:application", *options, env=env)

    def bare_assignment(self, stores: Stores, github: Server) -> Server:
        env = {
            **stores.env,
            "DJANGO_SETTINGS_MODULE": "broker_project.settings",
            "BENCH_REDIS_URL": stores.embedded.url,
            "BENCH_GITHUB_URL": github.url,
            "BENCH_DATABASE": str(self.new_folder("bare") / "bare.sqlite3"),
        }
        return self.server("bare assignment", "bench.serve", "bench.bare_assignment:application", env=env)

    def github(self) -> Server:
        return self.server("github", "bench.serve", "bench.github:application", env=clean_environment())

    def worker(self, stores: Stores, **settings: str) -> Talker:
        """A program with Django set up on these stores; see :mod:`bench.work`."""
        return self.talker("bench.work", {**stores.env, **settings})

    def load(self) -> Talker:
        return self.talker("bench.load")


def measured_round(
    load: Talker, server: Server, others: Mapping[str, Program], **given: Any
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
