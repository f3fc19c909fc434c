"""Several at once, a clock that jumps, a client that goes away."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.operations import BY_NAME, OPERATIONS, Operation, Run, word
from tests.faults.report import Recorder
from tests.faults.subject import CLOCK_VARIABLE, Nursery
from tests.faults.test_kills import begin
from tests.faults.world import HOUR, FaultWorld
from tests.support.broker_process import wait_for
from tests.support.gate import Order

AT_ONCE = 4
SHORT = {
    ("assignment", "at-once"),
    ("post", "at-once"),
    ("post", "+1h"),
    ("assignment", "-1h"),
    ("assignment", "disconnects"),
}


def marks(name: str, fault: str) -> list[pytest.MarkDecorator]:
    return [] if (name, fault) in SHORT else [pytest.mark.faults_long]


# Several at once


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.name, id=f"{one.name}-{AT_ONCE}-at-once", marks=marks(one.name, "at-once"))
        for one in OPERATIONS
    ],
)
def test_at_once(world: FaultWorld, recorder: Recorder, name: str) -> None:
    race(world, recorder, BY_NAME[name], name)


def race(world: FaultWorld, recorder: Recorder, operation: Operation, shown_as: str) -> None:
    """The same thing from several processes: two servers and four callers, or four pollers."""
    operation.ready(world)
    first = operation.begin(world)
    if operation.is_web:
        second = Run(world.start_web(), first.facts)
        runs = [first, second] * (AT_ONCE // 2)
    else:
        runs = [first, *(operation.begin(world) for _ in range(AT_ONCE - 1))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        if operation.is_web:
            outcomes = list(pool.map(lambda run: operation.act(world, run), runs))
        else:
            for run in runs:
                run.process.go()
            outcomes = [f"exit {run.process.wait()}" for run in runs]
    for outcome in outcomes:
        recorder.note(shown_as, f"{AT_ONCE} at once", outcome)
    told = {"200"} if operation.is_web else {"exit 0"}
    if operation.name == "assignment":
        # One that comes while its twin has claimed and not yet written its row hears "nothing now".
        assert "200" in outcomes
        told |= {"204"}
    assert set(outcomes) <= told, outcomes
    operation.settle(world, first)
    world.check()


@pytest.mark.parametrize("agents", [pytest.param(12, id="assignment-12-agents-3-issues")])
def test_many_agents(world: FaultWorld, recorder: Recorder, agents: int) -> None:
    """Two servers, more agents than issues: each issue goes to one."""
    world.begin()
    servers = [world.start_web(), world.start_web()]
    with ThreadPoolExecutor(agents) as pool:
        answers = list(pool.map(lambda n: world.ask(servers[n % 2], f"agent-{n}"), range(agents)))
    for answer in answers:
        recorder.note("assignment", f"{agents} agents, 3 issues", word(answer))
    given = [answer.json()["issue_id"] for answer in answers if answer and answer.status_code == 200]
    assert sorted(given) == [1, 2, 3]
    assert sorted(map(word, answers)) == ["200"] * 3 + ["204"] * (agents - 3)
    world.settle()
    world.check()


# The clock


class JumpingClock:
    """Processes of its nursery see the time that it says. Intervals (Redis, timers) are those of the machine."""

    def __init__(self, world: FaultWorld) -> None:
        self.file = world.folder / "clock"
        self.set(0)
        environment = {**world.environment, CLOCK_VARIABLE: str(self.file)}
        self.nursery = Nursery(environment, world.folder / "clock.log")

    def set(self, seconds: float) -> None:
        draft = self.file.with_suffix(".new")
        draft.write_text(str(seconds))
        os.replace(draft, self.file)


@pytest.fixture(scope="session")
def _clock(_fault_world: FaultWorld) -> Iterator[JumpingClock]:
    made = JumpingClock(_fault_world)
    yield made
    made.nursery.close()


@pytest.fixture
def clock(_clock: JumpingClock) -> Iterator[JumpingClock]:
    _clock.set(0)
    yield _clock
    _clock.set(0)


CLOCK_CASES = [
    pytest.param(one.name, seconds, id=f"{one.name}-clock{word_}", marks=marks(one.name, word_))
    for one in OPERATIONS
    for seconds, word_ in ((HOUR, "+1h"), (-HOUR, "-1h"))
]


@pytest.mark.parametrize(("name", "seconds"), CLOCK_CASES)
def test_clock(world: FaultWorld, recorder: Recorder, clock: JumpingClock, name: str, seconds: float) -> None:
    """The clock jumps in the middle of the operation, and is put right afterwards."""
    operation = BY_NAME[name]
    run = begin(world, operation)
    operation.act(world, run)
    middle = (world.redis_gate.disarm() + 1) // 2
    operation.ready(world)
    world.evidence.clock_is_steady = False
    run = operation.begin(world, nursery=clock.nursery)

    def jump() -> bool:
        clock.set(seconds)
        return False

    order = Order(middle, "before", jump)
    world.redis_gate.arm(order)
    outcome = operation.act(world, run)
    world.redis_gate.disarm()
    recorder.note(name, f"clock {'+' if seconds > 0 else '-'}1h", outcome)
    assert order.is_done
    assert outcome == ("200" if operation.is_web else "exit 0"), run.process.output[-3000:]
    run.process.kill()
    clock.set(0)
    if name != "heartbeat":
        world.pass_time()
    operation.settle(world, run)
    world.check()


# Clients


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.name, id=f"{one.name}-client-disconnects", marks=marks(one.name, "disconnects"))
        for one in OPERATIONS
        if one.is_web
    ],
)
def test_client_disconnects(world: FaultWorld, recorder: Recorder, name: str) -> None:
    """The caller sends its request and is gone; what it asked for may happen, once."""
    operation = BY_NAME[name]
    run = begin(world, operation)
    path, body = request_of(name, run)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", run.process.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    recorder.note(name, "client disconnects", "nobody to tell")
    # The next request of anybody is answered after this one was begun; its own end is a row or nothing.
    wait_for(lambda: not unsettled(world), "no assignment is half made")
    operation.settle(world, run)
    world.check()


def unsettled(world: FaultWorld) -> bool:
    return bool(world.records.rows("SELECT id FROM tasks_assignment WHERE state = 'claiming'"))


def request_of(name: str, run: Run) -> tuple[str, dict[str, object]]:
    if name == "assignment":
        return "/api/v1/request-task", {"agent_id": "agent-1", "timeout": 5, "request_id": "first"}
    number = run.facts["task"]["assignment_id"]
    requests: dict[str, tuple[str, dict[str, object]]] = {
        "completion-complete": (f"/api/v1/assignments/{number}/complete", {"result": "done"}),
        "completion-fail": (f"/api/v1/assignments/{number}/fail", {"reason": "no way"}),
        "completion-release": (f"/api/v1/assignments/{number}/release", {}),
        "heartbeat": (f"/api/v1/assignments/{number}/heartbeat", {"progress": "half"}),
    }
    return requests[name]
