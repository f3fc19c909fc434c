"""Inside the django-q2 cluster: files that its workers write, so that the watchdog can see whether they work.

django-q2's own heartbeat comes from its sentinel and goes on although no worker gets anything: a worker killed while it
waits for a task keeps the queue's reader lock, and every later worker waits for that lock for ever. So each worker
records that it exists, that it is busy, and which canary it ran last, and the watchdog
(:mod:`broker_project.ops.supervisor.watchdog`) compares that with what it queued.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone
from django_q.signals import post_execute_in_worker, post_spawn, pre_execute

from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.ops.clock.pollers import PollOptions, run_poller
from broker_project.ops.clock.schedules import recall_schedules

log = get_logger(__name__)

CANARY = "broker_project.ops.clock.cluster.run_canary"
FIRST_ROUND = "broker_project.ops.clock.cluster.run_in_turn"
MAX_FAILURE = 10_000  # characters


def run_folder(var: Path) -> Path:
    return var / "run" / "cluster"


def run_canary(token: str) -> None:
    """The task that proves a worker works: it writes its token. It also repairs schedules that are too far ahead."""
    draft = run_folder(settings.BROKER.var) / f".canary.{os.getpid()}"
    draft.write_text(token)
    draft.replace(run_folder(settings.BROKER.var) / "canary")
    if names := recall_schedules(timezone.now()):
        log.warning("runs were scheduled too far ahead and are brought back", pollers=names)


def run_in_turn(names: list[str]) -> None:
    """The first round of a fresh installation: each poller once, ``items`` until nothing is due."""
    for name in names:
        run_poller(name, PollOptions(all=name == "items", by="first start"))


def install_worker_hooks() -> None:
    """Call this before the cluster forks its workers."""
    folder = run_folder(settings.BROKER.var)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    post_spawn.connect(note_spawned, dispatch_uid="broker-spawned")
    pre_execute.connect(note_begun, dispatch_uid="broker-begun")
    post_execute_in_worker.connect(note_finished, dispatch_uid="broker-finished")


def note_spawned(**kwargs: Any) -> None:
    (run_folder(settings.BROKER.var) / f"worker-{os.getpid()}").touch()


def note_begun(**kwargs: Any) -> None:
    folder = run_folder(settings.BROKER.var)
    (folder / f"busy-{os.getpid()}").touch()
    (folder / "beat").touch()


def note_finished(task: dict[str, Any], **kwargs: Any) -> None:
    if not task["success"]:
        # django-q2 keeps the traceback of a failure in its own table, and logs it.
        task["result"] = redact(str(task["result"]), MAX_FAILURE)
    folder = run_folder(settings.BROKER.var)
    (folder / f"busy-{os.getpid()}").unlink(missing_ok=True)
    (folder / "beat").touch()


@dataclass(frozen=True)
class WorkerTraces:
    """What the workers of one cluster have written."""

    workers: frozenset[int]
    busy: frozenset[int]
    beat_at: float  # seconds since the epoch; 0: nothing has begun yet
    canary: str


def read_traces(var: Path, cluster_pid: int) -> WorkerTraces:
    """The traces of the living workers of the cluster whose process group ``cluster_pid`` leads."""
    folder = run_folder(var)

    def living(kind: str) -> frozenset[int]:
        found = set()
        for path in folder.glob(f"{kind}-*"):
            pid = path.name.rpartition("-")[2]
            if pid.isdecimal() and is_in_group(int(pid), cluster_pid):
                found.add(int(pid))
            else:
                path.unlink(missing_ok=True)  # a worker that was killed could not remove it
        return frozenset(found)

    try:
        beat_at = (folder / "beat").stat().st_mtime
    except FileNotFoundError:
        beat_at = 0.0
    try:
        canary = (folder / "canary").read_text()
    except FileNotFoundError:
        canary = ""
    return WorkerTraces(living("worker"), living("busy"), beat_at, canary)


def is_in_group(pid: int, group: int) -> bool:
    """False also for a pid that another program has now."""
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False
