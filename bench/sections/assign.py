"""An assignment from the request to the task, beside the same calls with nothing around them.

GitHub's stand-in answers at once. Every agent asks once; all but the last contender's are known to the database.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from bench.bare import QUEUE
from bench.context import Context
from bench.costs import Operation, count_cost, note_cost
from bench.figures import Result, Round, Timing, ratio
from bench.installation import REQUEST_TASK, ROLE, Installation, ask_for, expect
from bench.processes import Server
from bench.simulation import ASSIGN_DEVELOPMENT, Scenario

BARE = "bare assignment"
NEVER_SEEN = "assignment, agent never seen"
BARE_ROUNDS = 5  # the bare one is faster: so many more a round, for a round of similar length
# What GitHub allows one token: 80 writes a minute, two for an assignment (a branch, labels).
GITHUB_LIMIT_PER_SECOND = Scenario.writes_per_minute / ASSIGN_DEVELOPMENT.writes / 60


def run(context: Context) -> Result:
    result = Result("assign")
    scale, few, many = context.scale, context.few, context.many
    few_name, many_name = f"assignment, {few.issues:,} issues", f"assignment, {many.issues:,} issues"
    strangers, numbers = count(0), count(1)

    def assign(installation: Installation, agents: list[str]) -> Round:
        one, answer = context.round(
            installation.product,
            installation,
            requests=ask_for(agents, ROLE),
            connections=scale.connections,
            count=len(agents),
            keep_bodies=True,
        )
        expect(answer["statuses"], "200", "assignment")
        installation.replace([task["issue_id"] for task in answer["bodies"]])
        return one

    def assign_bare(number: int = BARE_ROUNDS * scale.assignments) -> Round:
        few.stores.redis.zadd(QUEUE, {str(next(numbers)): n for n in range(number)})
        requests = ask_for(few.agents(1), ROLE, path="/assign")
        one, answer = context.round(
            context.bare_assignment, few, requests=requests, connections=scale.connections, count=number
        )
        expect(answer["statuses"], "200", BARE)
        return one

    contenders: dict[str, Callable[[], Round]] = {
        BARE: assign_bare,
        few_name: lambda: assign(few, few.agents(scale.assignments)),
        many_name: lambda: assign(many, many.agents(scale.assignments)),
        NEVER_SEEN: lambda: assign(few, [f"new-{next(strangers):05}" for _ in range(scale.assignments)]),
    }
    for installation in (few, many):  # warm up
        assign(installation, installation.agents(scale.connections))
    assign_bare(scale.assignments)
    timings = context.compare(contenders)
    result.timings = list(timings.values())
    judge(result, timings, few_name, many_name)
    context.say("counting")
    count_assignments(result, context, few)
    return result


def judge(result: Result, timings: dict[str, Timing], few_name: str, many_name: str) -> None:
    bare, few, many, new = (timings[name] for name in (BARE, few_name, many_name, NEVER_SEEN))
    result.at_least(
        "assignment: rate against a bare assignment",
        ratio(few.rate, bare.rate),
        0.3,
        note=f"by CPU time {ratio(bare.cpu_us, few.cpu_us) or 0:.2f}; busiest process: {few.bottleneck}",
    )
    result.at_most(
        f"{many_name}: CPU against {few_name.split(', ')[1]}",
        ratio(many.cpu_us, few.cpu_us),
        1.2,
        unit="×",
        note=f"by rate {ratio(few.rate, many.rate) or 0:.2f}×",
    )
    result.figure(
        "assignment: rate against what GitHub allows one token",
        few.rate / GITHUB_LIMIT_PER_SECOND,
        "×",
        f"{few.rate:,.0f} a second; GitHub: {60 * GITHUB_LIMIT_PER_SECOND:g} a minute",
    )
    result.figure("assignment: CPU of an agent never seen", ratio(new.cpu_us, few.cpu_us) or 0, "×")


def count_assignments(result: Result, context: Context, few: Installation) -> None:
    given: list[dict[str, Any]] = []

    def operation(agent: str) -> Operation:
        def ask(server: Server) -> None:
            status, task = server.call("POST", REQUEST_TASK, ask_for([agent], ROLE)[0]["body"])
            expect({str(status): 1}, "200", "counted assignment")
            given.append(task)

        return ask

    number = min(context.scale.counted, context.scale.offered // 3)
    count_cost(few, [operation(agent) for agent in few.agents(3)])  # warm up
    calls = context.github.call("GET", "/-/calls")[1]
    cost = count_cost(few, [operation(agent) for agent in few.agents(number)])
    after = context.github.call("GET", "/-/calls")[1]
    note_cost(result, "assignment", cost)
    result.at_most("assignment: database queries", cost.queries, 6)
    result.at_most("assignment: Redis round trips", cost.round_trips, 3)
    requests = (sum(after.values()) - sum(calls.values())) / number
    result.at_most("assignment: requests to GitHub", requests, 3)
    strangers = count_cost(few, [operation(f"stranger-{n}") for n in range(5)])
    note_cost(result, NEVER_SEEN, strangers)
    few.replace([task["issue_id"] for task in given])
