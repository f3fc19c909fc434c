"""A fleet that waits: what it holds, what it costs idle, how one new task finds one agent, and thousands thousands.

The yardstick holds as many waiting requests on one subscription and claims with one script when it is rung. Its time
from the publish to the response is what the product's time from the publish to its own claim is compared with; how
long the product's whole answer takes (rows, GitHub, labels) is a figure beside it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from itertools import count
from statistics import median
from typing import Any

from bench.bare import CHANNEL, QUEUE
from bench.figures import Result, percentile, ratio
from bench.github import REPOSITORY, issue_json
from bench.monitor import Monitor, Seen
from bench.scene import WEBHOOK_SECRET, BenchFailed, Server, raise_file_limit
from bench.stage import OFFERED, ROLE, Field, Stage, ask_for

WAIT_SECONDS = 600
SPARE_FILES = 700
WARM_UP = 50
ANSWER_SECONDS = 30.0
SETTLE_SECONDS = 60.0
QUIET_WINDOW_SECONDS = 0.4
QUIET_SHARE = 0.05
HERD_SECONDS = 420.0  # an agent waits for ten minutes
SCRIPT_CALLS = ("EVALSHA", "EVAL", "FCALL")
_deliveries = count(1)


def run(stage: Stage) -> Result:
    result = Result("waiting")
    scale = stage.scale
    agents = min(scale.waiting_agents, (raise_file_limit() - SPARE_FILES) // 2)
    stage.say(f"a fleet of {agents:,}")
    # A fleet that came at once: their rows are of the same minute.
    fleet = Field(
        stage.scene,
        stage.github,
        scale.few_issues,
        0,
        agents=agents + WARM_UP + scale.wakes + scale.herd + 100,
        minutes_apart=0,
    )
    product, bare = fleet.product, stage.scene.bare(fleet.stores)
    names = fleet.agents(agents)
    hold_fleet(result, stage, bare, names, "/wait", "bare")
    hold_fleet(result, stage, product, names, "", "product")
    result.at_most("waiting: memory of an agent", find(result, "product: memory"), 25, unit="KB")
    result.at_most("waiting: threads that agents add", find(result, "product: threads added"), 0)
    stage.say(f"idle for {scale.idle_seconds:g} s")
    started, before = time.monotonic(), product.cpu_seconds
    time.sleep(scale.idle_seconds)
    idle = (product.cpu_seconds - before) / (time.monotonic() - started)
    result.at_most("waiting: CPU of one core while idle", 100 * idle, 5, unit="%")
    alone = wake_one_by_one(result, stage, fleet)
    wake_many(result, stage, fleet, agents, alone)
    stage.load.ask("let_go")
    return result


def find(result: Result, start: str) -> float:
    return next(float(f.value) for f in result.figures if f.name.startswith(start))


def hold_fleet(result: Result, stage: Stage, server: Server, names: list[str], path: str, who: str) -> None:
    """Let everybody wait, and see what that takes beside what the server had before."""

    def hold(part: list[str]) -> None:
        wanted = ask_for(part, ROLE, WAIT_SECONDS, **({"path": path} if path else {}))
        if stage.load.ask("hold", port=server.port, requests=wanted):
            raise BenchFailed(f"{who}: somebody did not have to wait")

    # What is loaded with the first requests belongs to nobody in particular.
    hold(names[:WARM_UP])
    settle(server)
    memory = server.memory_bytes
    half = len(names) // 2
    stage.say(f"{who} takes {len(names):,} agents")
    hold(names[WARM_UP:half])
    settle(server)
    threads = server.threads
    hold(names[half:])
    settle(server)
    each = (server.memory_bytes - memory) / (len(names) - WARM_UP)
    result.figure(f"{who}: memory of a waiting agent", each / 1024, "KB", "of the process alone")
    result.figure(
        f"{who}: threads added by the second half of {len(names):,}",
        server.threads - threads,
        "",
        f"{server.threads} in all",
    )


def settle(server: Server) -> None:
    """Wait until a server has taken in what it was sent: until it hardly uses its processor any more."""
    quiet = 0
    until = time.monotonic() + SETTLE_SECONDS
    while quiet < 2 and time.monotonic() < until:
        before = server.cpu_seconds
        time.sleep(QUIET_WINDOW_SECONDS)
        quiet = quiet + 1 if server.cpu_seconds - before <= QUIET_SHARE * QUIET_WINDOW_SECONDS else 0


def deliver(server: Server, number: int) -> None:
    """A signed webhook: somebody opened an issue."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    payload = {
        "action": "opened",
        "issue": issue_json(number, OFFERED, stamp),
        "repository": {"full_name": REPOSITORY},
        "sender": {"login": "bench"},
    }
    body = json.dumps(payload).encode()
    signature = hmac.new(WEBHOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": f"bench-{next(_deliveries)}",
        "X-Hub-Signature-256": f"sha256={signature}",
    }
    status, answer = server.call("POST", "/webhooks/github", body, headers)
    if status != 202:
        raise BenchFailed(f"webhook: {status} {answer}")


