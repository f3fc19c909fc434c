"""The judge of a chaos run: what counts as broken, and how idleness and recovery are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.idleness import (
    Recovery,
    gaps,
    idle_stretches,
    middle_and_worst,
    recoveries,
    times_with_work,
)
from tests.soak.judge import (
    Hold,
    Row,
    handed_out_twice,
    holds,
    several_tasks_for_one_id,
    unrecorded_tasks,
    unreported_completions,
)
from tests.soak.ledger import FaultRun, Ledger
from tests.soak.sightings import REQUEST, SILENCE, Sighting

LEASE = 12.0


def asked(at: float, request_id: str, agent: str = "a") -> Sighting:
    return Sighting(at, agent, REQUEST, request_id=request_id)


def given(at: float, request_id: str, assignment: int, issue: int = 7, agent: str = "a") -> Sighting:
    return Sighting(
        at,
        agent,
        REQUEST,
        is_answer=True,
        request_id=request_id,
        assignment=assignment,
        issue=issue,
        status=200,
        state="live",
        lease_until=at + LEASE,
    )


def sent(at: float, call: str, assignment: int, agent: str = "a") -> Sighting:
    return Sighting(at, agent, call, assignment=assignment)


def beaten(at: float, assignment: int, **more: object) -> Sighting:
    answer = Sighting(
        at, "a", "heartbeat", is_answer=True, assignment=assignment, status=200, lease_until=at + LEASE
    )
    return replace(answer, **more)  # type: ignore[arg-type]


def row(pk: int, state: str = "completed", request_id: str = "r1", ended: float | None = 50.0) -> Row:
    return Row(pk, "a", 7, state, request_id, 1.0, ended)


def test_a_sighting_survives_its_line() -> None:
    seen = given(3.5, "r1", 4)
    assert Sighting.from_line(seen.as_line()) == seen
    lost = Sighting(1.0, "a", REQUEST, is_answer=True, is_hang_up=True)
    assert Sighting.from_line(lost.as_line()) == lost


@pytest.mark.parametrize(
    ("after", "until"),
    [
        ([], 1 + LEASE),
        ([beaten(5, 1)], 5 + LEASE),
        ([beaten(5, 1), sent(6, "complete", 1)], 6),
        ([beaten(5, 1, is_cancelled=True)], 5),
        ([beaten(5, 1, status=409, lease_until=0.0)], 5),
        ([asked(4, "r2")], 4),
        ([asked(4, "r1"), given(5, "r1", 1)], 5 + LEASE),
        ([sent(30, "complete", 1)], 1 + LEASE),
    ],
)
def test_how_long_an_agent_holds_an_issue(after: list[Sighting], until: float) -> None:
    (hold,) = holds([asked(0, "r1"), given(1, "r1", 1), *after])
    assert (hold.since, hold.until) == (1, until)


@pytest.mark.parametrize(("at", "is_wrong"), [(5.9, True), (6.1, False)])
def test_an_issue_must_not_be_handed_out_while_somebody_holds_it(at: float, is_wrong: bool) -> None:
    seen = [given(1, "r1", 1), sent(6, "release", 1), given(at, "r9", 2, agent="b")]
    assert bool(handed_out_twice(holds(seen))) == is_wrong


def test_other_issues_may_be_held_at_the_same_time() -> None:
    assert not handed_out_twice(holds([given(1, "r1", 1), given(2, "r9", 2, issue=8, agent="b")]))


def test_one_request_id_gives_one_task() -> None:
    seen = [given(1, "r1", 1), given(2, "r1", 1), given(3, "r1", 2, agent="b")]
    assert not several_tasks_for_one_id(seen)
    assert several_tasks_for_one_id([*seen, given(4, "r1", 3)]) == [
        "a was given [1, 3] for the request_id r1"
    ]


def test_what_was_handed_out_is_on_record() -> None:
    seen = [given(1, "r1", 1)]
    assert not unrecorded_tasks(seen, [row(1)])
    assert unrecorded_tasks(seen, [row(1, request_id="r2")])
    assert unrecorded_tasks(seen, [])


@pytest.mark.parametrize(
    ("more", "rows", "superseded", "unasked"),
    [
        ([sent(9, "complete", 1)], [row(1)], [], 0),
        ([asked(9, "r2")], [row(1)], [1], 0),
        ([asked(9, "r1")], [row(1)], [], 1),  # a repeat never ends what the first was given
        ([asked(60, "r2")], [row(1)], [], 1),  # too late to have ended it
        ([asked(9, "r2")], [row(1, "lost")], [], 0),
    ],
)
def test_completed_without_a_word(
    more: list[Sighting], rows: list[Row], superseded: list[int], unasked: int
) -> None:
    found = unreported_completions([asked(0, "r1"), given(1, "r1", 1), *more], rows)
    assert (found[0], len(found[1])) == (superseded, unasked)


def test_a_request_that_came_before_ends_nothing() -> None:
    """The agent hung up on r0 and was given a task for r1; r0 arrives late and must not end it."""
    found = unreported_completions([asked(0, "r0"), asked(1, "r1"), given(2, "r1", 1)], [row(1)])
    assert (found[0], len(found[1])) == ([], 1)


def test_what_the_ledger_makes_of_sightings() -> None:
    ledger = Ledger()
    ended = Sighting(4, "a", "complete", is_answer=True, assignment=1, status=200, state="completed")
    hung_up = Sighting(5, "a", REQUEST, is_answer=True, is_hang_up=True)
    for seen in (
        given(1, "r1", 1),
        given(3, "r1", 1),
        Sighting(2, "a", SILENCE, assignment=1),
        ended,
        hung_up,
    ):
        ledger.see(seen)
    assert (ledger.tasks, ledger.endings, ledger.silences, ledger.disconnects) == (
        {1: 1},
        {1: "completed"},
        1,
        1,
    )


def test_when_there_was_work() -> None:
    opened = {1: 0.0, 2: 10.0}
    taken = [Row(1, "a", 1, "live", None, 4.0, None), Row(2, "a", 1, "live", None, 8.0, None)]
    assert times_with_work(opened, taken, 0, 20) == [(0, 4), (10, 20)]
    assert times_with_work(opened, taken, 2, 3) == [(2, 3)]


def test_gaps_between_spans() -> None:
    assert gaps([(2, 4), (3, 6), (8, 30)], 0, 20) == [(0, 2), (6, 8)]
    assert gaps([], 0, 5) == [(0, 5)]


def test_idleness_counts_only_while_there_was_work() -> None:
    held = [Hold("a", "r1", 1, 7, 2.0, 100.0, ended=5.0)]
    found = idle_stretches(["a", "b"], held, [(0, 8)], 0, 10)
    assert [(one.agent, one.began, one.seconds) for one in found] == [("b", 0, 8), ("a", 5, 3), ("a", 0, 2)]


def test_recovery_is_counted_from_the_end_of_a_fault() -> None:
    runs = [FaultRun("redis-full", {}, 10.0, 20.0), FaultRun("kill-web", {}, 40.0, 40.0)]
    assert recoveries(runs, [5.0, 9.0, 12.0, 23.0, 30.0]) == [
        Recovery("redis-full", 3.0, 11.0),
        Recovery("kill-web", None, None),
    ]
    assert middle_and_worst([1.0, 3.0, None]) == (3.0, float("inf"))
