"""What outside systems do wrong, at each call that an operation makes and at all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.operations import BY_NAME, OPERATIONS, Operation
from tests.faults.report import Recorder
from tests.faults.test_kills import begin
from tests.faults.world import FaultWorld

ALL = 0
FAULTS: dict[str, dict[str, Any]] = {
    "status-503": {"kind": "status", "status": 503},
    "status-429": {"kind": "status", "status": 429, "headers": {"Retry-After": "120"}},
    "stalled": {"kind": "stall", "seconds": 30},
    "dropped": {"kind": "drop"},
    "answer-lost": {"kind": "lose_answer"},
}
SHORT = {
    ("assignment", "answer-lost"),
    ("completion-complete", "refused"),
    ("post", "answer-lost"),
    ("csv-write", "answer-lost"),
    ("feed-fetch", "status-429"),
}
# What the caller is told. Endings are recorded whatever GitHub does; a poller that failed says so by its exit.
TOLD = {
    "assignment": {"200", "502"},
    "completion-complete": {"200"},
    "completion-fail": {"200"},
    "completion-release": {"200"},
    "match-run": {"exit 0", "exit 1"},
    "csv-write": {"exit 0", "exit 1"},
}

CASES = [
    pytest.param(
        operation.name,
        fault,
        id=f"{operation.name}-{fault}",
        marks=[] if (operation.name, fault) in SHORT else [pytest.mark.faults_long],
    )
    for operation in OPERATIONS
    for fault in ("refused", *FAULTS)
    if operation.systems
]


def attempt(world: FaultWorld, recorder: Recorder, operation: Operation, fault: str, number: int) -> None:
    """One run in which call ``number`` goes wrong; with ``ALL`` every call does, until the run is over."""
    run = begin(world, operation)
    if fault == "refused":
        world.outside_gate.shut()
    else:
        order = {"times": 0} if number == ALL else {"times": 1, "skip": number - 1}
        world.sandbox.fault("*", **{**FAULTS[fault], **order})
    try:
        outcome = operation.act(world, run)
    finally:
        if fault == "refused":
            world.outside_gate.reopen()
        fired = [one["fired"] for one in world.sandbox.faults()]
        world.sandbox.clear_faults()
    recorder.note(operation.name, fault, outcome)
    assert fault == "refused" or fired[0] > 0
    assert outcome in TOLD.get(operation.name, {"exit 0"}), f"{outcome}\n{run.process.output[-2000:]}"
    operation.settle(world, run)
    world.check()


@pytest.mark.parametrize(("name", "fault"), CASES)
def test_outside(world: FaultWorld, recorder: Recorder, name: str, fault: str) -> None:
    operation = BY_NAME[name]
    numbers = [ALL]
    if fault != "refused":
        run = begin(world, operation)
        operation.act(world, run)
        numbers += range(1, len(world.sandbox.calls()) + 1)
    for number in numbers:
        try:
            attempt(world, recorder, operation, fault, number)
        except AssertionError as error:
            where = f"call {number} of {len(numbers) - 1}" if number else "every call"
            raise AssertionError(f"{fault}, {where}:\n{error}") from error
