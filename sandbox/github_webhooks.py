"""Webhooks out: signed like GitHub's, in order, in the background.

A delivery that fails is journalled, not repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from sandbox.core import World

QUEUE_SIZE = 2000  # deliveries
REMEMBERED = 200  # deliveries that can be looked at and sent again
TIMEOUT_SECONDS = 10.0
PATH = "/webhooks/github"


@dataclass
class Delivery:
    guid: str
    event: str
    action: str
    body: bytes
    status: int | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "guid": self.guid,
            "event": self.event,
            "action": self.action,
            "status_code": self.status,
            "error": self.error,
        }


class Webhooks:
    def __init__(self, world: World) -> None:
        self.world = world
        self.recent: deque[Delivery] = deque(maxlen=REMEMBERED)
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue(QUEUE_SIZE)

    def send(self, event: str, payload: dict[str, Any]) -> None:
        """Queue one event; nothing is sent while no broker is known."""
        if self.world.broker_url is None:
            return
        body = json.dumps(payload, ensure_ascii=False).encode()
        self._enqueue(Delivery(str(uuid.uuid4()), event, str(payload.get("action", "")), body))

    def send_again(self, guid: str) -> Delivery | None:
        """The very same delivery once more, as GitHub's "Redeliver" does: same id, same bytes."""
        for known in self.recent:
            if known.guid == guid:
                self._enqueue(Delivery(known.guid, known.event, known.action, known.body))
                return known
        return None

    def _enqueue(self, delivery: Delivery) -> None:
        try:
            self._queue.put_nowait(delivery)
        except asyncio.QueueFull:
            self._journal(delivery, "dropped: the queue is full")

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            while True:
                delivery = await self._queue.get()
                await self._deliver(client, delivery)

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/sandbox",
            "X-GitHub-Event": delivery.event,
            "X-GitHub-Delivery": delivery.guid,
            "X-GitHub-Hook-ID": "1",
        }
        secret = self.world.webhook_secret
        if secret:
            digest = hmac.new(secret.encode(), delivery.body, hashlib.sha256).hexdigest()
            headers["X-Hub-Signature-256"] = f"sha256={digest}"
        try:
            answer = await client.post(
                f"{self.world.broker_url}{PATH}", content=delivery.body, headers=headers
            )
            delivery.status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            delivery.error = f"{type(error).__name__}: {error}"
        self.recent.append(delivery)
        self._journal(delivery, f"dropped: {delivery.error}" if delivery.error else None)

    def _journal(self, delivery: Delivery, problem: str | None) -> None:
        note = f"webhook {delivery.event} {delivery.action}".strip()
        self.world.record(
            "github",
            "POST",
            f"{self.world.broker_url}{PATH}",
            delivery.status,
            note=f"{note}; {problem}" if problem else note,
        )
