"""A chosen part again on PostgreSQL: kills at each write, four at once, and a server that is restarted."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.faults.operations import BY_NAME
from tests.faults.report import Recorder
from tests.faults.test_kills import begin
from tests.faults.test_stores import POLLER
from tests.faults.test_together import race
from tests.faults.world import FaultWorld, fault_world
from tests.support.gate import Order
from tests.support.postgres_server import NoPostgres, running_postgres

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.faults_long,
    pytest.mark.xdist_group("postgres faults"),
    pytest.mark.process,
]
CHOSEN = ("assignment", "completion-complete", "heartbeat", "sweep", "post", "csv-write")


@pytest.fixture(scope="module")
def _postgres_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultWorld]:
    try:
        with running_postgres() as server:
            server.copy_database("template1", "broker")
            with fault_world(tmp_path_factory.mktemp("faults-pg"), server) as world:
                yield world
    except NoPostgres as lack:
        pytest.skip(str(lack))


@pytest.fixture
def world(_postgres_world: FaultWorld) -> Iterator[FaultWorld]:
    yield _postgres_world
    _postgres_world.end_processes()
    _postgres_world.mend()


@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}-killed-at-each-write") for name in CHOSEN])
def test_killed(world: FaultWorld, recorder: Recorder, name: str) -> None:
    operation = BY_NAME[name]
    run = begin(world, operation)
    operation.act(world, run)
    steps = run.process.counted()
    assert steps > 0
    for number in range(1, steps + 1):
        run = begin(world, operation)
        run.process.arm(kill_at=number)
        outcome = operation.act(world, run)
        is_killed = run.process.wait(5 if outcome in ("no answer", "killed") else 0) == -signal.SIGKILL
        recorder.note(f"{name} (PostgreSQL)", "killed at each database", "killed" if is_killed else outcome)
        try:
            operation.settle(world, run)
            world.check()
        except AssertionError as error:
            raise AssertionError(f"killed at write {number} of {steps}:\n{error}") from error


@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}-database-restarted") for name in CHOSEN])
def test_restarted(world: FaultWorld, recorder: Recorder, name: str) -> None:
    """In the middle of the operation: every connection ends, the next one finds everything committed."""
    operation = BY_NAME[name]
    run = begin(world, operation)
    operation.act(world, run)
    middle = (world.redis_gate.disarm() + 1) // 2
    run = begin(world, operation)

    def restart() -> bool:
        assert world.postgres is not None
        # Not from the gate's own thread: the server would end with the thread that started it.
        world.hands.submit(world.postgres.restart).result()
        return False

    order = Order(middle, "before", restart)
    world.redis_gate.arm(order)
    outcome = operation.act(world, run)
    world.mend()
    recorder.note(f"{name} (PostgreSQL)", "database restarted", outcome)
    assert order.is_done
    told = {"200", "503"} if operation.is_web else POLLER
    assert outcome in told, f"{outcome}\n{run.process.output[-3000:]}"
    operation.settle(world, run)
    world.check()


@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}-4-at-once") for name in CHOSEN])
def test_at_once(world: FaultWorld, recorder: Recorder, name: str) -> None:
    race(world, recorder, BY_NAME[name], f"{name} (PostgreSQL)")
