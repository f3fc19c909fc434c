"""Agents by the hundred in one event loop: each waits, works, tells, and waits again, over real HTTP."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

LONG_POLL_SECONDS = 30
PAUSE_SECONDS = 0.2
HEARTBEAT_EVERY = 5  # tasks
TRIES = 20


@dataclass
class Fleet:
    """``run`` ends when so many tasks are completed. What the agents saw is in the fields."""

    urls: Sequence[str]
    agents: int
    work: Callable[[int], Awaitable[None]]  # called with the task's number before it is completed
    served: Counter[str] = field(default_factory=Counter)  # tasks an agent
    served_by: Counter[str] = field(default_factory=Counter)  # tasks a server
    numbers: Counter[int] = field(default_factory=Counter)  # completions an issue
    statuses: Counter[str] = field(default_factory=Counter)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    goal: int = 0
    waits: list[float] = field(default_factory=list)  # seconds from asking to a task

    @property
    def mean_wait(self) -> float:
        return sum(self.waits) / len(self.waits)

    async def run(self, goal: int, limit_seconds: float) -> None:
        self.goal = goal
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.agents)
        timeout = httpx.Timeout(LONG_POLL_SECONDS + 90)
        async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False, verify=False) as client:
            tasks = [asyncio.create_task(self.live(client, number)) for number in range(self.agents)]
            for task in tasks:
                task.add_done_callback(lambda _: self.done.set())  # an agent that gives up ends the run
            try:
                await asyncio.wait_for(self.done.wait(), limit_seconds)
            finally:
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def live(self, client: httpx.AsyncClient, number: int) -> None:
        name = f"agent-{number}"
        home, other = self.urls[number % len(self.urls)], self.urls[(number + 1) % len(self.urls)]
        while not self.done.is_set():
            body = {"agent_id": name, "timeout": LONG_POLL_SECONDS, "request_id": uuid.uuid4().hex}
            asked_at = time.monotonic()
            answer = await self.post(client, f"{home}/api/v1/request-task", body)
            if answer.status_code != 200:
                # 503 and 502 say "come again"; a fleet does.
                await asyncio.sleep(0 if answer.status_code == 204 else PAUSE_SECONDS)
                continue
            task = answer.json()
            self.waits.append(time.monotonic() - asked_at)
            self.served[name] += 1
            self.served_by[home] += 1
            await self.finish(client, other, task)
            if sum(self.numbers.values()) >= self.goal:
                self.done.set()

    async def finish(self, client: httpx.AsyncClient, url: str, task: dict[str, Any]) -> None:
        """Through the other server: nothing about a task is held in the one that gave it."""
        path = f"{url}/api/v1/assignments/{task['assignment_id']}"
        if task["issue_id"] % HEARTBEAT_EVERY == 0:
            beat = await self.post(client, f"{path}/heartbeat", {})
            assert beat.status_code == 200, (beat.status_code, beat.text)
        await self.work(task["issue_id"])
        done = await self.post(client, f"{path}/complete", {"result": {"by": "fleet"}})
        assert done.status_code == 200, (done.status_code, done.text)
        self.numbers[task["issue_id"]] += 1

    async def post(self, client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> httpx.Response:
        """The same again while no answer comes: a server closes idle connections, perhaps under our request.

        A repeated request is the same request: by its id, or since an ending may be told twice.
        """
        what = url.rpartition("/")[2]
        for _ in range(TRIES):
            try:
                answer = await client.post(url, json=body)
            except httpx.TransportError as error:
                self.statuses[f"{what} {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self.statuses[f"{what} {answer.status_code}"] += 1
            return answer
        raise AssertionError(f"no answer to {what}: {dict(self.statuses)}")