def wake_one_by_one(result: Result, stage: Stage, fleet: Field) -> float:
    """One task at a time, the yardstick and the product in turn, everybody else still waiting.

    Returns how many Redis commands a task took, from the webhook to the answer.
    """
    times: dict[str, list[float]] = {
        "bare: publish to claim": [],
        "bare: publish to response": [],
        "product: publish to claim": [],
        "product: publish to answer": [],
        "product: webhook to answer": [],
    }
    claims: list[int] = []
    commands: list[int] = []
    client = fleet.stores.redis
    with Monitor(fleet.stores.embedded.url) as monitor:
        # The first is the first of its priority, and the first webhook of this process: looked at by itself.
        for number in range(stage.scale.wakes + 1):
            stage.say(f"waking one, {number} of {stage.scale.wakes}")
            monitor.forget()
            client.zadd(QUEUE, {f"wake-{number}": number})
            stage.load.tell("collect", number=1, seconds=ANSWER_SECONDS)
            client.publish(CHANNEL, 1)
            answer = one_answer(stage.load.hear(), "bare")
            rung, claim = moments(monitor, CHANNEL)
            bare_times = [claim.at - rung.at, answer["at"] - rung.at]

            monitor.forget()
            issue, before = fleet.next_numbers(1), sum(fleet.stores.commands().values())
            stage.load.tell("collect", number=1, seconds=ANSWER_SECONDS)
            started = time.time()
            deliver(fleet.product, issue)
            answer = one_answer(stage.load.hear(), "product")
            if answer.get("issue_id") != issue:
                raise BenchFailed(f"the agent was given {answer}, not issue {issue}")
            rung, claim = moments(monitor, "wake")
            own_times = [claim.at - rung.at, answer["at"] - rung.at, answer["at"] - started]
            claims.append(monitor.repeats(claim))
            commands.append(sum(fleet.stores.commands().values()) - before)
            if number:
                for name, seconds in zip(times, [*bare_times, *own_times], strict=True):
                    times[name].append(seconds)
    for name, found in times.items():
        shown = [f"p{share} {1000 * percentile(found, share / 100):.2f}" for share in (50, 95, 99)]
        result.figure(f"wake one, {name}", 1000 * percentile(found, 0.5), "ms", " ".join(shown))
    yardstick = percentile(times["bare: publish to response"], 0.99)
    result.at_most(
        "wake one: publish to claim, p99, against the bare publish to response",
        ratio(percentile(times["product: publish to claim"], 0.99), yardstick),
        3,
        unit="×",
        note=f"by medians {beside(times, 'product: publish to claim'):.2f}×; "
        f"to the whole answer {beside(times, 'product: publish to answer'):.1f}×",
    )
    result.at_most("wake one: claims for one task", sum(claims[1:]) / len(claims[1:]), 1.1)
    result.at_most(
        "wake one: claims for the first task of a better priority",
        claims[0],
        2,
        note=f"{stage.scale.few_issues} tasks of a lower one are on offer to others",
    )
    result.figure("wake one: Redis commands for a task", median(commands[1:]))
    return median(commands[1:])


def beside(times: dict[str, list[float]], name: str) -> float:
    return percentile(times[name], 0.5) / percentile(times["bare: publish to response"], 0.5)


def one_answer(answers: list[dict[str, Any]], who: str) -> dict[str, Any]:
    if len(answers) != 1 or answers[0]["status"] != 200:
        raise BenchFailed(f"{who}: {answers or 'nobody was woken'}")
    return answers[0]


def moments(monitor: Monitor, channel: str) -> tuple[Seen, Seen]:
    """When Redis was told to ring, and when the one who heard it claimed."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        rung = monitor.first(["PUBLISH"], channel)
        claim = monitor.first(SCRIPT_CALLS, after=rung.at) if rung is not None else None
        if rung is not None and claim is not None:
            return rung, claim
        time.sleep(0.005)
    raise BenchFailed("Redis saw no publish with a claim after it")


def wake_many(result: Result, stage: Stage, fleet: Field, agents: int, alone: float) -> None:
    """As many new tasks at once as there are agents to take them: nobody asks in vain."""
    herd = min(stage.scale.herd, agents)
    replacements = ask_for(fleet.agents(stage.scale.wakes + 1), ROLE, WAIT_SECONDS)
    stage.load.ask("hold", port=fleet.product.port, requests=replacements)
    settle(fleet.product)
    before = fleet.stores.commands()
    cpu = fleet.product.cpu_seconds
    stage.say(f"{herd:,} new tasks at once")
    stage.load.tell("collect", number=herd, seconds=HERD_SECONDS)
    started = time.monotonic()
    fleet.offer(herd)
    offered = time.monotonic() - started
    answers = stage.load.hear()
    seconds = time.monotonic() - started
    spent = {name: n - before.get(name, 0) for name, n in fleet.stores.commands().items()}
    cpu = fleet.product.cpu_seconds - cpu
    statuses = {str(answer["status"]) for answer in answers}
    issues = {answer.get("issue_id") for answer in answers}
    if statuses != {"200"} or len(issues) != len(answers):
        raise BenchFailed(f"{len(answers)} answers {statuses} with {len(issues)} issues for {herd} tasks")
    counts = fleet.worker.ask("assignment_counts")
    result.details["herd"] = {"assignments": counts, "commands": spent}
    many = f"{herd:,} tasks at once"
    result.figure(f"{many}: until the last answer", seconds, "s", f"put on offer in {offered:.1f} s")
    each = sum(spent.values()) / len(answers)
    result.figure(f"{many}: Redis commands for a task", each)
    result.figure(f"{many}: CPU for a task", 1e6 * cpu / len(answers), "µs")
    result.at_least(
        f"wake many: agents with a task, {herd:,} tasks and agents",
        len(answers) / herd,
        1,
        note=f"{len(answers):,} within {seconds:.0f} s",
    )
    # Agents that ask in vain would show here: a claim that finds nothing is ten commands or so.
    result.at_most(
        "wake many: Redis commands for a task against waking one", ratio(each, alone), 1.5, unit="×"
    )
    result.at_most("wake many: issues assigned twice", counts["issues_assigned_twice"], 0)
