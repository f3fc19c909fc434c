"""An assignment from the request to the task, beside a bare claim that finds something.

GitHub answers at once. Every agent asks once; the database knows it already, but for the last contender. The bare
claim is there twice: under a bare uvicorn, which the bar is about, and under the product's own, which is twice as fast.
Beside them stands an assignment with nothing around its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from bench.bare import QUEUE
from bench.figures import Result, Round, Timing, ratio, summarise
from bench.scene import Server
from bench.stage import (
    REQUEST_TASK,
    ROLE,
    Field,
    Stage,
    ask_for,
    count_cost,
    expect,
    in_turn,
    note_cost,
)

BARE_CLAIMS = 40_000  # put into the queue before a round, more than a round can take
BARE = "bare claim, something there"
PLAIN = "bare claim, bare uvicorn"
SUSTAINED = "assignment, one after the other"
BARE_ASSIGNMENT = "bare assignment"
BARE_ASSIGNMENTS = 5  # to one of the product's: they take a third of its time
NEVER_SEEN = "assignment, agent never seen"


def run(stage: Stage) -> Result:
    result = Result("assign")
    scale = stage.scale
    few, some, many = stage.few, stage.some, stage.many
    few_name, many_name = f"assignment, {few.issues:,} issues", f"assignment, {many.issues:,} issues"
    numbers = count(1)
    strangers = count(0)

    def bare_round(name: str, server: Server, path: str = "/claim", **limit: Any) -> Round:
        first = next(numbers) * BARE_CLAIMS
        few.stores.redis.delete(QUEUE)
        few.stores.redis.zadd(QUEUE, {str(first + n): n for n in range(BARE_CLAIMS)})
        requests = ask_for(few.agents(1), ROLE, path=path)
        one, answer = stage.round(server, few, requests=requests, connections=scale.connections, **limit)
        expect(answer["statuses"], "200", name)
        few.stores.redis.delete(QUEUE)
        return one

    seconds = scale.round_seconds
    bare_assignments = BARE_ASSIGNMENTS * scale.assignments

    def hand_out(field: Field, agents: list[str], number: int = scale.assignments) -> Round:
        one, answer = stage.round(
            field.product,
            field,
            requests=ask_for(agents, ROLE),
            connections=scale.connections,
            count=number,
            keep_bodies=True,
        )
        expect(answer["statuses"], "200", "assignment")
        field.replace([task["issue_id"] for task in answer["bodies"]])
        return one

    contenders: dict[str, Callable[[], Round]] = {
        BARE: lambda: bare_round(BARE, stage.bare, seconds=seconds),
        PLAIN: lambda: bare_round(PLAIN, stage.plain, seconds=seconds),
        BARE_ASSIGNMENT: lambda: bare_round(
            BARE_ASSIGNMENT, stage.bare_assignment, "/assign", count=bare_assignments
        ),
        few_name: lambda: hand_out(few, few.agents(scale.assignments)),
        many_name: lambda: hand_out(many, many.agents(scale.assignments)),
        SUSTAINED: lambda: hand_out(some, some.agents(scale.sustained), scale.sustained),
        NEVER_SEEN: lambda: hand_out(few, [f"new-{next(strangers):05}" for _ in range(scale.assignments)]),
    }
    for field in (few, some, many):  # warm up
        hand_out(field, field.agents(scale.connections), scale.connections)
    bare_round(BARE_ASSIGNMENT, stage.bare_assignment, "/assign", count=scale.assignments)
    rounds: dict[str, list[Round]] = {name: [] for name in contenders}
    for number, name in in_turn(scale.rounds, list(contenders)):
        stage.say(f"round {number + 1} of {scale.rounds}, {name}")
        rounds[name].append(contenders[name]())
    timings = {name: summarise(name, found) for name, found in rounds.items()}
    result.timings = list(timings.values())
    judge(result, timings, few_name, many_name)
    stage.say("counting")
    count_assignments(result, stage, few)
    return result


def judge(result: Result, timings: dict[str, Timing], few_name: str, many_name: str) -> None:
    bare, plain, few, many = timings[BARE], timings[PLAIN], timings[few_name], timings[many_name]
    sustained, assignment = timings[SUSTAINED], timings[BARE_ASSIGNMENT]
    cpu = ratio(plain.cpu_us, sustained.cpu_us)
    result.at_least(
        "assignment: rate against the bare claim under a bare uvicorn",
        ratio(sustained.rate, plain.rate),
        0.15,
        note=f"by CPU time {cpu:.3f}; most of a core: {sustained.bottleneck}" if cpu else "",
    )
    result.at_most(
        f"assignment: CPU with {many_name.split(', ')[1]} against {few_name.split(', ')[1]}",
        ratio(many.cpu_us, few.cpu_us),
        1.2,
        unit="×",
        note=f"by rate {ratio(few.rate, many.rate) or 0:.2f}×",
    )
    for what, name in ((sustained, "assignment"), (assignment, BARE_ASSIGNMENT)):
        result.figure(
            f"{name}: rate against the bare claim under our uvicorn", ratio(what.rate, bare.rate) or 0
        )
    result.figure(
        "bare assignment: rate against the bare claim under a bare uvicorn",
        ratio(assignment.rate, plain.rate) or 0,
    )
    result.figure(
        "assignment: CPU against a bare assignment", ratio(sustained.cpu_us, assignment.cpu_us) or 0, "×"
    )
    new = timings[NEVER_SEEN]
    result.figure("assignment: CPU of a never seen agent", ratio(new.cpu_us, few.cpu_us) or 0, "×")


def count_assignments(result: Result, stage: Stage, few: Field) -> None:
    given: list[dict[str, Any]] = []

    def operation(agent: str) -> Callable[[Server], None]:
        def ask(server: Server) -> None:
            status, task = server.call("POST", REQUEST_TASK, ask_for([agent], ROLE)[0]["body"])
            expect({str(status): 1}, "200", "counted assignment")
            given.append(task)

        return ask

    number = min(stage.scale.counted, stage.scale.offered // 3)
    count_cost(few, [operation(agent) for agent in few.agents(3)])
    calls = stage.github.call("GET", "/-/calls")[1]
    cost = count_cost(few, [operation(agent) for agent in few.agents(number)])
    after = stage.github.call("GET", "/-/calls")[1]
    note_cost(result, "assignment", cost)
    result.figure("assignment: requests to GitHub", (sum(after.values()) - sum(calls.values())) / number)
    result.at_most("assignment: database queries", cost.queries, 4)
    result.at_most("assignment: Redis round trips", cost.round_trips, 3)
    strangers = count_cost(few, [operation(f"stranger-{n}") for n in range(5)])
    note_cost(result, "assignment, agent never seen", strangers)
    few.replace([task["issue_id"] for task in given])
