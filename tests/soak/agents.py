"""Agents that behave as agents do: they work, fail, fall silent, hang up, ask again, and come too late."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.soak.ledger import Ledger

ANSWER_SECONDS = 30.0
TRIES = 25  # for a last word; then the lease takes care of it
OUTCOMES = {"complete": 70, "fail": 8, "release": 10, "silent": 8, "late": 4}
STATES = {"complete": "completed", "fail": "failed", "release": "released"}
BODIES: dict[str, dict[str, Any]] = {
    "complete": {"result": "done"},
    "fail": {"reason": "it did not work"},
    "release": {},
}


@dataclass
class Agent:
    name: str
    url: str
    random: Random
    ledger: Ledger
    client: httpx.AsyncClient
    lease_seconds: float
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self) -> None:
        """Until told to stop; what is in hand then is finished."""
        while not self.stopping.is_set():
            task = await self.ask()
            if task is not None:
                await self.work(task)

    async def post(self, what: str, path: str, body: dict[str, Any], seconds: float) -> httpx.Response | None:
        try:
            answer = await self.client.post(f"{self.url}/api/v1/{path}", json=body, timeout=seconds)
        except httpx.TransportError:
            self.ledger.answered(what, None)
            return None
        self.ledger.answered(what, answer.status_code, answer.text)
        return answer

    async def ask(self) -> dict[str, Any] | None:
        """Ask for a task; after an unclear answer once more with the same id."""
        wait = self.random.uniform(0, 8)
        body = {"agent_id": self.name, "timeout": round(wait, 1), "request_id": uuid.uuid4().hex}
        for _ in range(4):
            asking = self.post("request-task", "request-task", body, wait + ANSWER_SECONDS)
            if self.random.random() < 0.06:
                self.ledger.disconnects += 1
                try:
                    answer = await asyncio.wait_for(asking, self.random.uniform(0, 3))
                except TimeoutError:
                    if self.random.random() < 0.5:
                        return None  # hung up, and never asks for this one again
                    continue
            else:
                answer = await asking
            if answer is not None and answer.status_code == 204:
                return None
            if answer is not None and answer.status_code == 200:
                task: dict[str, Any] = answer.json()
                if task.get("state", "live") != "live":
                    return None
                self.ledger.tasks += 1
                return task
            await asyncio.sleep(self.random.uniform(0.2, 1))
            if self.stopping.is_set():
                return None
        return None

    async def work(self, task: dict[str, Any]) -> None:
        number = task["assignment_id"]
        (outcome,) = self.random.choices(list(OUTCOMES), list(OUTCOMES.values()))
        if outcome in ("silent", "late"):
            self.ledger.silences += 1
            await asyncio.sleep(self.lease_seconds * 1.5)
            if outcome == "late":
                await self.say(number, "complete")
            return
        left = self.random.uniform(0, 1.2 * self.lease_seconds)
        while left > 0 and not self.stopping.is_set():
            pause = min(left, max(0.5, float(task["heartbeat_seconds"])))
            await asyncio.sleep(pause)
            left -= pause
            beat = await self.post("heartbeat", f"assignments/{number}/heartbeat", {}, ANSWER_SECONDS)
            if beat is not None and (
                beat.status_code == 409 or (beat.status_code == 200 and beat.json()["cancel"])
            ):
                return
        await self.say(number, outcome)

    async def say(self, number: int, outcome: str) -> None:
        """A last word is repeated until it is answered."""
        for _ in range(TRIES):
            answer = await self.post(
                outcome, f"assignments/{number}/{outcome}", BODIES[outcome], ANSWER_SECONDS
            )
            if answer is not None and answer.status_code == 200:
                self.ledger.ended(number, answer.json()["state"])
            if answer is not None and answer.status_code < 500:
                return
            await asyncio.sleep(self.random.uniform(0.3, 2))
