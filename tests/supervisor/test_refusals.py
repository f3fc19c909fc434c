"""What stops the start: one sentence, a non-zero exit, no traceback, and nothing left half done."""

from __future__ import annotations

import errno
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from broker_project.lib.redis.embedded_server import free_port
from broker_project.ops.supervisor.preflight import CannotStart, explain_bind, open_listener, url_of
from tests.support.broker_process import clean_environment, run_manage
from tests.support.old_postgres import old_postgres

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("supervisor")]


def refusal(var: Path, **settings: str) -> str:
    """Start the broker, which must refuse; its one sentence."""
    env = clean_environment(var, **{"PORT": str(free_port()), **settings})
    done = run_manage("broker", env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Broker cannot start: ")
    return lines[0].removeprefix("Broker cannot start: ")


@pytest.mark.process
def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(tmp_path, PORT=str(port))
    assert said.startswith(f"PORT {port} on 127.0.0.1 is already in use")
    # It was looked at first: nothing has been made yet.
    assert not (tmp_path / "broker.sqlite3").exists()
    assert not (tmp_path / "redis" / "appendonlydir").exists()


@pytest.mark.process
def test_a_redis_that_is_down(tmp_path: Path) -> None:
    said = refusal(tmp_path, REDIS_URL=f"redis://:very-secret-word@127.0.0.1:{free_port()}/0")
    assert said.startswith("REDIS_URL: no Redis answers there")
    assert "very-secret-word" not in said


@pytest.mark.process
def test_a_postgresql_that_is_down(tmp_path: Path) -> None:
    url = f"postgres://someone:very-secret-word@127.0.0.1:{free_port()}/broker"
    said = refusal(tmp_path, DATABASE_URL=url)
    assert said.startswith("DATABASE_URL: the database cannot be used")
    assert "very-secret-word" not in said


@pytest.mark.process
def test_a_postgresql_that_is_too_old(tmp_path: Path) -> None:
    with old_postgres("13.22") as port:
        said = refusal(tmp_path, DATABASE_URL=f"postgres://someone:very-secret-word@127.0.0.1:{port}/broker")
    assert said == "DATABASE_URL: the database is too old: PostgreSQL 14 or later is required (found 13.22)."


@pytest.mark.process
def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "broker.sqlite3").write_text("not a database at all " * 100)
    said = refusal(tmp_path)
    assert said == "DATABASE_URL: the database cannot be used: file is not a database."


@pytest.mark.process
def test_a_broken_env_file(tmp_path: Path) -> None:
    (tmp_path / "broken.env").write_text("PORT=8000\nthis is = not 'an assignment\n")
    said = refusal(tmp_path, BROKER_ENV_FILE=str(tmp_path / "broken.env"))
    assert said == "broken.env, line 2: this is not NAME=value."


@pytest.mark.process
def test_a_failing_migration_leaves_the_tables_as_they_were(tmp_path: Path) -> None:
    """A table that is in the way of a late migration: the earlier ones are taken back too."""
    path = tmp_path / "broker.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE django_q_schedule (id INTEGER)")
    said = refusal(tmp_path)
    assert said.startswith("DATABASE_URL: the database could not be migrated and was left as it was")
    assert "django_q_schedule" in said
    with closing(sqlite3.connect(path)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"django_q_schedule"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("applied", "sentence"),
    [
        (
            ("broker", "9999_later"),
            "the tables were made by a newer version of Broker (broker.9999_later).",
        ),
        (("auth", "0001_initial"), "the tables are half migrated: "),
    ],
)
def test_tables_of_another_version(tmp_path: Path, applied: tuple[str, str], sentence: str) -> None:
    with closing(sqlite3.connect(tmp_path / "broker.sqlite3")) as database, database:
        database.execute(
            "CREATE TABLE django_migrations (id INTEGER PRIMARY KEY, app TEXT, name TEXT, applied TEXT)"
        )
        database.execute("INSERT INTO django_migrations VALUES (1, ?, ?, '2030-01-01 00:00:00')", applied)
    assert refusal(tmp_path).startswith(f"DATABASE_URL: {sentence}")


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "host.invalid"])
def test_a_host_that_is_not_here(host: str) -> None:
    with pytest.raises(CannotStart, match=r"^HOST=.* is not an address of this machine\.$"):
        open_listener(host, free_port())


def test_a_port_that_only_root_may_open() -> None:
    denied = explain_bind(PermissionError(errno.EACCES, "Permission denied"), "127.0.0.1", 80)
    assert denied == "PORT 80 may not be opened by this user: choose one above 1023 with PORT=…."


def test_a_listener_is_found_under_an_address_that_can_be_called() -> None:
    for host, called in (("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "127.0.0.1")):
        port = free_port()
        with open_listener(host, port) as listener:
            assert url_of(listener) == f"http://{called}:{port}"
            socket.create_connection((called, port), timeout=5).close()
