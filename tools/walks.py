"""Trace the five walks of docs/architecture.md: which of our files does one request, item or match pass through?

``python -m tools.walks`` prints the lists, ``--write`` puts them into the document. ``tests/test_walks.py`` compares
the document with a new trace. The traced process is a child with its own database, Redis and stand-ins.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "architecture.md"
PACKAGES = ("broker_project", "tasks", "feeds", "fixtures")
REPOSITORY = "broker-sandbox/demo"
WEBHOOK_SECRET = "secret-of-the-walks"
WARM_UPS = 2  # of each call, so that imports and cold caches do not count
TRACES = 5  # of each call
CALLS = WARM_UPS + TRACES
SETTLE_SECONDS = 3.0  # longer than any value is kept in the process: every run of a poller reads them again
WOKEN = ("tasks/agents_api/long_poll.py", "Waiters.wake_one")
PLACE = re.compile(r"<!-- walk: (?P<name>[a-z-]+) -->\n.*?<!-- end -->", re.DOTALL)
CO_OPTIMIZED = 1  # set for functions, not for the bodies of modules and classes

Step = tuple[str, str]  # a file and a function that is entered in it
Walks = dict[str, list[Step]]  # every entry, in order


class Tracer:
    """Notes every function of ours that is entered while it is on, in all threads that start after it."""

    def __init__(self) -> None:
        self.entered: list[Step] = []
        self.is_on = False
        self._steps: dict[CodeType, Step | None] = {}

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call":
            code = frame.f_code
            if code not in self._steps:
                self._steps[code] = step_of(code)
            if step := self._steps[code]:
                self.entered.append(step)

    @contextmanager
    def tracing(self) -> Iterator[list[Step]]:
        self.entered = []
        self.is_on = True
        try:
            yield self.entered
        finally:
            self.is_on = False


def step_of(code: CodeType) -> Step | None:
    path = Path(code.co_filename)
    if not code.co_flags & CO_OPTIMIZED or not path.is_relative_to(ROOT):
        return None
    file = path.relative_to(ROOT)
    if file.parts[0] not in PACKAGES:
        return None
    name = code.co_qualname.split(".<locals>")[0]
    return None if "<" in name else (str(file), name)


def files_in_order(entered: list[Step]) -> list[Step]:
    """One step for each file, in the order of first entry."""
    found: dict[str, str] = {}
    for file, function in entered:
        found.setdefault(file, function)
    return list(found.items())


def changes_of_file(entered: list[Step]) -> int:
    return sum(one[0] != next_one[0] for one, next_one in pairwise(entered))


def up_to(entered: list[Step], last: Step) -> list[Step]:
    return entered[: entered.index(last) + 1]


def quietest(traces: list[list[Step]]) -> list[Step]:
    """The trace with the fewest calls: timers in the background disturb some of them."""
    return min(traces, key=len)


# The traced process


class Client:
    """Calls the ASGI application in this process."""

    def __init__(self, http: Any) -> None:
        self.http = http

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        answer = await self.http.post(path, content=content, headers=given, timeout=60)
        if answer.status_code not in (200, 202):
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
        return answer.json()

    async def request_task(self, agent: str, timeout: float = 0) -> Any:
        return await self.post("/api/v1/request-task", {"agent_id": agent, "timeout": timeout})

    async def heartbeat(self, task: Any) -> Any:
        return await self.post(f"/api/v1/assignments/{task['assignment_id']}/heartbeat", {"progress": "half"})

    async def webhook(self, issue: dict[str, Any], delivery: str) -> Any:
        repository = {"full_name": REPOSITORY}
        body = json.dumps({"action": "opened", "issue": issue, "repository": repository}).encode()
        digest = hmac.new(WEBHOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": delivery,
            "X-Hub-Signature-256": f"sha256={digest}",
        }
        return await self.post("/webhooks/github", body, headers)


@asynccontextmanager
async def running_application() -> Any:
    import httpx

    from broker_project.asgi import application

    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    life = asyncio.create_task(application({"type": "lifespan"}, messages.get, answers.put))
    await messages.put({"type": "lifespan.startup"})
    await answers.get()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(cast(Any, application)), base_url="http://127.0.0.1", trust_env=False
    ) as http:
        yield Client(http)
    await messages.put({"type": "lifespan.shutdown"})
    await life


def open_issue(number: int) -> dict[str, Any]:
    """A new issue on the stand-in, as GitHub tells of it."""
    import httpx

    url = f"{os.environ['BROKER_SANDBOX_URL']}/github/repos/{REPOSITORY}/issues"
    data = {"title": f"walk {number}", "body": "## 成果物\n- a file\n", "labels": ["P1", "BACKENDCODER"]}
    answer = httpx.post(url, json=data, headers={"Authorization": "token user:maintainer"}, trust_env=False)
    answer.raise_for_status()
    issue: dict[str, Any] = answer.json()
    return issue


async def trace_agent_walks(tracer: Tracer) -> Walks:
    tasks: list[list[Step]] = []
    heartbeats: list[list[Step]] = []
    webhooks: list[list[Step]] = []
    async with running_application() as client:
        for number in range(CALLS):
            with tracer.tracing() as entered:
                task = await client.request_task(f"agent-{number}")
            tasks.append(entered)
        for _ in range(CALLS):
            with tracer.tracing() as entered:
                await client.heartbeat(task)
            heartbeats.append(entered)
        for number in range(CALLS):
            waiting = asyncio.create_task(client.request_task(f"waiting-{number}", 30))
            await asyncio.sleep(0.5)
            issue = open_issue(number)
            with tracer.tracing() as entered:
                await client.webhook(issue, f"delivery-{number}")
                await waiting
            webhooks.append(entered)
    return {
        "request-task": quietest(tasks[WARM_UPS:]),
        "heartbeat": quietest(heartbeats[WARM_UPS:]),
        "webhook": up_to(quietest(webhooks[WARM_UPS:]), WOKEN),
    }


def trace_poller(tracer: Tracer, *names: str) -> list[Step]:
    from broker_project.models import PollerRun
    from broker_project.ops.clock.pollers import run_scheduled

    time.sleep(SETTLE_SECONDS)
    with tracer.tracing() as entered:
        for name in names:
            run_scheduled(name)
    failed = PollerRun.objects.filter(name__in=names).exclude(outcome=PollerRun.Outcome.DONE)
    if errors := [f"{run.name}: {run.error}" for run in failed]:
        raise RuntimeError("; ".join(errors))
    return entered


def trace_all() -> Walks:
    """In a process whose settings name a fresh folder and a sandbox with an empty repository."""
    import django

    django.setup()
    from django.core.management import call_command

    from feeds.models import Post
    from fixtures.models import FixtureSettings, Report

    tracer = Tracer()
    call_command("migrate", verbosity=0)
    for number in range(CALLS):
        open_issue(number)
    call_command("poll", "issues", "--force", stdout=sys.stderr)
    FixtureSettings.objects.create(pk=FixtureSettings.ONLY, matches_per_run=1)
    tracer.install()
    walks = asyncio.run(trace_agent_walks(tracer))
    walks["item"] = trace_poller(tracer, "feeds", "items", "items")
    walks["match"] = trace_poller(tracer, "fixtures")
    if (Post.objects.count(), Report.objects.count()) != (1, 1):
        raise RuntimeError("the item was not posted, or the guide of the match was not written")
    return walks


# The parent


def traced_walks() -> Walks:
    """Start what the traced process needs, and read what it found."""
    from bench.processes import clean_environment
    from broker_project.lib.redis.embedded_server import EmbeddedRedis
    from sandbox.launcher import start_sandbox

    with ExitStack() as stack:
        var = stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-walks-"))
        sandbox = stack.enter_context(start_sandbox())
        redis = EmbeddedRedis(Path(var))
        redis.ensure()
        stack.callback(redis.stop)
        sandbox.reset("github", seed=False)
        sandbox.control("POST", "github/repositories", {"repository": REPOSITORY})
        feed = sandbox.state("feed")
        sandbox.load("feed", {"items": feed["items"][:1]})
        environment = clean_environment(
            BROKER_VAR=var,
            REDIS_URL=redis.url,
            BROKER_SANDBOX_URL=sandbox.base_url,
            GITHUB_WEBHOOK_SECRET=WEBHOOK_SECRET,
            DJANGO_SETTINGS_MODULE="broker_project.settings",
        )
        done = subprocess.run(
            [sys.executable, "-m", "tools.walks", "--trace"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    found: dict[str, list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return {name: [(file, function) for file, function in steps] for name, steps in found.items()}


def as_list(entered: list[Step]) -> str:
    """A line for each file, with the first function that is entered there."""
    steps = enumerate(files_in_order(entered), start=1)
    return "".join(f"{place}. `{file}` → `{name}`\n" for place, (file, name) in steps)


def documented_walks(text: str) -> dict[str, str]:
    """The lists of the document, by name."""
    return {
        found["name"]: found[0].split("\n", 1)[1].removesuffix("<!-- end -->")
        for found in PLACE.finditer(text)
    }


def with_walks(text: str, walks: Walks) -> str:
    """The document with new lists."""
    return PLACE.sub(
        lambda found: f"<!-- walk: {found['name']} -->\n{as_list(walks[found['name']])}<!-- end -->", text
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.walks", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the lists into docs/architecture.md")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trace:
        print(json.dumps(trace_all()))
        return
    walks = traced_walks()
    for name, entered in walks.items():
        counts = f"{len(files_in_order(entered))} files, {len(set(entered))} functions"
        print(f"{name}: {counts}, {changes_of_file(entered)} changes of file\n{as_list(entered)}")
    if given.write:
        DOCUMENT.write_text(with_walks(DOCUMENT.read_text(encoding="utf-8"), walks), encoding="utf-8")


if __name__ == "__main__":
    main()
