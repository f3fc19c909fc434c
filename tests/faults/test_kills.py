"""SIGKILL at every step: before each write to the database, each Redis round trip, and after each outside call."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial

import pytest

from tests.faults.operations import BY_NAME, OPERATIONS, Operation, Run
from tests.faults.report import Recorder
from tests.faults.world import FaultWorld
from tests.support.gate import Order

EDGES = ("database", "redis", "call")
SHORT = {("assignment", "call"), ("completion-complete", "call"), ("post", "call"), ("csv-write", "database")}

CASES = [
    pytest.param(
        operation.name,
        edge,
        id=f"{operation.name}-killed-at-each-{edge}",
        marks=[] if (operation.name, edge) in SHORT else [pytest.mark.faults_long],
    )
    for operation in OPERATIONS
    for edge in EDGES
    if edge != "call" or operation.systems
]


def begin(world: FaultWorld, operation: Operation) -> Run:
    operation.ready(world)
    run = operation.begin(world)
    world.sandbox.clear_calls()
    run.process.arm()
    world.redis_gate.arm()
    return run


def steps_of_clean_run(world: FaultWorld, operation: Operation) -> dict[str, int]:
    """How many steps of each kind the operation has when nothing goes wrong."""
    run = begin(world, operation)
    operation.act(world, run)
    return {
        "database": run.process.counted(),
        "redis": world.redis_gate.disarm(),
        "call": len(world.sandbox.calls()),
    }


def kill(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


@pytest.mark.parametrize(("name", "edge"), CASES)
def test_killed(world: FaultWorld, recorder: Recorder, name: str, edge: str) -> None:
    operation = BY_NAME[name]
    steps = steps_of_clean_run(world, operation)[edge]
    assert steps > 0
    killed = 0
    for number in range(1, steps + 1):
        run = begin(world, operation)
        pid = run.process.pid
        if edge == "database":
            run.process.arm(kill_at=number)
        elif edge == "redis":
            world.redis_gate.arm(Order(number, "before", partial(kill, pid)))
        else:
            world.sandbox.fault("*", "signal", pid=pid, skip=number - 1, when="after")
        outcome = operation.act(world, run)
        world.redis_gate.disarm()
        world.sandbox.clear_faults()
        # The kernel closes a dying process's connections before it says that the process has ended.
        is_killed = run.process.wait(5 if outcome in ("no answer", "killed") else 0) == -signal.SIGKILL
        killed += is_killed
        recorder.note(name, f"killed at each {edge}", "killed" if is_killed else outcome)
        try:
            operation.settle(world, run)
            world.check()
        except AssertionError as error:
            raise AssertionError(f"killed at {edge} {number} of {steps}:\n{error}") from error
    # Housekeeping of a server may fall between two counts; what belongs to the operation is always there.
    assert killed >= max(1, steps - 3), (killed, steps)
