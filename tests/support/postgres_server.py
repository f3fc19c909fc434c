"""A PostgreSQL server for one test session: own folder, loopback only, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from broker_project.lib.embedded_redis import free_port

START_SECONDS = 60


class NoPostgres(Exception):
    """What this machine lacks, in words."""


def binaries() -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not installed:
        raise NoPostgres("PostgreSQL is not installed")
    return installed[-1].parent


def server_user() -> str | None:
    """PostgreSQL refuses to run as root; its own user does then. None: as we are."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise NoPostgres("root may not run PostgreSQL, and there is no user postgres") from None


class PostgresServer:
    """A running server; ``url`` is an empty database with a superuser."""

    def __init__(self, command: list[str], user: str | None, port: int) -> None:
        self.command, self.user, self.port = command, user, port
        self.url = self.database("postgres")
        self.process = self._start()

    def database(self, name: str) -> str:
        return f"postgres://broker@127.0.0.1:{self.port}/{name}"

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.command, user=self.user, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait_until_ready(process, self.url)
        return process

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # "fast": open connections are closed
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def restart(self) -> None:
        """Gone and there again; what was committed is kept."""
        self.stop()
        self.process = self._start()

    def copy_database(self, source: str, target: str) -> None:
        """Replace ``target`` by a copy of ``source``; whoever is connected to either is cut off."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [source]
            )
            connection.execute(f"DROP DATABASE IF EXISTS {target} WITH (FORCE)".encode())
            connection.execute(f"CREATE DATABASE {target} TEMPLATE {source}".encode())


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server in a folder of its own. Raises :class:`NoPostgres`."""
    bin_folder, user = binaries(), server_user()
    folder = Path(tempfile.mkdtemp(prefix="broker-pg-"))
    if user is not None:
        shutil.chown(folder, user)
    data, port = folder / "data", free_port()
    command = [str(bin_folder / "initdb"), "-D", str(data)]
    command += ["-U", "broker", "-A", "trust", "-E", "UTF8", "--no-sync"]
    made = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
    if made.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoPostgres(f"initdb failed: {made.stderr[-300:]}")
    options = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-k", str(folder)]
    server = None
    try:
        server = PostgresServer([str(bin_folder / "postgres"), "-D", str(data), *options], user, port)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty database with a superuser. Raises :class:`NoPostgres`."""
    with running_postgres() as server:
        yield server.url


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NoPostgres("PostgreSQL did not start")
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise NoPostgres("PostgreSQL did not answer")
