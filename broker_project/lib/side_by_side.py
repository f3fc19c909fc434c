"""Conversations side by side in one thread: while one waits for its socket, the others go on.

Each is a plain function that runs in a greenlet. Where it has to wait for a socket it calls :func:`wait_for`, and the
thread turns to another one that can go on. In any other thread the same call waits the ordinary way, so the code in
between need not know. Whatever else blocks (the database, Redis) holds up all of them and has to be short; what may
take long goes :func:`aside`.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
READABLE, WRITABLE = select.POLLIN, select.POLLOUT
OVERDUE = "overdue"


class _Here(threading.local):
    side_by_side: SideBySide | None = None
    is_staying = False


_here = _Here()


def _others() -> SideBySide | None:
    """Who else could go on in this thread while the caller waits."""
    others = _here.side_by_side
    return None if others is None or _here.is_staying or others.must_stay() else others


def wait_for(descriptor: int, events: int, seconds: float) -> None:
    """Wait until a socket is ready. Raises TimeoutError."""
    if others := _others():
        others.wait_for(descriptor, events, seconds)
        return
    looked = select.poll()
    looked.register(descriptor, events)
    if not looked.poll(seconds * 1000):
        raise TimeoutError


def aside(call: Callable[[], T]) -> T:
    """The result of a call that takes long and has no socket to wait for: in another thread if others could go on."""
    others = _others()
    return others.aside(call) if others else call()


@contextmanager
def staying() -> Iterator[None]:
    """Nobody else goes on in here: for what holds a lock that the others may want."""
    before, _here.is_staying = _here.is_staying, True
    try:
        yield
    finally:
        _here.is_staying = before


class Once(Generic[T]):
    """What several conversations of a thread want to know: the first of them asks, all get what it hears."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: Future[T] | None = None

    def __call__(self) -> T:
        if self._answer is None:
            self._answer = Future()
            try:
                self._answer.set_result(self._ask())
            except BaseException as error:  # noqa: BLE001 - everybody hears of it
                self._answer.set_exception(error)
        elif not self._answer.done():
            others = _here.side_by_side
            assert others is not None  # or nobody could come while it is being asked
            others.wait_until(self._answer)
        return self._answer.result()


class SideBySide:
    """Belongs to the thread that makes it. ``must_stay`` says when nobody else may go on, although one waits."""

    def __init__(self, must_stay: Callable[[], bool] = lambda: False, threads_aside: int = 16) -> None:
        self._master = getcurrent()
        self._must_stay = must_stay
        self._threads_aside = threads_aside
        self._thread = threading.get_ident()
        self._poll = select.poll()
        self._waiting: dict[int, tuple[greenlet, float]] = {}  # by descriptor; until when
        self._ready: deque[greenlet] = deque()
        self._elsewhere: ThreadPoolExecutor | None = None
        self._is_asleep = False
        self._bell, self._rope = os.pipe()
        for end in (self._bell, self._rope):
            os.set_blocking(end, False)
        self._poll.register(self._bell, READABLE)
        _here.side_by_side = self

    def close(self) -> None:
        _here.side_by_side = None
        if self._elsewhere is not None:
            self._elsewhere.shutdown()
        os.close(self._bell)
        os.close(self._rope)

    def start(self, call: Callable[[], None]) -> None:
        """Begin a conversation, as far as it gets without waiting. It must not raise."""
        greenlet(call, self._master).switch()

    def serve(self, may_sleep: Callable[[], bool]) -> bool:
        """Let all go on that can, and say whether any could. If none can, and it may sleep: sleep until one can.

        ``may_sleep`` is asked once the bell is hung out: whoever has something to say later rings.
        """
        self._is_asleep = True
        self._is_asleep = not self._ready and may_sleep()
        found = self._poll.poll(self._milliseconds_to_sleep() if self._is_asleep else 0)
        self._is_asleep = False
        could = bool(found or self._ready)
        for descriptor, _ in found:
            if descriptor == self._bell:
                os.read(self._bell, 4096)
            else:
                self._resume(descriptor)
        # What came in time has been heard by now, however long something else blocked.
        now = time.monotonic()
        for descriptor in [key for key, (_, until) in self._waiting.items() if until <= now]:
            self._resume(descriptor, OVERDUE)
        while self._ready:
            self._ready.popleft().switch()
        return could

    def ring(self) -> None:
        """From any thread: end its sleep."""
        if self._is_asleep:
            self._is_asleep = False
            with suppress(BlockingIOError):  # rung often enough
                os.write(self._rope, b"!")

    # In a conversation

    def must_stay(self) -> bool:
        return getcurrent() is self._master or self._must_stay()

    def wait_for(self, descriptor: int, events: int, seconds: float) -> None:
        self._poll.register(descriptor, events)
        self._waiting[descriptor] = (getcurrent(), time.monotonic() + seconds)
        if self._master.switch() == OVERDUE:
            raise TimeoutError

    def aside(self, call: Callable[[], T]) -> T:
        if self._elsewhere is None:
            self._elsewhere = ThreadPoolExecutor(self._threads_aside, thread_name_prefix="broker-aside")
        future = self._elsewhere.submit(call)
        self.wait_until(future)
        return future.result()

    def wait_until(self, future: Future[T]) -> None:
        """Until there is a result, from whatever thread."""
        own = getcurrent()

        def go_on(_: Future[T]) -> None:
            self._ready.append(own)
            self.ring()

        future.add_done_callback(go_on)
        self._master.switch()

    # In the thread itself

    def _resume(self, descriptor: int, how: str = "") -> None:
        own, _ = self._waiting.pop(descriptor)
        self._poll.unregister(descriptor)
        own.switch(how)

    def _milliseconds_to_sleep(self) -> float | None:
        if not self._waiting:
            return None
        return max(0.0, min(until for _, until in self._waiting.values()) - time.monotonic()) * 1000
