"""A PostgreSQL server for one test session: own folder, loopback only, gone afterwards."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from broker_project.lib.redis.embedded_server import free_port

START_SECONDS = 60
PR_SET_PDEATHSIG = 1
# Nothing here has to survive a power cut; several web processes and clusters may be connected at once.
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "4GB",
    "autovacuum": "off",
    "timezone": "UTC",
}


class NoPostgres(Exception):
    """What this machine lacks, in words."""


class PostgresServer:
    """A running server. ``url`` names it without a database: add ``/name``, or ask for ``database(name)``."""

    def __init__(self, command: list[str], user: str | None, port: int, folder: Path) -> None:
        self.command, self.user, self.folder = command, user, folder
        self.url = f"postgres://broker@127.0.0.1:{port}"
        self.process = self._start()

    def database(self, name: str = "postgres") -> str:
        return f"{self.url}/{name}"

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.command,
            user=self.user,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        _wait_until_ready(process, self.database())
        return process

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # "fast": open connections are closed
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)

    def restart(self) -> None:
        """Gone and there again; what was committed is kept."""
        self._end()
        self.process = self._start()

    def stop(self) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def copy_database(self, source: str, target: str) -> None:
        """Replace ``target`` by a copy of ``source``; whoever is connected to either is cut off."""
        with psycopg.connect(self.database(), autocommit=True) as connection:
            connection.execute(
                b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [source]
            )
            connection.execute(f"DROP DATABASE IF EXISTS {target} WITH (FORCE)".encode())
            connection.execute(f"CREATE DATABASE {target} TEMPLATE {source}".encode())


def binaries() -> Path:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].split(".")[0])
    )
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


def start_postgres() -> PostgresServer:
    """A running, empty server with the superuser ``broker``; it ends with us. Raises :class:`NoPostgres`."""
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
    options = [part for name, value in OPTIONS.items() for part in ("-c", f"{name}={value}")]
    serve = [str(bin_folder / "postgres"), "-D", str(data), "-p", str(port), "-k", str(folder), *options]
    try:
        return PostgresServer(serve, user, port, folder)
    except NoPostgres:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    server = start_postgres()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty database on a server of its own. Raises :class:`NoPostgres`."""
    with running_postgres() as server:
        yield server.database()


def _die_with_parent() -> None:
    """SIGQUIT makes PostgreSQL end at once and take its own children along."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


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
