"""How long a reader of Redis waits while thousands of issues are refreshed, and what an unchanged refresh costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.context import Context
from bench.environment import NAMESPACE
from bench.figures import Result
from bench.installation import OTHERS, Installation

READ_KEY = f"{NAMESPACE}:issue:1"
QUIET_SECONDS = 2.0
LIMIT_MS = 10
STALL_MS = 5


def stalls(found: dict[str, int]) -> str:
    """What blocked Redis, by its own latency monitor: a slow disk, a fork, a long command."""
    if not found:
        return f"Redis was never blocked for {STALL_MS} ms"
    return "Redis was blocked by " + ", ".join(f"{name} for {ms} ms" for name, ms in sorted(found.items()))


def run(context: Context) -> Result:
    result = Result("refresh")
    number = context.scale.refreshed_issues
    installation = Installation(context.environment, context.github, 1, 0, agents=1, minutes_apart=0)
    reader = context.environment.command_process("bench.reader")
    port = installation.stores.redis_port

    installation.stores.redis.config_set("latency-monitor-threshold", STALL_MS)

    def watched(what: str, work: Callable[[], Any]) -> dict[str, Any]:
        context.say(what)
        before, cpu = (
            installation.stores.commands().get("evalsha", 0),
            installation.stores.redis_program.cpu_seconds,
        )
        installation.stores.redis.latency_reset()
        reader.ask("start", port=port, key=READ_KEY)
        started = time.monotonic()
        answer = work()
        seconds = time.monotonic() - started
        found: dict[str, Any] = reader.ask("stop")
        batches = installation.stores.commands().get("evalsha", 0) - before
        cpu = installation.stores.redis_program.cpu_seconds - cpu
        found |= {"seconds": seconds, "answer": answer, "batches": batches, "cpu_seconds": cpu}
        found["stalls"] = {event[0]: event[3] for event in installation.stores.redis.latency_latest()}
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
        context.github.call("PUT", "/-/issues", body)

    quiet = watched("nothing", lambda: time.sleep(min(QUIET_SECONDS, context.scale.idle_seconds)))
    list_issues("2026-02-01T00:00:00Z")
    first = watched(
        f"the first sync of {number:,} issues", lambda: installation.worker.ask("sync", force_full=True)
    )
    list_issues("2026-02-02T00:00:00Z")
    changed = watched(
        f"a sync with all {number:,} changed", lambda: installation.worker.ask("sync", force_full=True)
    )
    built = watched(f"a rebuild of {number:,}", lambda: installation.worker.ask("build"))
    for what, found in (("first sync", first), ("sync, all changed", changed), ("rebuild", built)):
        reading = quiet["cpu_seconds"] / quiet["answers"] * found["answers"]
        each = 1000 * max(found["cpu_seconds"] - reading, 0) / max(found["batches"], 1)
        result.at_most(
            f"cache refresh: a reader's longest wait, {what}",
            found["longest_ms"],
            LIMIT_MS,
            unit="ms",
            # On a busy machine the reader also waits for the processor. CPU time and stalls are Redis' own.
            note=f"with nothing going on {quiet['longest_ms']:.1f}; "
            f"{found['batches']} batches of {each:.1f} ms CPU on average; {stalls(found['stalls'])}",
        )
    installation.worker.ask("sync", force_full=False)  # takes the validators
    before = installation.stores.commands()
    unchanged = watched("an unchanged sync", lambda: installation.worker.ask("sync", force_full=False))
    spent = {name: n - before.get(name, 0) for name, n in installation.stores.commands().items()}
    ours = {name: n for name, n in spent.items() if n and name not in ("ping", "get")}
    gets = spent.get("get", 0) - unchanged["answers"] // 2
    result.details["unchanged commands"] = {**ours, "get": gets}
    result.at_most("cache refresh: Redis commands of an unchanged one", sum(ours.values()) + gets, 10)
    return result
