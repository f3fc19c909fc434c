"""request-task with nothing to give, beside the bare claim, with few and with many open issues in the cache."""

from __future__ import annotations

from bench.figures import Result, Round, ratio, summarise
from bench.scene import Server
from bench.stage import NO_SUCH_ROLE, Field, Stage, ask_for, count_cost, expect, in_turn, note_cost


def run(stage: Stage) -> Result:
    result = Result("request")
    scale = stage.scale
    few, many = stage.few, stage.many
    tokens = few.worker.ask("make_tokens", prefix="token-", count=8)
    with_tokens = stage.scene.product(few.stores, BROKER_AGENT_AUTH="token")
    counted, _ = few.counted
    stage.say(f"starting {', '.join(one.name for one in (few.product, many.product, stage.bare, counted))}")
    wanted = ask_for(few.agents(8), NO_SUCH_ROLE)
    few_name, many_name = f"empty request, {few.issues:,} issues", f"empty request, {many.issues:,} issues"
    contenders: dict[str, tuple[Server, Field, list[dict[str, object]]]] = {
        "bare claim, nothing there": (stage.bare, few, [{**one, "path": "/claim"} for one in wanted]),
        few_name: (few.product, few, wanted),
        many_name: (many.product, many, wanted),
        "empty request, with tokens": (
            with_tokens,
            few,
            [{**ask_for([name], NO_SUCH_ROLE)[0], "token": token} for name, token in tokens],
        ),
    }
    rounds: dict[str, list[Round]] = {name: [] for name in contenders}
    for server, field, requests in contenders.values():  # warm up
        stage.round(server, field, requests=requests, connections=scale.connections, count=200)
    for number, name in in_turn(scale.rounds, list(contenders)):
        stage.say(f"round {number + 1} of {scale.rounds}")
        server, field, requests = contenders[name]
        one, answer = stage.round(
            server, field, requests=requests, connections=scale.connections, seconds=scale.round_seconds
        )
        expect(answer["statuses"], "204", name)
        rounds[name].append(one)
    timings = {name: summarise(name, found) for name, found in rounds.items()}
    result.timings = list(timings.values())
    bare = timings["bare claim, nothing there"]
    for name in (few_name, many_name):
        found = timings[name]
        cpu = ratio(bare.cpu_us, found.cpu_us)
        result.at_least(
            f"{name}: rate against the bare claim",
            ratio(found.rate, bare.rate),
            0.5,
            note=f"by CPU time {cpu:.2f}" if cpu else "",
        )
    result.at_least(
        f"empty request: rate with {many.issues:,} against {few.issues:,} issues",
        ratio(timings[many_name].rate, timings[few_name].rate),
        0.9,
        note=f"by CPU time {timings[few_name].cpu_us / max(timings[many_name].cpu_us, 1):.2f}",
    )
    for name, server in ((few_name, few.product), (many_name, many.product)):
        memory = server.memory_bytes / 2**20
        result.figure(f"{name}: memory of the server", memory, "MB", f"{server.threads} threads")
    stage.say("counting")
    body = wanted[0]["body"]

    def operation(server: Server) -> None:
        status, _ = server.call("POST", wanted[0]["path"], body)
        expect({str(status): 1}, "204", "counted empty request")

    count_cost(few, [operation] * 3)
    cost = count_cost(few, [operation] * scale.counted)
    note_cost(result, "empty request", cost)
    result.at_most("empty request: Redis round trips", cost.round_trips, 1)
    result.at_most("empty request: database queries", cost.queries, 0)
    return result
