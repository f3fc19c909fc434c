"""Backup while everything runs, lose everything, restore, go on: tokens, leases, items and matches."""

from __future__ import annotations

import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_project.lib.redis import keys as k
from tests.support.broker_process import run_manage
from tests.support.postgres_server import NoPostgres, postgres_server
from tests.support.server import BrokerServer, BrokerWorld

pytestmark = pytest.mark.process

GROUP = pytest.mark.xdist_group("postgres")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, GROUP])])
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    common = {"BROKER_AGENT_AUTH": "token", "BROKER_PRIORITY_GATE": "assignable"}
    if request.param == "sqlite":
        yield common
        return
    try:
        with postgres_server() as url:
            yield {**common, "DATABASE_URL": url.replace("broker@", "broker:not-asked-for@")}
    except NoPostgres as lack:
        pytest.skip(f"PostgreSQL: {lack}")


def new_server(world: BrokerWorld, folder: Path, settings: dict[str, str]) -> BrokerServer:
    folder.mkdir()
    server = BrokerServer(world, folder, 1, **settings)
    world._servers.append(server)
    return server


def ask(server: BrokerServer, token: str, agent: str) -> dict[str, Any]:
    with server.client(token) as client:
        answer = client.post("/api/v1/request-task", json={"agent_id": agent, "timeout": 0})
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()
    return task


def run_pollers(server: BrokerServer, *names: str) -> None:
    """Each once, in this order, in one process: starting one takes longer than a run."""
    code = "from broker_project.ops.clock.pollers import run_poller as run\n"
    code += f"print(*[run(name).outcome for name in {names!r}])"
    said = server.manage("shell", "--no-imports", "-c", code)
    assert said.split() == ["done"] * len(names), said


def posts(server: BrokerServer) -> Counter[str]:
    """How often each of the sandbox's pages was posted."""
    addresses = [
        word for status in server.sandbox.state("mastodon")["statuses"] for word in status["text"].split()
    ]
    return Counter(word for word in addresses if word.startswith("http"))


@pytest.mark.slow
def test_everything_is_lost_and_restored_and_goes_on(
    broker_world: BrokerWorld, settings: dict[str, str], tmp_path: Path
) -> None:
    server = new_server(broker_world, tmp_path / "var", settings)
    server.manage("migrate", "--verbosity", "0")
    run_pollers(server, "issues", "feeds", "fixtures", *["items"] * 14)
    server.start()
    token, other = server.create_agent("agent-1"), server.create_agent("agent-2")
    task = ask(server, token, "agent-1")
    broker_world.redis.set("poppo:flags:debug:enabled", '{"reason": "kept"}')
    posted_before = posts(server)
    assert posted_before

    backup = tmp_path / "backup.tgz"
    said = server.manage("backup", str(backup))
    assert "parts" in said
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert list(server.var.glob(".backup-*")) == []

    # The world goes on after the backup: one more post and one more task that it knows nothing of.
    server.manage("poll", "items", "--all", "--force")
    assert posts(server).total() > posted_before.total(), "something was posted after the backup"
    later = ask(server, other, "agent-2")
    in_use = run_manage("restore", str(backup), "--force", env=server.env)
    assert (in_use.returncode, in_use.stdout) == (1, "")
    assert "stop Broker first" in in_use.stderr

    server.stop()
    shutil.rmtree(server.var)
    broker_world.redis.flushall()
    if "DATABASE_URL" in settings:
        said = run_manage("restore", str(backup), env=server.env).stderr
        assert "the database is not empty; --force replaces everything in it" in said
        broker_world.redis.set("poppo:issue:999999", "{}")
        server.manage("restore", str(backup), "--force")
    else:
        server.manage("restore", str(backup))
    assert stat.S_IMODE((server.var / "secret_key").stat().st_mode) == 0o600
    assert not broker_world.redis.exists("poppo:issue:999999"), "what Redis knew of the lost time is gone"
    assert broker_world.redis.get("poppo:flags:debug:enabled") == '{"reason": "kept"}'
    assert (server.var / "gcs" / "schedule" / "fixture_status.csv").exists()

    server.start()
    with server.client(token) as client:
        beat = client.post(f"/api/v1/assignments/{task['assignment_id']}/heartbeat", json={"progress": "on"})
        assert (beat.status_code, beat.json()["cancel"]) == (200, False), beat.text
        current = client.get("/api/v1/agents/agent-1/current-task")
        assert current.json()["assignment_id"] == task["assignment_id"]
    # What was handed out after the backup is not known any more: its agent is told so and asks again.
    with server.client(other) as client:
        assert client.post(
            f"/api/v1/assignments/{later['assignment_id']}/heartbeat", json={}
        ).status_code in (404, 409)
    run_pollers(server, "issues", "zombies", "feeds", "fixtures", "dispatch")
    again = ask(server, other, "agent-2")
    assert again["issue_id"] != task["issue_id"], "one that is worked on is given to nobody else"
    with server.client(token) as client:
        done = client.post(f"/api/v1/assignments/{task['assignment_id']}/complete", json={})
        assert done.status_code == 200, done.text
    server.manage("poll", "items", "--all", "--force")
    counted = posts(server)
    assert set(counted.values()) == {1}, "nothing was posted twice"
    assert counted.total() >= posted_before.total()


@pytest.mark.slow
def test_a_backup_restores_over_what_is_there_and_is_itself_replaced(
    broker_world: BrokerWorld, tmp_path: Path
) -> None:
    server = new_server(broker_world, tmp_path / "var", {"BROKER_AGENT_AUTH": "token"})
    server.manage("migrate", "--verbosity", "0")
    backup = tmp_path / "backup.tgz"
    server.manage("backup", str(backup), "--without-redis")
    first = backup.read_bytes()
    token = server.create_agent("late")
    server.manage("restore", str(backup), "--force")
    server.start()
    with server.client(token) as client:
        ask_late = client.post("/api/v1/request-task", json={"agent_id": "late", "timeout": 0})
    assert ask_late.status_code == 401, "the agent was made after the backup"
    server.manage("backup", str(backup))
    assert backup.read_bytes() != first
    # Redis' keys of the registry that are kept all belong to components that exist.
    assert {"flags", "config", "stats"} <= {spec.component for spec in k.REGISTRY.values()}


BEFORE = Path(__file__).parent.parent / "data" / "backups" / "everything.tgz"  # as commit 1f20db6 wrote it


@pytest.mark.slow
def test_a_backup_of_an_earlier_version_restores(broker_world: BrokerWorld, tmp_path: Path) -> None:
    server = BrokerServer(broker_world, tmp_path, 1)
    said = server.manage("restore", str(BEFORE))
    assert said.startswith("Restored the backup of 2026-"), said
    assert "the database, 1 stored files, 2 keys of Redis." in said
    assert (server.var / "gcs" / "reports" / "2026-01-01" / "1.html").read_text() == "<p>report</p>"
    assert len((server.var / "secret_key").read_text()) > 32
    assert broker_world.redis.get("poppo:config:claude:timeout") == "900"
    server.manage("migrate", "--verbosity", "0")
    code = "from django.contrib.auth.models import User; from tasks.models import Agent\n"
    code += "print(User.objects.get().username, Agent.objects.get().name)"
    assert server.manage("shell", "--no-imports", "-c", code).split() == ["boss", "agent-1"]
