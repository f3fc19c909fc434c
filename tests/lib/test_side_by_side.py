"""Several conversations in one thread, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from broker_project.lib.side_by_side import (
    READABLE,
    WRITABLE,
    Once,
    SideBySide,
    aside,
    staying,
    wait_for,
)

PATIENCE = 10.0


class Wire:
    """Two ends of a connection: ours waits, the other one is played by the test."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)

    def hear(self, seconds: float = PATIENCE) -> str:
        wait_for(self.ours.fileno(), READABLE, seconds)
        return self.ours.recv(100).decode()

    def say(self, text: str) -> None:
        self.theirs.sendall(text.encode())

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    made = [Wire(), Wire()]
    yield made
    for wire in made:
        wire.close()


@pytest.fixture
def others() -> Iterator[SideBySide]:
    made = SideBySide()
    yield made
    made.close()


def serve_until(others: SideBySide, is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < until, "nobody went on"
        others.serve(lambda: False)


def has_heard(heard: list[str], number: int) -> bool:
    return len(heard) == number


def test_while_one_waits_the_others_go_on(others: SideBySide, wires: list[Wire]) -> None:
    heard: list[str] = []
    first, second = wires

    def listen(wire: Wire, name: str) -> None:
        heard.extend(f"{name} {wire.hear()}" for _ in range(2))

    others.start(lambda: listen(first, "first"))
    others.start(lambda: listen(second, "second"))
    for number, (wire, text) in enumerate(((second, "a"), (first, "b"), (second, "c"), (first, "d"))):
        wire.say(text)
        serve_until(others, partial(has_heard, heard, number + 1))
    assert heard == ["second a", "first b", "second c", "first d"]


def test_who_waits_too_long_is_told_and_nobody_else(others: SideBySide, wires: list[Wire]) -> None:
    heard: list[str] = []

    def listen(wire: Wire, seconds: float) -> None:
        try:
            heard.append(wire.hear(seconds))
        except TimeoutError:
            heard.append("too late")

    others.start(lambda: listen(wires[0], 0.01))
    others.start(lambda: listen(wires[1], PATIENCE))
    others.serve(lambda: True)  # sleeps no longer than the first is ready to wait
    serve_until(others, lambda: bool(heard))
    assert heard == ["too late"]
    wires[1].say("in time")
    serve_until(others, lambda: len(heard) == 2)
    assert heard[1] == "in time"


def test_what_came_in_time_is_heard_although_something_else_blocked(
    others: SideBySide, wires: list[Wire]
) -> None:
    heard: list[str] = []
    others.start(lambda: heard.append(wires[0].hear(0.05)))
    wires[0].say("here")
    time.sleep(0.1)
    serve_until(others, lambda: bool(heard))
    assert heard == ["here"]


def test_it_sleeps_until_somebody_rings(others: SideBySide) -> None:
    asked: list[int] = []

    def may_sleep() -> bool:
        # The latest moment for somebody to come: the answer is "yes" already.
        asked.append(1)
        threading.Thread(target=others.ring).start()
        return True

    assert others.serve(may_sleep)
    assert asked == [1]


def test_what_takes_long_is_done_elsewhere(others: SideBySide, wires: list[Wire]) -> None:
    heard: list[str] = []
    may_end = threading.Event()

    def long() -> str:
        assert may_end.wait(PATIENCE)
        return f"done in {threading.current_thread().name}"

    others.start(lambda: heard.append(aside(long)))
    others.start(lambda: heard.append(wires[0].hear()))
    wires[0].say("meanwhile")
    serve_until(others, lambda: bool(heard))
    may_end.set()
    serve_until(others, lambda: len(heard) == 2)
    assert heard[0] == "meanwhile"
    assert heard[1].startswith("done in broker-aside")


def test_an_error_elsewhere_is_the_callers(others: SideBySide) -> None:
    caught: list[str] = []

    def fail() -> None:
        raise ValueError("no such name")

    def ask() -> None:
        try:
            aside(fail)
        except ValueError as error:
            caught.append(str(error))

    others.start(ask)
    serve_until(others, lambda: bool(caught))
    assert caught == ["no such name"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_all_want_to_know_is_asked_once(others: SideBySide, wires: list[Wire], fails: bool) -> None:
    asked, heard = [], []

    def ask() -> str:
        asked.append(1)
        text = wires[0].hear()
        if fails:
            raise ValueError(text)
        return text

    once = Once(ask)

    def want() -> None:
        try:
            heard.append(once())
        except ValueError as error:
            heard.append(f"failed: {error}")

    for _ in range(3):
        others.start(want)
    assert (asked, heard) == ([1], [])
    wires[0].say("main")
    serve_until(others, lambda: len(heard) == 3)
    others.start(want)
    assert heard == ["failed: main" if fails else "main"] * 4
    assert asked == [1]


def test_nobody_else_goes_on_while_one_has_to_stay(others: SideBySide, wires: list[Wire]) -> None:
    heard: list[str] = []

    def stay() -> None:
        with staying():
            heard.append(wires[0].hear())
            heard.append(aside(lambda: threading.current_thread().name))

    others.start(lambda: heard.append(wires[1].hear()))
    wires[1].say("may wait")
    threading.Timer(0.05, wires[0].say, ["comes late"]).start()
    others.start(stay)
    assert heard == ["comes late", threading.current_thread().name]
    serve_until(others, lambda: len(heard) == 3)


def test_a_rule_may_keep_the_thread(wires: list[Wire]) -> None:
    is_open = True
    others = SideBySide(must_stay=lambda: is_open)
    try:
        heard: list[str] = []
        wires[0].say("at once")
        others.start(lambda: heard.append(wires[0].hear()))
        assert heard == ["at once"]
        is_open = False
        others.start(lambda: heard.append(wires[0].hear()))
        assert heard == ["at once"]
        wires[0].say("later")
        serve_until(others, lambda: len(heard) == 2)
    finally:
        others.close()


def test_in_any_other_thread_it_is_an_ordinary_wait(wires: list[Wire]) -> None:
    threading.Timer(0.05, wires[0].say, ["hello"]).start()
    assert wires[0].hear() == "hello"
    wait_for(wires[0].ours.fileno(), WRITABLE, PATIENCE)
    with pytest.raises(TimeoutError):
        wires[0].hear(0.01)
    assert aside(threading.current_thread) is threading.current_thread()
