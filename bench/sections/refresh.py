"""Refreshing the cache of thousands of issues: how long a reader waits meanwhile, and what an unchanged one costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.figures import Result
from bench.scene import NAMESPACE
from bench.stage import OTHERS, Field, Stage

READ_KEY = f"{NAMESPACE}:issue:1"
QUIET_SECONDS = 2.0
LIMIT_MS = 10
STALL_MS = 5


def stalls(found: dict[str, int]) -> str:
    """What Redis says kept it for longer than its commands take: a slow disk, a fork, a long command."""
    if not found:
        return f"Redis was never kept for {STALL_MS} ms"
    return "Redis was kept by " + ", ".join(f"{name} for {ms} ms" for name, ms in sorted(found.items()))


def run(stage: Stage) -> Result:
    result = Result("refresh")
    number = stage.scale.refreshed_issues
    stores = Field(stage.scene, stage.github, 1, 0, agents=1, minutes_apart=0)
    reader = stage.scene.talker("bench.reader")
    port = stores.stores.redis_port

    stores.stores.redis.config_set("latency-monitor-threshold", STALL_MS)

    def watched(what: str, work: Callable[[], Any]) -> dict[str, Any]:
        stage.say(what)
        before, cpu = stores.stores.commands().get("evalsha", 0), stores.stores.redis_program.cpu_seconds
        stores.stores.redis.latency_reset()
        reader.ask("start", port=port, key=READ_KEY)
        started = time.monotonic()
        answer = work()
        seconds = time.monotonic() - started
        found: dict[str, Any] = reader.ask("stop")
        batches = stores.stores.commands().get("evalsha", 0) - before
        cpu = stores.stores.redis_program.cpu_seconds - cpu
        found |= {"seconds": seconds, "answer": answer, "batches": batches, "cpu_seconds": cpu}
        found["stalls"] = {event[0]: event[3] for event in stores.stores.redis.latency_latest()}
        result.details[what] = found
        result.figure(
            f"reader during {what}: longest answer",
            found["longest_ms"],
            "ms",
            f"p50 {found['p50_ms']:.2f}, p99 {found['p99_ms']:.2f}, {seconds:.1f} s",
        )
        return found

    def list_issues(stamp: str) -> None:
        body = {"count": number, "stamp": stamp, "labels": OTHERS}
        stage.github.call("PUT", "/-/issues", body)

    quiet = watched("nothing", lambda: time.sleep(min(QUIET_SECONDS, stage.scale.idle_seconds)))
    list_issues("2026-02-01T00:00:00Z")
    first = watched(
        f"the first sync of {number:,} issues", lambda: stores.worker.ask("sync", force_full=True)
    )
    list_issues("2026-02-02T00:00:00Z")
    changed = watched(
        f"a sync with all {number:,} changed", lambda: stores.worker.ask("sync", force_full=True)
    )
    built = watched(f"a rebuild of {number:,}", lambda: stores.worker.ask("build"))
    for what, found in (("first sync", first), ("sync, all changed", changed), ("rebuild", built)):
        reading = quiet["cpu_seconds"] / quiet["answers"] * found["answers"]
        each = 1000 * max(found["cpu_seconds"] - reading, 0) / max(found["batches"], 1)
        result.at_most(
            f"cache refresh: a reader's longest wait, {what}",
            found["longest_ms"],
            LIMIT_MS,
            unit="ms",
            # The reader also waits for its own turn on a busy machine; what Redis computed it cannot have imagined, and
            # Redis itself notes what kept it.
            note=f"with nothing going on {quiet['longest_ms']:.1f}; "
            f"{found['batches']} batches of {each:.1f} ms CPU on average; {stalls(found['stalls'])}",
        )
    stores.worker.ask("sync", force_full=False)  # takes the validators
    before = stores.stores.commands()
    unchanged = watched("an unchanged sync", lambda: stores.worker.ask("sync", force_full=False))
    spent = {name: n - before.get(name, 0) for name, n in stores.stores.commands().items()}
    ours = {name: n for name, n in spent.items() if n and name not in ("ping", "get")}
    gets = spent.get("get", 0) - unchanged["answers"] // 2
    result.details["unchanged commands"] = {**ours, "get": gets}
    result.at_most("cache refresh: Redis commands of an unchanged one", sum(ours.values()) + gets, 10)
    return result
