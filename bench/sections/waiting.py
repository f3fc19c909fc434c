"""A fleet that waits: memory and threads, CPU while idle, and how new tasks wake the agents that wait.

The yardstick holds as many requests on one subscription, and claims with one script when a message comes. Its time
from the message to the response is compared with the product's time from the message to its claim. How long the
product takes to its whole answer (rows, GitHub, labels) is a figure of its own.
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
from bench.context import Context
from bench.environment import WEBHOOK_SECRET
from bench.figures import Result, percentile, ratio
from bench.github import REPOSITORY, issue_json
from bench.installation import OFFERED, ROLE, Installation, ask_for
from bench.monitor import Monitor, Seen
from bench.processes import BenchFailed, Server, raise_file_limit

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


def run(context: Context) -> Result:
    result = Result("waiting")
    scale = context.scale
    agents = min(scale.waiting_agents, (raise_file_limit() - SPARE_FILES) // 2)
    context.say(f"a fleet of {agents:,}")
    # A fleet that came at once: their rows are of the same minute.
    fleet = Installation(
        context.environment,
        context.github,
        scale.few_issues,
        0,
        agents=agents + WARM_UP + scale.wakes + scale.herd + 100,
        minutes_apart=0,
    )
    product, bare = fleet.product, context.environment.bare(fleet.stores)
    names = fleet.agents(agents)
    hold_fleet(result, context, bare, names, "/wait", "bare")
    hold_fleet(result, context, product, names, "", "product")
    result.at_most("waiting: memory of an agent", find(result, "product: memory"), 20, unit="KB")
    result.at_most("waiting: threads that waiting agents add", find(result, "product: threads added"), 0)
    context.say(f"idle for {scale.idle_seconds:g} s")
    started, before = time.monotonic(), product.cpu_seconds
    time.sleep(scale.idle_seconds)
    idle = (product.cpu_seconds - before) / (time.monotonic() - started)
    result.at_most("waiting: CPU of one core while idle", 100 * idle, 5, unit="%")
    alone = wake_one_by_one(result, context, fleet)
    wake_many(result, context, fleet, agents, alone)
    context.load.ask("let_go")
    return result


def find(result: Result, start: str) -> float:
    return next(float(f.value) for f in result.figures if f.name.startswith(start))


def hold_fleet(
    result: Result, context: Context, server: Server, names: list[str], path: str, who: str
) -> None:
    """Let everybody wait, and measure what that adds to the server."""

    def hold(part: list[str]) -> None:
        wanted = ask_for(part, ROLE, WAIT_SECONDS, **({"path": path} if path else {}))
        if context.load.ask("hold", port=server.port, requests=wanted):
            raise BenchFailed(f"{who}: somebody did not have to wait")

    # The first requests load modules and fill caches; that is not the cost of an agent.
    hold(names[:WARM_UP])
    settle(server)
    memory = server.memory_bytes
    half = len(names) // 2
    context.say(f"{who} takes {len(names):,} agents")
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
    """Wait until the server is idle: until it uses next to no CPU time."""
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


def wake_one_by_one(result: Result, context: Context, fleet: Installation) -> float:
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
        # The first is the first of its priority and the first webhook of this process, so it is judged by itself.
        for number in range(context.scale.wakes + 1):
            context.say(f"waking one, {number} of {context.scale.wakes}")
            monitor.forget()
            client.zadd(QUEUE, {f"wake-{number}": number})
            context.load.send("collect", number=1, seconds=ANSWER_SECONDS)
            client.publish(CHANNEL, 1)
            answer = one_answer(context.load.receive(), "bare")
            published, claim = moments(monitor, CHANNEL)
            bare_times = [claim.at - published.at, answer["at"] - published.at]

            monitor.forget()
            issue, before = fleet.next_numbers(1), sum(fleet.stores.commands().values())
            context.load.send("collect", number=1, seconds=ANSWER_SECONDS)
            started = time.time()
            deliver(fleet.product, issue)
            answer = one_answer(context.load.receive(), "product")
            if answer.get("issue_id") != issue:
                raise BenchFailed(f"the agent was given {answer}, not issue {issue}")
            published, claim = moments(monitor, "wake")
            own_times = [claim.at - published.at, answer["at"] - published.at, answer["at"] - started]
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
        note=f"{context.scale.few_issues} tasks of a lower one are on offer to others",
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
    """When the message was published, and when the agent that was woken claimed."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        published = monitor.first(["PUBLISH"], channel)
        claim = monitor.first(SCRIPT_CALLS, after=published.at) if published is not None else None
        if published is not None and claim is not None:
            return published, claim
        time.sleep(0.005)
    raise BenchFailed("Redis saw no publish with a claim after it")


def wake_many(result: Result, context: Context, fleet: Installation, agents: int, alone: float) -> None:
    """As many new tasks at once as agents wait for one: nobody is woken in vain."""
    herd = min(context.scale.herd, agents)
    replacements = ask_for(fleet.agents(context.scale.wakes + 1), ROLE, WAIT_SECONDS)
    context.load.ask("hold", port=fleet.product.port, requests=replacements)
    settle(fleet.product)
    before = fleet.stores.commands()
    cpu = fleet.product.cpu_seconds
    context.say(f"{herd:,} new tasks at once")
    context.load.send("collect", number=herd, seconds=HERD_SECONDS)
    started = time.monotonic()
    fleet.offer(herd)
    offered = time.monotonic() - started
    answers = context.load.receive()
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
    # Agents that were woken in vain would show here: a claim that finds nothing takes some ten commands.
    result.at_most(
        "wake many: Redis commands for a task against waking one", ratio(each, alone), 1.5, unit="×"
    )
    result.at_most("wake many: issues assigned twice", counts["issues_assigned_twice"], 0)
