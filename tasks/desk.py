"""The desk: one thread of a web process that turns claims into assignments, as many at a time as have come.

Those that came while it was busy begin in one transaction and end in another; their conversations with GitHub run side
by side in between. Under load this saves most of what an assignment costs; a lone one waits for nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from functools import partial

from django.db import connection

from broker_project.lib.logs import get_logger
from broker_project.lib.side_by_side import SideBySide
from tasks.connections import with_connections
from tasks.services.assignment import Heads, Making, Order, Outcome, begin, finish, prepare

log = get_logger(__name__)

AT_ONCE = 16  # assignments that speak with GitHub


class DeskBroke(Exception):
    """Nothing is known to raise this: every step answers for its own failures."""


class Desk:
    """Belongs to one event loop. The thread comes with the first order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._orders: deque[Making] = deque()
        self._futures: dict[Making, asyncio.Future[Outcome | Exception]] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False
        # Of the thread:
        self._side_by_side: SideBySide | None = None
        self._in_hand: set[Making] = set()
        self._prepared: list[Making] = []

    async def assign(self, order: Order) -> Outcome | Exception:
        """What becomes of the order. It is brought to its end even if the caller goes away."""
        making = Making(order)
        future: asyncio.Future[Outcome | Exception] = self._loop.create_future()
        self._futures[making] = future
        self._orders.append(making)
        if self._thread is None:
            self._open()
        self._ring()
        return await future

    def _open(self) -> None:
        # Not a thread that the interpreter waits for at its end: the server closes the desk before.
        self._thread = threading.Thread(target=self._run, name="broker-desk", daemon=True)
        self._thread.start()

    def _open_again(self) -> None:
        self._thread = None
        if self._orders:
            self._open()

    async def close(self) -> None:
        """Wait until all that came has its end."""
        self._is_closing = True
        if self._thread is not None:
            self._ring()
            await asyncio.to_thread(self._thread.join)

    def _ring(self) -> None:
        if self._side_by_side is not None:
            self._side_by_side.ring()

    def _answer(self, makings: Iterable[Making]) -> None:
        for making in makings:
            future = self._futures.pop(making)
            if not future.done():  # the caller is still there
                assert making.outcome is not None
                future.set_result(making.outcome)

    # In the thread

    def _run(self) -> None:
        # Inside a transaction nobody else may use the thread's connection.
        side_by_side = SideBySide(must_stay=lambda: connection.in_atomic_block, threads_aside=AT_ONCE)
        self._side_by_side = side_by_side
        fault: Exception | None = None
        try:
            while self._orders or self._in_hand or not self._is_closing:
                self._turn(side_by_side)
        except Exception as error:
            log.exception("the desk broke down")
            fault = error
        finally:
            self._side_by_side = None
            side_by_side.close()
        if fault is not None:
            for making in self._in_hand:
                making.outcome = making.outcome or DeskBroke(str(fault))
            self._prepared = []
            self._deliver(list(self._in_hand))
            self._loop.call_soon_threadsafe(self._open_again)

    def _turn(self, side_by_side: SideBySide) -> None:
        # Conversations first: the longer the steps wait for them, the more can be taken in one.
        if side_by_side.serve(self._has_nothing_to_do):
            return
        if self._prepared:
            prepared, self._prepared = self._prepared, []
            with_connections(finish, prepared)
            self._deliver(prepared)
        elif self._can_begin:
            self._begin(side_by_side)

    @property
    def _can_begin(self) -> bool:
        return bool(self._orders) and len(self._in_hand) < AT_ONCE

    def _has_nothing_to_do(self) -> bool:
        is_over = self._is_closing and not self._in_hand
        return not (self._prepared or self._can_begin or is_over)

    def _begin(self, side_by_side: SideBySide) -> None:
        taken = [self._orders.popleft() for _ in range(min(len(self._orders), AT_ONCE - len(self._in_hand)))]
        self._in_hand.update(taken)
        with_connections(begin, taken)
        self._deliver([making for making in taken if making.outcome is not None])
        heads = Heads()
        for making in taken:
            if making.outcome is None:
                side_by_side.start(partial(self._prepare, making, heads))

    def _prepare(self, making: Making, heads: Heads) -> None:
        with_connections(prepare, making, heads)  # undoing needs one, and keeps none
        if making.outcome is None:
            self._prepared.append(making)
        else:
            self._deliver([making])

    def _deliver(self, makings: Iterable[Making]) -> None:
        ended = list(makings)
        self._in_hand.difference_update(ended)
        if ended:
            self._loop.call_soon_threadsafe(self._answer, ended)
