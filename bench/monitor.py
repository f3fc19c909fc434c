"""The commands that Redis received, with the times of its own clock. Too slow for a load: only for single wake-ups."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import redis


@dataclass(frozen=True)
class Seen:
    at: float  # seconds of the wall clock
    words: str

    @property
    def command(self) -> str:
        return self.words.split(" ", 1)[0].upper()

    @property
    def subject(self) -> str:
        """The first argument: a script's digest, a channel."""
        return self.words.split(" ", 2)[1] if " " in self.words else ""


class Monitor:
    """Use it in a ``with``. Commands inside scripts are left out."""

    def __init__(self, url: str) -> None:
        self.client: redis.Redis = redis.Redis.from_url(url, decode_responses=True)
        self.seen: list[Seen] = []
        self._thread = threading.Thread(target=self._listen, name="bench-monitor", daemon=True)
        self._is_ready = threading.Event()
        self._is_over = False

    def __enter__(self) -> Monitor:
        self._thread.start()
        if not self._is_ready.wait(10):
            raise RuntimeError("Redis does not allow MONITOR")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self.client.ping()  # wakes the listener, which then sees that it is over
        self._thread.join(5)
        self.client.close()

    def _listen(self) -> None:
        with self.client.monitor() as stream:  # type: ignore[no-untyped-call]
            self._is_ready.set()
            for line in stream.listen():
                if self._is_over:
                    return
                if line["client_type"] != "lua":
                    self.seen.append(Seen(float(line["time"]), str(line["command"])))

    def first(self, words: Sequence[str], about: str = "", after: float = 0.0) -> Seen | None:
        """The first of such commands whose text has ``about`` in it; None if there was none."""
        for seen in self.seen:
            if seen.at >= after and seen.command in words and about in seen.words:
                return seen
        return None

    def repeats(self, one: Seen) -> int:
        """How often the same script was called, whoever called it."""
        return sum(seen.command == one.command and seen.subject == one.subject for seen in self.seen)

    def forget(self) -> None:
        self.seen.clear()
