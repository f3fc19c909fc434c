"""The threads of a process take turns to write, and nobody keeps a turn that is over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import IntegrityError, connection, transaction

from broker_project.lib.sqlite import base
from tasks.models import Agent

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite has one writer"),
]


def in_threads(count: int, call) -> list:
    def run(number: int):
        try:
            return call(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_a_crowd_of_writers_all_write() -> None:
    start = threading.Barrier(12)

    def write(number: int) -> None:
        start.wait()
        for _ in range(5):
            with transaction.atomic():
                agent, _made = Agent.objects.get_or_create(name="counter", defaults={"roles": []})
                Agent.objects.filter(pk=agent.pk).update(roles=[*agent.roles, number])

    in_threads(12, write)
    assert len(Agent.objects.get().roles) == 60


@pytest.mark.parametrize("how", ["commit", "error", "close"])
def test_the_turn_is_given_back(how: str) -> None:
    def write(number: int) -> None:
        if how == "commit":
            with transaction.atomic():
                Agent.objects.create(name=f"agent-{number}")
        elif how == "error":
            with pytest.raises(IntegrityError), transaction.atomic():
                Agent.objects.bulk_create([Agent(name=f"agent-{number}"), Agent(name=f"agent-{number}")])
        else:
            with transaction.atomic():
                Agent.objects.create(name=f"agent-{number}")
                connection.close()

    in_threads(3, write)
    assert not base._turn.lock.locked()
    with transaction.atomic():
        assert base._turn.lock.locked()
        Agent.objects.create(name="afterwards")
    assert Agent.objects.count() == (4 if how == "commit" else 1)


def test_a_read_needs_no_turn() -> None:
    Agent.objects.create(name="one")
    with transaction.atomic():
        Agent.objects.create(name="two")
        assert in_threads(2, lambda _number: Agent.objects.count()) == [1, 1]
