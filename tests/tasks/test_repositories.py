"""Several repositories: each with its namespace, one choice over all of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.ops.clock.pollers import PollOptions
from tasks.models import Assignment, Repository
from tasks.pollers import sweep_zombies
from tasks.repositories import forget_repositories
from tasks.services.sync import sync_repository
from tests.tasks.world import BODY, PERSON, World

pytestmark = pytest.mark.database

OTHER = "/github/repos/broker-sandbox/other"


@pytest.fixture
def other(world: World) -> Repository:
    world.sandbox.control("POST", "github/repositories", {"repository": "broker-sandbox/other"})
    repository = Repository.objects.create(full_name="broker-sandbox/other", namespace="second")
    forget_repositories()
    return repository


def open_other(world: World, *labels: str) -> int:
    data = {"title": "elsewhere", "body": BODY, "labels": list(labels)}
    answer = world.sandbox.client.post(f"{OTHER}/issues", json=data, headers=PERSON)
    answer.raise_for_status()
    number: int = answer.json()["number"]
    return number


def labels_of(world: World, number: int) -> set[str]:
    found = world.sandbox.client.get(f"{OTHER}/issues/{number}/labels", headers=PERSON).json()
    return {label["name"] for label in found}


def sync_all(world: World, other: Repository) -> None:
    world.sync()
    other.refresh_from_db()
    sync_repository(other, timezone.now(), lambda text: None)


def test_the_best_of_all_repositories_is_given_and_everything_carries_its_repository(
    world: World, other: Repository
) -> None:
    here = world.open_issue("P1", "BACKENDCODER")
    there = open_other(world, "P0", "BACKENDCODER")
    assert here == there, "the same number in both: nothing may mix them up"
    sync_all(world, other)
    task: dict[str, Any] = world.given()
    assert (task["repository"], task["issue_id"]) == ("broker-sandbox/other", there)
    assert labels_of(world, there) == {"P0", "BACKENDCODER", "in-progress", "agent-1"}
    assert world.labels(here) == {"P1", "BACKENDCODER"}
    names = keyspace().sibling("second")
    assert world.store.smembers(names.key(k.ISSUES_PROCESSING)) == {str(there)}
    assert world.store.smembers(world.key(k.ISSUES_PROCESSING)) == set()
    assert world.store.get(names.key(k.AGENT_CURRENT_TASK, agent="agent-1")) == str(there)
    assert world.ask("agent-2").status_code == 204, "P0 is open elsewhere, so P1 waits here"
    world.post(f"/assignments/{task['assignment_id']}/complete")
    assert labels_of(world, there) == {"P0", "BACKENDCODER", "needs-review"}
    world.sandbox.client.patch(f"{OTHER}/issues/{there}", json={"state": "closed"}, headers=PERSON)
    sync_all(world, other)
    assert world.given("agent-2")["repository"] == "broker-sandbox/demo"


def test_the_next_request_finishes_what_the_agent_has_anywhere(world: World, other: Repository) -> None:
    open_other(world, "P0", "BACKENDCODER")
    sync_all(world, other)
    first = world.given()
    here = world.open_issue("P0", "BACKENDCODER")
    sync_all(world, other)
    assert world.given()["issue_id"] == here
    assert Assignment.objects.get(pk=first["assignment_id"]).state == "completed"
    assert "needs-review" in labels_of(world, first["issue_id"])


def test_a_disabled_repository_gives_nothing(world: World, other: Repository) -> None:
    open_other(world, "P0", "BACKENDCODER")
    sync_all(world, other)
    Repository.objects.filter(pk=other.pk).update(is_enabled=False)
    forget_repositories()
    assert world.ask().status_code == 204


def test_the_sweep_looks_at_all_of_them(world: World, other: Repository) -> None:
    there = open_other(world, "P0", "BACKENDCODER")
    sync_all(world, other)
    world.given()
    Assignment.objects.update(last_heartbeat_at=timezone.now() - timedelta(seconds=1801))
    assert sweep_zombies(PollOptions())["lost"] == 1
    assert labels_of(world, there) == {"P0", "BACKENDCODER"}
