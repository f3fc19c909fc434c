"""Agents that behave as agents do: they work, fail, fall silent, hang up, ask again, and come too late.

``python -m tests.soak.agents`` is one agent. It prints a line for everything it sends and hears
(:class:`Sighting`), before it does anything else about it: what a killed agent knew is not lost. SIGTERM lets
it finish what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any

import httpx

from tests.soak.sightings import REQUEST, SILENCE, Sighting

ANSWER_SECONDS = 30.0
ASKING_TRIES = 4  # with one request_id
ENDING_TRIES = 25  # for a last word; then the lease takes care of it
LONGEST_WAIT_SECONDS = 8.0
QUICK_HANG_UP_SECONDS = (0.03, 0.3)  # in the middle of an assignment
HANG_UP_SECONDS = (0.0, 3.0)
KEPT_TEXT = 300
BODIES: dict[str, dict[str, Any]] = {
    "complete": {"result": "done"},
    "fail": {"reason": "it did not work"},
    "release": {},
}


@dataclass(frozen=True)
class Manners:
    """How an agent behaves: shares of its requests, and weights of what becomes of its tasks."""

    hang_ups: float  # cut off by the agent; half of them are sent again with the same request_id
    twins: float  # sent twice at the same time
    echoes: float  # sent once more after the task was received
    work_seconds: tuple[float, float]
    outcomes: Mapping[str, int]


MANNERS = {
    "soak": Manners(
        0.06, 0.0, 0.0, (0.0, 14.0), {"complete": 70, "fail": 8, "release": 10, "silent": 8, "late": 4}
    ),
    "chaos": Manners(
        0.2, 0.05, 0.1, (1.0, 8.0), {"complete": 76, "fail": 6, "release": 10, "silent": 4, "late": 4}
    ),
}


@dataclass
class Agent:
    name: str
    url: str
    random: Random
    manners: Manners
    tell: Callable[[Sighting], None]
    client: httpx.AsyncClient
    lease_seconds: float
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self) -> None:
        """Until told to stop; what is in hand then is finished."""
        while not self.stopping.is_set():
            task = await self.ask()
            if task is not None:
                await self.work(task)

    async def post(
        self, sent: Sighting, path: str, body: dict[str, Any], hang_up_after: float | None = None
    ) -> httpx.Response | None:
        """The answer, or None if there was none; both sides of it are told."""
        self.tell(sent)
        heard = replace(sent, is_answer=True)
        begun = time.monotonic()
        answer = None
        try:
            async with asyncio.timeout(hang_up_after):
                answer = await self.client.post(
                    f"{self.url}/api/v1/{path}", json=body, timeout=sent.timeout + ANSWER_SECONDS
                )
            heard = with_answer(heard, answer)
        except httpx.TransportError as error:
            heard = replace(heard, text=repr(error)[:KEPT_TEXT])
        except TimeoutError:
            heard = replace(heard, is_hang_up=True)
        self.tell(replace(heard, at=time.time(), seconds=time.monotonic() - begun))
        return answer

    async def ask(self) -> dict[str, Any] | None:
        """Ask for a task; after an unclear answer again with the same id."""
        wait = round(self.random.uniform(0, LONGEST_WAIT_SECONDS), 1)
        request_id = f"{self.random.getrandbits(96):x}"
        for _ in range(ASKING_TRIES):
            is_hang_up = self.random.random() < self.manners.hang_ups
            is_twin = not is_hang_up and self.random.random() < self.manners.twins
            asking = [self.request(request_id, wait, is_hang_up)]
            asking += [self.request(request_id, wait, False)] if is_twin else []
            answers = [answer for answer in await asyncio.gather(*asking) if answer is not None]
            if is_hang_up and not answers:
                if self.random.random() < 0.5:
                    return None  # never asks for this one again
                continue
            for answer in answers:
                if answer.status_code == 200:
                    return await self.accept(answer.json(), request_id)
            if any(answer.status_code == 204 for answer in answers):
                return None
            await asyncio.sleep(self.random.uniform(0.2, 1))
            if self.stopping.is_set():
                return None
        return None

    async def request(self, request_id: str, wait: float, is_hang_up: bool) -> httpx.Response | None:
        body = {"agent_id": self.name, "timeout": wait, "request_id": request_id}
        sent = Sighting(time.time(), self.name, REQUEST, request_id=request_id, timeout=wait)
        patience = None
        if is_hang_up:
            span = QUICK_HANG_UP_SECONDS if self.random.random() < 0.5 else HANG_UP_SECONDS
            patience = self.random.uniform(*span)
        return await self.post(sent, "request-task", body, patience)

    async def accept(self, task: dict[str, Any], request_id: str) -> dict[str, Any] | None:
        """The task, unless it is one that has ended: a replay gives that, too."""
        if task.get("state", "live") != "live":
            return None
        if self.random.random() < self.manners.echoes:
            await self.request(request_id, 0.0, False)
        return task

    async def work(self, task: dict[str, Any]) -> None:
        number = task["assignment_id"]
        (outcome,) = self.random.choices(list(self.manners.outcomes), list(self.manners.outcomes.values()))
        if outcome in ("silent", "late"):
            self.tell(Sighting(time.time(), self.name, SILENCE, assignment=number))
            await asyncio.sleep(self.lease_seconds * 1.5)
            if outcome == "late":
                await self.say(number, "complete")
            return
        left = self.random.uniform(*self.manners.work_seconds)
        while left > 0 and not self.stopping.is_set():
            pause = min(left, max(0.5, float(task["heartbeat_seconds"])))
            await asyncio.sleep(pause)
            left -= pause
            beat = await self.about(number, "heartbeat", {})
            if beat is not None and (
                beat.status_code == 409 or (beat.status_code == 200 and beat.json()["cancel"])
            ):
                return
        await self.say(number, outcome)

    async def about(self, number: int, call: str, body: dict[str, Any]) -> httpx.Response | None:
        sent = Sighting(time.time(), self.name, call, assignment=number)
        return await self.post(sent, f"assignments/{number}/{call}", body)

    async def say(self, number: int, outcome: str) -> None:
        """A last word is repeated until it is answered."""
        for _ in range(ENDING_TRIES):
            answer = await self.about(number, outcome, BODIES[outcome])
            if answer is not None and answer.status_code < 500:
                return
            await asyncio.sleep(self.random.uniform(0.3, 2))


def with_answer(heard: Sighting, answer: httpx.Response) -> Sighting:
    if answer.status_code != 200:
        return replace(heard, status=answer.status_code, text=answer.text[:KEPT_TEXT])
    data: dict[str, Any] = answer.json()
    lease = data.get("lease_expires_at")
    found = replace(
        heard,
        status=200,
        assignment=data.get("assignment_id") or heard.assignment,
        issue=data.get("issue_id", 0),
        is_cancelled=bool(data.get("cancel")),
        lease_until=datetime.fromisoformat(lease).timestamp() if lease else 0.0,
    )
    is_task = heard.call == REQUEST
    return replace(found, state=data.get("state", "live" if is_task else ""))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.agents", description="One agent of a soak.")
    parser.add_argument("name")
    parser.add_argument("--url", required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--lease-seconds", type=float, required=True)
    parser.add_argument("--manners", choices=sorted(MANNERS), required=True)
    return parser.parse_args()


def print_line(sighting: Sighting) -> None:
    sys.stdout.write(sighting.as_line() + "\n")
    sys.stdout.flush()


async def run(given: argparse.Namespace) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        agent = Agent(
            given.name,
            given.url,
            Random(given.seed),
            MANNERS[given.manners],
            print_line,
            client,
            given.lease_seconds,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.stopping.set)
        await agent.live()


if __name__ == "__main__":
    asyncio.run(run(parse()))
