"""A value that is kept for some seconds: how old it gets, who reads it, and what the others see meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from broker_project.lib.kept import Kept, figure, forget_all, in_proportion


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Counts how often it is read; ``gate`` holds a read up."""

    def __init__(self) -> None:
        self.reads: list[int | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.has_begun = threading.Event()
        self.error: Exception | None = None

    def __call__(self, last: int | None) -> int:
        self.reads.append(last)
        number = len(self.reads)
        self.has_begun.set()
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source() -> Source:
    return Source()


def in_thread(call: Callable[[], int]) -> tuple[threading.Thread, list[int]]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


@pytest.fixture
def kept(source: Source, clock: Clock) -> Kept[int]:
    return Kept(source, 5.0, clock=clock)


@pytest.mark.parametrize(("seconds_later", "reads"), [(0.0, 1), (4.99, 1), (5.0, 2), (3600.0, 2)])
def test_a_value_is_read_again_when_it_is_too_old(
    kept: Kept[int], source: Source, clock: Clock, seconds_later: float, reads: int
) -> None:
    assert (kept.is_stale, kept.latest) == (True, None)
    assert kept.get() == 1
    clock.now += seconds_later
    assert kept.is_stale == (reads == 2)
    assert kept.get() == reads == len(source.reads)


def test_a_read_is_given_the_value_before(kept: Kept[int], source: Source, clock: Clock) -> None:
    for _ in range(3):
        kept.get()
        clock.now += 5
    assert source.reads == [None, 1, 2]


def test_the_first_callers_wait_for_one_read(kept: Kept[int], source: Source) -> None:
    source.gate.clear()
    callers = [in_thread(kept.get) for _ in range(4)]
    assert source.has_begun.wait(10)
    source.gate.set()
    for thread, _ in callers:
        thread.join(10)
    assert [found for _, found in callers] == [[1]] * 4
    assert len(source.reads) == 1


@pytest.mark.parametrize(("age", "waits"), [(5.0, False), (9.99, False), (10.0, True)])
def test_others_use_the_old_value_while_it_is_read_again_unless_it_is_very_old(
    kept: Kept[int], source: Source, clock: Clock, age: float, waits: bool
) -> None:
    kept.get()
    clock.now += age
    source.has_begun.clear()
    source.gate.clear()
    reader, read = in_thread(kept.get)
    assert source.has_begun.wait(10)
    other, seen = in_thread(kept.get)
    if not waits:
        other.join(10)
        assert seen == [1]
    source.gate.set()
    for thread in (reader, other):
        thread.join(10)
    assert (read, seen) == ([2], [2] if waits else [1])
    assert len(source.reads) == 2


def test_an_expired_value_is_read_before_the_next_use(kept: Kept[int]) -> None:
    kept.get()
    kept.expire()
    assert (kept.is_stale, kept.is_usable, kept.latest) == (True, False, 1)
    assert kept.get() == 2


@pytest.mark.parametrize("drop", [Kept.expire, Kept.forget])
def test_a_read_that_began_before_a_change_does_not_count(
    kept: Kept[int], source: Source, drop: Callable[[Kept[int]], None]
) -> None:
    source.gate.clear()
    reader, read = in_thread(kept.get)
    assert source.has_begun.wait(10)
    drop(kept)
    source.gate.set()
    reader.join(10)
    assert read == [1]
    assert kept.get() == 2


def test_an_error_goes_to_the_caller_and_the_value_stays(
    kept: Kept[int], source: Source, clock: Clock
) -> None:
    kept.get()
    clock.now += 5
    source.error = OSError("away")
    with pytest.raises(OSError, match="away"):
        kept.get()
    assert (kept.latest, kept.is_stale) == (1, True)
    source.error = None
    assert kept.get() == 3


def test_a_refresh_aside_holds_nobody_up(kept: Kept[int], source: Source, clock: Clock) -> None:
    kept.get()
    clock.now += 5
    source.has_begun.clear()
    source.gate.clear()
    kept.refresh_aside()
    assert source.has_begun.wait(10)
    kept.refresh_aside()
    assert kept.latest == 1
    source.gate.set()
    while kept.latest == 1:
        pass
    assert len(source.reads) == 2


def test_forgotten_values_are_as_after_a_start(kept: Kept[int], source: Source) -> None:
    kept.get()
    forget_all()
    assert kept.latest is None
    kept.get()
    assert source.reads == [None, None]


def test_a_forked_child_does_not_wait_for_its_parents_reader(kept: Kept[int], source: Source) -> None:
    source.gate.clear()
    reader, _ = in_thread(kept.get)
    assert source.has_begun.wait(10)
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        source.gate = threading.Event()
        source.gate.set()
        os._exit(0 if kept.get() == 2 else 1)
    _, status = os.waitpid(child, 0)
    source.gate.set()
    reader.join(10)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(
    ("cost", "seconds"), [(0.0, 0.0), (0.029, 0.0), (0.03, 3.0), (0.1, 10.0), (0.6, 60.0), (7.0, 60.0)]
)
def test_a_figure_is_kept_in_proportion_to_its_cost(cost: float, seconds: float) -> None:
    assert in_proportion(cost) == pytest.approx(seconds)


def test_the_cost_of_reading_decides_how_long_a_value_is_kept(clock: Clock) -> None:
    def slow(last: int | None) -> int:
        clock.now += 0.5
        return (last or 0) + 1

    kept = Kept(slow, in_proportion, clock=clock)
    assert kept.get() == 1
    clock.now += 49.9
    assert kept.get() == 1
    clock.now += 0.2
    assert kept.get() == 2


def test_a_quick_figure_is_always_fresh_and_knows_what_it_said_before() -> None:
    assert figure("test", lambda last: f"{last}, first") == "None, first"
    assert figure("test", lambda last: f"{last}, second") == "None, first, second"
