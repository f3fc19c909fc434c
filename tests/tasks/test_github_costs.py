"""What a task costs in requests to GitHub: the figures that the simulation reckons with."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from bench.simulation import DEVELOPMENT, REVIEW, Cost
from tasks.models import Issue
from tasks.offers.projector import rebuild
from tests.tasks.world import World


def spent(world: World) -> Cost:
    calls = world.requests()
    return Cost(len(calls), sum(not call.startswith("GET ") for call in calls))


def test_requests_of_a_development_task(world: World) -> None:
    world.open_issue("P1", "BACKENDCODER")
    world.sync()
    world.sandbox.clear_calls()
    task = world.given()
    assert world.post(f"/assignments/{task['assignment_id']}/complete").status_code == 200
    assert spent(world) == DEVELOPMENT


def test_requests_of_a_review(world: World) -> None:
    number = world.open_issue("P1", "BACKENDCODER", "needs-review")
    world.open_pull(number, "feature/x")
    world.sync()
    Issue.objects.update(review_detected_at=timezone.now() - timedelta(hours=1))
    world.sync()
    rebuild(world.repository, timezone.now())
    world.sandbox.clear_calls()
    task = world.given()
    assert task["task_type"] == "review"
    assert world.post(f"/assignments/{task['assignment_id']}/complete").status_code == 200
    assert spent(world) == REVIEW
