"""Reasons: every code has words, rows give back what they were given, and old rows show their text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import translation

from tasks.reasons import PROBLEM_WORDS, WORDS, BranchProblem, Parameter, Reason, ReasonCode

SAMPLES: dict[ReasonCode, dict[str, Parameter]] = {
    ReasonCode.LABELLED: {"label": "epic"},
    ReasonCode.BRANCH_REFUSED: {"problem": BranchProblem.PROTECTED},
    ReasonCode.BASE_REFUSED: {"problem": BranchProblem.TOO_LONG},
    ReasonCode.REVIEW_NOT_DUE: {"time": "2026-11-01T09:00:00Z"},
    ReasonCode.OTHER_ROLE: {"roles": ("BACKENDCODER", "FRONTENDCODER")},
    ReasonCode.BEHIND_PRIORITY: {"priority": "0"},
    ReasonCode.GITHUB_REFUSED: {"detail": "100 % wrong"},
    ReasonCode.NO_BASE_BRANCH: {"branch": "develop"},
    ReasonCode.ASSIGNED: {"task_type": "development", "role": "CODER", "branch": "b", "attempt": 2},
    ReasonCode.RELEASED_BY: {"who": "hana"},
    ReasonCode.PARKED_BY: {"who": "hana"},
    ReasonCode.NO_HEARTBEAT: {"time": "2026-11-01 18:00:00 JST"},
    ReasonCode.REVIEW_COMMENTS: {"count": 3},
    ReasonCode.AS_WRITTEN: {"text": "disk full, 100 %"},
}


def sample(code: ReasonCode) -> Reason:
    return Reason.of(code, **SAMPLES.get(code, {}))


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_is_said_in_both_languages(code: ReasonCode) -> None:
    reason = sample(code)
    with translation.override("en"):
        assert reason.sentence == str(reason)
    with translation.override("ja"):
        assert str(reason) == str(sample(code))
        if code is not ReasonCode.AS_WRITTEN:
            assert reason.sentence != str(reason)
        assert not WORDS[code].advice or reason.advice != WORDS[code].advice


@pytest.mark.parametrize("problem", BranchProblem)
def test_every_branch_problem_is_said_in_both_languages(problem: BranchProblem) -> None:
    reason = Reason.of(ReasonCode.BRANCH_REFUSED, problem=problem)
    assert str(reason) == f"branch name refused: {PROBLEM_WORDS[problem]}"
    with translation.override("ja"):
        assert PROBLEM_WORDS[problem] not in reason.sentence


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (sample(ReasonCode.OTHER_ROLE), "needs the role BACKENDCODER or FRONTENDCODER"),
        (sample(ReasonCode.BEHIND_PRIORITY), "behind P0"),
        (sample(ReasonCode.REVIEW_NOT_DUE), "review due at 2026-11-01T09:00:00Z"),
        (sample(ReasonCode.GITHUB_REFUSED), "GitHub refused: 100 % wrong"),
        (sample(ReasonCode.ASSIGNED), "development as CODER on b, attempt 2"),
    ],
)
def test_the_parameters_are_part_of_the_sentence(reason: Reason, sentence: str) -> None:
    assert str(reason) == sentence


@pytest.mark.parametrize("code", ReasonCode)
def test_a_row_gives_back_the_reason_it_was_given(code: ReasonCode) -> None:
    reason = sample(code)
    coded = json.loads(json.dumps(reason.as_json()))
    assert Reason.from_row(str(reason), coded) == reason


@pytest.mark.parametrize(
    "coded",
    [
        None,  # from before there were codes
        {"code": "from_a_newer_version"},
        {"code": "labelled"},  # without its parameter
        {"code": "branch_refused", "problem": "unheard_of"},
        {"label": "epic"},
        ["labelled"],
        "labelled",
        7,
    ],
)
def test_a_row_without_a_known_code_shows_its_text(coded: Any) -> None:
    reason = Reason.from_row("labelled epic", coded)
    assert reason == Reason.as_written("labelled epic")
    with translation.override("ja"):
        assert reason.sentence == "labelled epic"


def test_a_row_without_a_text_has_no_reason() -> None:
    assert Reason.from_row("", {"code": "taken"}) is None
