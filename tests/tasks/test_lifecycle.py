"""The choice (seed 001, section 3.2), one table of cases a rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tasks.lifecycle import (
    Gate,
    IssueFacts,
    NotOffered,
    Offer,
    PullFacts,
    TaskType,
    agent_id_problem,
    best_bucket,
    choose,
    classify,
    closed_issues,
    priority_of,
    why_not,
)
from tasks.reasons import BranchProblem, Reason, ReasonCode

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
ROLES = {"BACKENDCODER", "FRONTENDCODER"}
DELAY = timedelta(minutes=5)
PULL = PullFacts(90, is_open=True, fingerprint="abc:1")


def issue(number: int = 1, *labels: str, **changes: object) -> IssueFacts:
    facts = IssueFacts(number, f"issue {number}", labels or ("P0", "BACKENDCODER"), NOW - timedelta(days=1))
    return replace(facts, **changes)  # type: ignore[arg-type]


def offer(number: int, priority: int | None = 0, **changes: object) -> Offer:
    base = Offer(number, TaskType.DEVELOPMENT, ("BACKENDCODER",), priority, NOW - timedelta(days=1))
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([], None),
        (["P0"], 0),
        (["P2", "P10"], 2),
        (["P10"], 10),
        (["p0"], None),
        (["P"], None),
        (["P1x"], None),
        (["xP1"], None),
        (["P01"], 1),
        (["P３"], None),
        (["P1234567"], 1234567),
        (["P" + "9" * 49], 2**31 - 1),
        (["priority P1"], None),
    ],
)
def test_a_priority_is_p_and_digits(labels: list[str], expected: int | None) -> None:
    assert priority_of(labels) == expected


REVIEW = ("P0", "BACKENDCODER", "needs-review")
TOO_LONG = Reason.of(ReasonCode.BRANCH_REFUSED, problem=BranchProblem.TOO_LONG)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (issue(), ""),
        (issue(1, "P0", "BACKENDCODER", "in-progress"), "labelled in-progress"),
        (issue(1, "P0", "BACKENDCODER", "story"), "labelled story"),
        (issue(1, "P0", "BACKENDCODER", "epic"), "labelled epic"),
        (issue(1, "P0", "BACKENDCODER", "parked"), "parked for a person"),
        (issue(1, "P0"), "no role label"),
        (issue(1, "P0", "backendcoder"), "no role label"),
        (issue(1, "BACKENDCODER"), "no priority label"),
        (issue(is_taken=True), "an agent has it"),
        (issue(has_deliverables=False), "no section 成果物"),
        (issue(branch_problem=TOO_LONG), "branch name refused: too long"),
        (issue(1, *REVIEW), "no open pull request is linked"),
        (issue(1, *REVIEW, pull=replace(PULL, is_open=False)), "no open pull request is linked"),
        (issue(1, *REVIEW, pull=PULL), "the wish for a review was not seen yet"),
        (issue(1, *REVIEW, pull=PULL, review_detected_at=NOW), ""),
        (issue(1, "BACKENDCODER", "needs-review", pull=PULL, review_detected_at=NOW), ""),
        (issue(1, *REVIEW, pull=PULL, review_detected_at=NOW, branch_problem=TOO_LONG), ""),
        (issue(1, *REVIEW, pull=PULL, review_detected_at=NOW, has_deliverables=False), "no section 成果物"),
        (
            issue(1, *REVIEW, pull=PULL, review_detected_at=NOW, reviewed_fingerprint="abc:1"),
            "reviewed; waits for a new commit or comment",
        ),
        (issue(1, *REVIEW, pull=PULL, review_detected_at=NOW, reviewed_fingerprint="old:1"), ""),
        (issue(1, "BACKENDCODER", is_fix=True, has_deliverables=False), ""),
        (issue(1, "P0", is_fix=True), "no role label"),
    ],
)
def test_what_can_be_handed_out_at_all(facts: IssueFacts, expected: str) -> None:
    verdict = classify(facts, ROLES, DELAY)
    assert (str(verdict.reason) if isinstance(verdict, NotOffered) else "") == expected


@pytest.mark.parametrize(("minutes", "is_given"), [(4.99, False), (5, True), (6, True)])
def test_a_review_is_due_at_exactly_the_delay(minutes: float, is_given: bool) -> None:
    facts = issue(1, *REVIEW, pull=PULL, review_detected_at=NOW - timedelta(minutes=minutes))
    verdict = classify(facts, ROLES, DELAY)
    assert isinstance(verdict, Offer)
    assert (why_not(verdict, [], 0, NOW) is None) is is_given


@pytest.mark.parametrize(
    ("agent_roles", "roles", "is_given"),
    [
        ([], ("BACKENDCODER",), True),
        (["BACKENDCODER"], ("BACKENDCODER",), True),
        (["FRONTENDCODER"], ("BACKENDCODER",), False),
        (["FRONTENDCODER"], ("BACKENDCODER", "FRONTENDCODER"), True),
    ],
)
def test_an_agent_with_roles_gets_only_its_own(
    agent_roles: list[str], roles: tuple[str, ...], is_given: bool
) -> None:
    assert (why_not(offer(1, roles=roles), agent_roles, 0, NOW) is None) is is_given


@pytest.mark.parametrize(
    ("gate", "open_priorities", "expected"),
    [
        (Gate.OPEN, [0, 1, 2], 0),
        (Gate.OPEN, [10, 2], 2),
        (Gate.OPEN, [], None),
        (Gate.ASSIGNABLE, [0, 1, 2], 1),
    ],
)
def test_the_gates(gate: Gate, open_priorities: list[int], expected: int | None) -> None:
    assert best_bucket(gate, [offer(1, 1), offer(2, 2)], open_priorities, [], NOW) == expected


def test_the_assignable_gate_looks_at_what_this_agent_could_get() -> None:
    offers = [
        offer(1, 0, roles=("FRONTENDCODER",)),
        offer(2, 1),
        offer(3, 0, due_at=NOW + timedelta(minutes=1)),
    ]
    assert best_bucket(Gate.ASSIGNABLE, offers, [0, 1], ["BACKENDCODER"], NOW) == 1


def test_the_order_inside_a_bucket() -> None:
    old, new = NOW - timedelta(days=9), NOW - timedelta(days=1)
    offers = [
        offer(10, updated_at=new),
        offer(9, updated_at=new),
        offer(8, updated_at=old),
        offer(7, None, task_type=TaskType.FIX, updated_at=new),
        offer(6, 0, task_type=TaskType.FIX, updated_at=old),
        offer(5, 1, updated_at=old),
        offer(4, None, task_type=TaskType.REVIEW, updated_at=old),
    ]
    assert [o.number for o in choose(offers, [], 0, NOW)] == [6, 7, 4, 8, 9, 10]


def test_what_has_no_priority_is_given_when_nothing_has_one() -> None:
    assert [o.number for o in choose([offer(1, None)], [], None, NOW)] == [1]


@pytest.mark.parametrize(
    ("agent_id", "is_good"),
    [
        ("agent-1", True),
        ("A", True),
        ("a" * 50, True),
        ("a" * 51, False),
        ("", False),
        ("-a", False),
        ("a b", False),
        ("a:b", False),
        ("é", False),
        ("a\n", False),
        ("in-progress", False),
        ("needs-review", False),
        ("review-done", False),
        ("parked", False),
        ("story", False),
        ("epic", False),
        ("fix", False),
        ("Story", False),
        ("BACKENDCODER", False),
        ("BackendCoder", False),
        ("P1234567", False),
        ("P1", False),
        ("P", True),
        ("P1a", True),
    ],
)
def test_agent_ids(agent_id: str, is_good: bool) -> None:
    assert (agent_id_problem(agent_id, ROLES) == "") is is_good


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("Closes #5", [5]),
        ("closes #5, fixes #6 and Resolved: #7", [5, 6, 7]),
        ("close o/r#5", [5]),
        ("Fixes other/repo#5", []),
        ("Fixes https://github.com/o/r/issues/12", [12]),
        ("see #5", []),
        ("discloses #5", []),
        ("Closes #5\nCloses #5", [5]),
        ("", []),
    ],
)
def test_closing_words(body: str, numbers: list[int]) -> None:
    assert closed_issues(body, "o/r") == numbers
