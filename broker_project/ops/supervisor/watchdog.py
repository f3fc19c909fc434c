"""Does the cluster work, does the web answer: asked in threads, so that a slow answer holds nothing else up."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import httpx
from django import db
from django.conf import settings
from django_q.brokers.orm import ORM
from django_q.models import OrmQ
from django_q.tasks import async_task

from broker_project.ops.clock.cluster import CANARY, read_traces

CANARY_SECONDS = 15.0
SPAWN_SECONDS = 60.0  # a cluster may take this long to have its first worker
WEB_LOOK_SECONDS = 10.0
WEB_SILENCE_SECONDS = 60.0


class Verdict(StrEnum):
    FINE = "fine"
    WAITING = "waiting"
    BUSY = "all workers are busy"
    HUNG = "hung"


def judge(
    *,
    asked_seconds: float,
    quiet_seconds: float,
    ran_seconds: float | None,
    are_all_busy: bool,
    limit_seconds: float,
) -> Verdict:
    """The verdict on a cluster that has not yet acknowledged a canary.

    ``asked_seconds`` ago the canary was queued, ``quiet_seconds`` ago any worker here last began or ended
    anything, and ``ran_seconds`` ago a worker here ran this very canary (None: not yet).
    """
    if ran_seconds is not None:
        # Done but not acknowledged: the result queue is blocked.
        return Verdict.HUNG if ran_seconds >= limit_seconds else Verdict.WAITING
    if are_all_busy:
        return Verdict.BUSY
    if asked_seconds >= limit_seconds and quiet_seconds >= limit_seconds:
        return Verdict.HUNG
    return Verdict.WAITING


class NotingBroker(ORM):  # type: ignore[misc]
    """Keeps the id of the row that it queued."""

    row_id = 0

    def enqueue(self, task: str) -> int:
        self.row_id = super().enqueue(task)
        return self.row_id


@dataclass
class Canary:
    row_id: int
    token: str
    asked_at: float
    ran_at: float | None = None


class ClusterWatch:
    """Queues a small task again and again, and notices when the cluster no longer runs it.

    Times are monotonic, so a laptop that was asleep for a night has not waited for a night.
    """

    def __init__(self, var: Path, workers: int, limit_seconds: float) -> None:
        self.var = var
        self.workers = workers
        self.limit_seconds = limit_seconds
        self.canary: Canary | None = None
        self._pid = 0
        self._quiet_since = 0.0
        self._seen: tuple[float, str] = (0.0, "")
        self._has_spawned = False

    def look(self, pid: int, now: float) -> Verdict:
        """One look at the cluster led by ``pid``. A database that is down is not its fault."""
        try:
            return self._look(pid, now)
        except db.Error:
            self.canary = None
            self._quiet_since = now
            return Verdict.FINE
        finally:
            db.connections.close_all()

    def _look(self, pid: int, now: float) -> Verdict:
        if pid != self._pid:
            self._take_back()
            self._pid, self._quiet_since, self._has_spawned = pid, now, False
        traces = read_traces(self.var, pid)
        if (traces.beat_at, traces.canary) != self._seen:
            self._seen, self._quiet_since = (traces.beat_at, traces.canary), now
        if traces.workers and not self._has_spawned:
            self._has_spawned, self._quiet_since = True, now
        if self.canary is None:
            self._ask(now)
            return Verdict.FINE
        if not OrmQ.objects.filter(pk=self.canary.row_id).exists():
            self.canary = None
            return Verdict.FINE
        if self.canary.ran_at is None and traces.canary == self.canary.token:
            self.canary.ran_at = now
        return judge(
            asked_seconds=now - self.canary.asked_at,
            quiet_seconds=now - self._quiet_since,
            ran_seconds=None if self.canary.ran_at is None else now - self.canary.ran_at,
            are_all_busy=len(traces.busy) >= self.workers,
            limit_seconds=self.limit_seconds if self._has_spawned else max(self.limit_seconds, SPAWN_SECONDS),
        )

    def _ask(self, now: float) -> None:
        broker, token = NotingBroker(), secrets.token_hex(8)
        # A canary that succeeds is not saved, and its row in the queue is deleted: no table grows.
        async_task(CANARY, token, save=False, timeout=30, broker=broker)
        self.canary = Canary(broker.row_id, token, now)

    def _take_back(self) -> None:
        if self.canary is not None:
            OrmQ.objects.filter(pk=self.canary.row_id).delete()
            self.canary = None


class ClusterWatchThread(threading.Thread):
    """``hung_pid`` is the cluster that was found hung; compare it with the one that runs now."""

    def __init__(self, watch: ClusterWatch, current_pid: Callable[[], int | None]) -> None:
        super().__init__(name="cluster-watch", daemon=True)
        self.watch = watch
        self.current_pid = current_pid
        self.hung_pid = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        pause = min(CANARY_SECONDS, self.watch.limit_seconds / 3)
        while not self.stopping.wait(pause):
            pid = self.current_pid()
            if pid and pid != self.hung_pid and self.watch.look(pid, time.monotonic()) is Verdict.HUNG:
                self.hung_pid = pid


class WebWatchThread(threading.Thread):
    """``is_up`` is set by the first answer; ``is_silent`` when none has come for a minute after that."""

    def __init__(self, url: str) -> None:
        super().__init__(name="web-watch", daemon=True)
        self.url = url
        self.is_up = threading.Event()
        self.is_silent = threading.Event()
        self.stopping = threading.Event()

    def run(self) -> None:
        answered_at = time.monotonic()
        # A new connection for every probe: a kept one would say nothing about whether new ones are accepted.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(timeout=WEB_LOOK_SECONDS, limits=limits, trust_env=False) as client:
            while not self.stopping.wait(WEB_LOOK_SECONDS if self.is_up.is_set() else 0.1):
                if self.answers(client):
                    answered_at = time.monotonic()
                    self.is_up.set()
                elif self.is_up.is_set() and time.monotonic() - answered_at > WEB_SILENCE_SECONDS:
                    answered_at = time.monotonic()
                    self.is_silent.set()

    def answers(self, client: httpx.Client) -> bool:
        """Any answer will do; the part that gave it is alive."""
        try:
            client.get(f"{self.url}/health", headers={"Host": host_header()})
        except httpx.HTTPError:
            return False
        return True


def host_header() -> str:
    """A host name that the application allows."""
    named = [name for name in settings.ALLOWED_HOSTS if not name.startswith(("*", "."))]
    return named[0] if named else "localhost"
