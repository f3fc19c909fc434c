"""request-task with nothing to give, beside the bare claim, with few and with many open issues."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.context import Context
from bench.costs import count_cost, note_cost
from bench.figures import Result, Round, ratio
from bench.installation import NO_SUCH_ROLE, REQUEST_TASK, Installation, ask_for, expect
from bench.processes import Server

BARE = "bare claim, nothing there"
WITH_TOKENS = "empty request, with tokens"


def run(context: Context) -> Result:
    result = Result("request")
    scale, few, many = context.scale, context.few, context.many
    tokens = few.worker.ask("make_tokens", prefix="token-", count=8)
    with_tokens = context.environment.product(few.stores, BROKER_AGENT_AUTH="token")
    counted, _ = few.counted
    context.say(
        f"starting {', '.join(one.name for one in (few.product, many.product, context.bare, counted))}"
    )
    requests = ask_for(few.agents(8), NO_SUCH_ROLE)
    few_name, many_name = f"empty request, {few.issues:,} issues", f"empty request, {many.issues:,} issues"

    def ask(server: Server, installation: Installation, wanted: list[dict[str, Any]], **limit: Any) -> Round:
        one, answer = context.round(
            server, installation, requests=wanted, connections=scale.connections, **limit
        )
        expect(answer["statuses"], "204", "empty request")
        return one

    contenders: dict[str, Callable[..., Round]] = {
        BARE: partial(ask, context.bare, few, [{**one, "path": "/claim"} for one in requests]),
        few_name: partial(ask, few.product, few, requests),
        many_name: partial(ask, many.product, many, requests),
        WITH_TOKENS: partial(
            ask,
            with_tokens,
            few,
            [{**ask_for([name], NO_SUCH_ROLE)[0], "token": token} for name, token in tokens],
        ),
    }
    for contender in contenders.values():  # warm up
        contender(count=200)
    timings = context.compare(
        {name: partial(contender, seconds=scale.round_seconds) for name, contender in contenders.items()}
    )
    result.timings = list(timings.values())
    for name in (few_name, many_name):
        result.at_least(
            f"{name}: rate against the bare claim",
            ratio(timings[name].rate, timings[BARE].rate),
            0.5,
            note=f"by CPU time {ratio(timings[BARE].cpu_us, timings[name].cpu_us) or 0:.2f}",
        )
    result.at_least(
        f"empty request: rate with {many.issues:,} against {few.issues:,} issues",
        ratio(timings[many_name].rate, timings[few_name].rate),
        0.9,
        note=f"by CPU time {ratio(timings[few_name].cpu_us, timings[many_name].cpu_us) or 0:.2f}",
    )
    for name, server in ((few_name, few.product), (many_name, many.product)):
        memory = server.memory_bytes / 2**20
        result.figure(f"{name}: memory of the server", memory, "MB", f"{server.threads} threads")
    context.say("counting")

    def operation(server: Server) -> None:
        status, _ = server.call("POST", REQUEST_TASK, requests[0]["body"])
        expect({str(status): 1}, "204", "counted empty request")

    count_cost(few, [operation] * 3)  # warm up
    cost = count_cost(few, [operation] * scale.counted)
    note_cost(result, "empty request", cost)
    result.at_most("empty request: Redis round trips", cost.round_trips, 1)
    result.at_most("empty request: database queries", cost.queries, 0)
    return result
