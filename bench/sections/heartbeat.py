"""What a heartbeat costs Redis, and how often it is written to the database."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from bench.context import Context
from bench.costs import WRITES, count_cost, note_cost, query_counts
from bench.figures import Result, Round, summarise
from bench.installation import REQUEST_TASK, ROLE, ask_for, expect
from bench.processes import BenchFailed, Server

PAUSE_SECONDS = 1.0


def run(context: Context) -> Result:
    result = Result("heartbeat")
    scale, few = context.scale, context.few
    server, _ = few.counted
    leases = take_leases(context, server)
    paths = [f"/api/v1/assignments/{task['assignment_id']}/heartbeat" for task in leases]
    requests = [{"path": path, "body": {"progress": "still at it"}} for path in paths]

    context.say("counting")

    def beat(path: str) -> Any:
        def operation(counted: Server) -> None:
            status, _ = counted.call("POST", path, {"progress": "still at it"})
            expect({str(status): 1}, "200", "counted heartbeat")

        return operation

    # The first one after an assignment, then one that finds everything warm.
    note_cost(result, "first heartbeat", count_cost(few, [beat(path) for path in paths]))
    cost = count_cost(few, [beat(paths[n % len(paths)]) for n in range(scale.counted)])
    note_cost(result, "heartbeat", cost)
    result.at_most("heartbeat: Redis round trips", cost.round_trips, 1)

    minutes, writes = count_writes(context, server, paths)
    window = f"{len(paths)} leases for {60 * minutes:.0f} s, one beat every {PAUSE_SECONDS:g} s"
    # A window shorter than a minute may hold the one write of its minute.
    allowed = writes / len(paths) / max(minutes, 1)
    result.at_most("heartbeat: database writes a minute and lease", allowed, 1, note=window)

    rounds: list[Round] = []
    for number in range(scale.rounds):
        context.say(f"round {number + 1} of {scale.rounds}")
        one, answer = context.round(
            few.product, few, requests=requests, connections=scale.connections, seconds=scale.round_seconds
        )
        expect(answer["statuses"], "200", "heartbeat")
        rounds.append(one)
    result.timings.append(summarise("heartbeat", rounds))
    few.replace([task["issue_id"] for task in leases])
    return result


def take_leases(context: Context, server: Server) -> list[dict[str, Any]]:
    few = context.few
    number = min(context.scale.heartbeat_leases, context.scale.offered)
    answer = context.load.ask(
        "run",
        port=server.port,
        requests=ask_for(few.agents(number), ROLE, path=REQUEST_TASK),
        connections=4,
        count=number,
        keep_bodies=True,
    )
    expect(answer["statuses"], "200", "leases for heartbeats")
    found: list[dict[str, Any]] = answer["bodies"]
    if len(found) != number:
        raise BenchFailed(f"{len(found)} leases instead of {number}")
    return found


def count_writes(context: Context, server: Server, paths: list[str]) -> tuple[float, int]:
    """Send heartbeats steadily for a while; returns the minutes, and the database writes in them."""
    before = Counter(query_counts(server)["counts"])
    started = time.monotonic()
    requests = [{"path": path, "body": {}} for path in paths]
    while (gone := time.monotonic() - started) < context.scale.heartbeat_window_seconds:
        context.say(f"{gone:.0f} of {context.scale.heartbeat_window_seconds:.0f} s")
        answer = context.load.ask(
            "run", port=server.port, requests=requests, connections=2, count=len(requests)
        )
        expect(answer["statuses"], "200", "steady heartbeats")
        time.sleep(PAUSE_SECONDS)
    minutes = (time.monotonic() - started) / 60
    after = Counter(query_counts(server)["counts"])
    return minutes, sum(after[word] - before[word] for word in WRITES)
