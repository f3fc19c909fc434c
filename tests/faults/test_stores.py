"""What Redis and the database do wrong in the middle of an operation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from tests.faults.operations import BY_NAME, OPERATIONS, Run, word
from tests.faults.report import Recorder
from tests.faults.test_kills import begin
from tests.faults.world import FaultWorld
from tests.support.gate import Order

# What the caller is told while Redis or the database is not well.
TOLD_BY_WEB = {
    "assignment": {"200", "204", "503"},
    "completion-complete": {"200"},
    "completion-fail": {"200"},
    "completion-release": {"200"},
    "heartbeat": {"200"},
}
POLLER = {"exit 0", "exit 1"}
UNABLE = {"503"}  # a web answer without a database


def restart(world: FaultWorld) -> bool:
    # Not from the gate's own thread: the server would end with the thread that started it.
    world.hands.submit(world.redis_server.restart).result()
    return False


def flush(world: FaultWorld) -> bool:
    world.raw.flushall()
    return False


def pause(seconds: float) -> Callable[[FaultWorld], bool]:
    """Stopped as a process that swaps or whose machine stands still: nothing is refused, nothing answered."""

    def act(world: FaultWorld) -> bool:
        process = world.redis_server.process
        process.send_signal(signal.SIGSTOP)
        # It may have been replaced by then: a process that has ended is left alone.
        threading.Timer(seconds, process.send_signal, (signal.SIGCONT,)).start()
        return False

    return act


def make_read_only(world: FaultWorld) -> bool:
    world.store.replicaof("127.0.0.1", "1")
    return False


def fill_memory(world: FaultWorld) -> bool:
    world.store.config_set("maxmemory-policy", "noeviction")
    world.store.config_set("maxmemory", "1")
    return False


REDIS: dict[str, Callable[[FaultWorld], bool]] = {
    "restarted": restart,
    "flushed": flush,
    "paused-10s": pause(10),
    "read-only": make_read_only,
    "out-of-memory": fill_memory,
}
SHORT = {
    ("assignment", "flushed"),
    ("completion-complete", "read-only"),
    ("heartbeat", "out-of-memory"),
}
REDIS_CASES = [
    pytest.param(
        operation.name,
        fault,
        id=f"{operation.name}-redis-{fault}",
        marks=[] if (operation.name, fault) in SHORT else [pytest.mark.faults_long],
    )
    for operation in OPERATIONS
    for fault in REDIS
]


@pytest.mark.parametrize(("name", "fault"), REDIS_CASES)
def test_redis(world: FaultWorld, recorder: Recorder, name: str, fault: str) -> None:
    """At the first, a middle and the last round trip of the operation."""
    operation = BY_NAME[name]
    run = begin(world, operation)
    operation.act(world, run)
    steps = world.redis_gate.disarm()
    chosen = {1, (steps + 1) // 2} if fault.startswith("paused") else {1, (steps + 1) // 2, steps}
    for number in sorted(chosen):
        run = begin(world, operation)
        order = Order(number, "before", lambda: REDIS[fault](world))
        world.redis_gate.arm(order)
        outcome = operation.act(world, run)
        world.mend()
        recorder.note(name, f"Redis {fault}", outcome)
        try:
            assert order.is_done or number == steps
            assert outcome in TOLD_BY_WEB.get(name, POLLER), f"{outcome}\n{run.process.output[-3000:]}"
            assert was_caught(run), run.process.output[-3000:]
            operation.settle(world, run)
            world.check()
        except AssertionError as error:
            raise AssertionError(f"Redis {fault} at round trip {number} of {steps}:\n{error}") from error


def was_caught(run: Run) -> bool:
    """Whatever went wrong ended in a sentence, not in a traceback through the whole process."""
    return "in run_child" not in run.process.output


DATABASE = ("locked", "disk-full")
DATABASE_SHORT = {("completion-complete", "locked"), ("post", "disk-full"), ("assignment", "disk-full")}
DATABASE_CASES = [
    pytest.param(
        operation.name,
        fault,
        id=f"{operation.name}-database-{fault}",
        marks=[] if (operation.name, fault) in DATABASE_SHORT else [pytest.mark.faults_long],
    )
    for operation in OPERATIONS
    for fault in DATABASE
]


@pytest.mark.parametrize(("name", "fault"), DATABASE_CASES)
def test_database(world: FaultWorld, recorder: Recorder, name: str, fault: str) -> None:
    """SQLite, for the whole operation: another process holds the write lock, or the file may not grow."""
    operation = BY_NAME[name]
    operation.ready(world)
    if fault == "disk-full":
        world.pack_database()
    run = operation.begin(world)
    with world.locked_database() if fault == "locked" else world.full_disk():
        outcome = operation.act(world, run)
    recorder.note(name, f"database {fault}", outcome)
    sentence = "database is locked" if fault == "locked" else "database or disk is full"
    if (name, fault, outcome) != ("completion-release", "disk-full", "200"):
        # Only giving back says so little that it may fit into the pages that are there.
        assert sentence in run.process.output, run.process.output[-3000:]
        assert outcome in (UNABLE if operation.is_web else POLLER), f"{outcome}\n{run.process.output[-3000:]}"
    assert was_caught(run), run.process.output[-3000:]
    operation.settle(world, run)
    world.check()


def test_what_no_row_could_be_written_for_is_on_offer_at_once(world: FaultWorld, recorder: Recorder) -> None:
    """The claim in Redis is taken back: nobody waits for the end of its lock."""
    world.begin()
    server = world.start_web()
    assert word(world.ask(server, "agent-0")) == "200"  # known agents need no row of their own
    with world.locked_database():
        refused = world.ask(server, "agent-1")
    assert refused is not None
    assert (refused.status_code, refused.json()["error"]) == (503, "database_down")
    assert int(refused.headers["Retry-After"]) > 0
    recorder.note("assignment", "database locked", "503")
    answers = [word(world.ask(server, f"agent-{number}")) for number in (1, 2)]
    assert answers == ["200", "200"]
    world.settle()
    world.check()
