"""The ASGI entry for request-task and heartbeat, served without Django's request machinery.

A waiting agent costs a socket, a timer and a few kilobytes; no thread, no transaction.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from typing import Any, TypeVar

from django.utils import timezone
from pydantic import BaseModel, ValidationError
from redis.exceptions import RedisError

from broker_project.lib.logs import get_logger
from broker_project.lib.redis.keyspace import Keyspace
from tasks.agents_api import answers
from tasks.agents_api.answers import Answer, Refused, answer_to
from tasks.agents_api.authentication import Caller, Visitor, visitor_from_scope
from tasks.agents_api.long_poll import Hub, Waiter, Woken
from tasks.agents_api.schemas import Heartbeat, RequestTask
from tasks.agents_api.task_request import TaskRequest
from tasks.offers.heartbeat import HEARTBEAT, heartbeat_arguments, lease_expires_at
from tasks.offers.index import keys_of
from tasks.services.leases import LeaseLost, find_assignment, restore_heartbeat, save_heartbeat

log = get_logger(__name__)

Model = TypeVar("Model", bound=BaseModel)
Scope = dict[str, Any]

REQUEST_TASK_PATHS = frozenset({"/api/v1/request-task", "/request-task"})
# As many digits as Python turns into a number; Django finds no page for more.
HEARTBEAT_PATH = re.compile(r"/api/v1/assignments/([0-9]{1,4300})/heartbeat")
MAX_BODY_BYTES = 64 * 1024
KEPT_ASSIGNMENTS = 20_000


class AgentEntry:
    """An ASGI application for the two calls. ``matches`` says whether a scope is one of them."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        # Live assignments that sent a heartbeat: keys, issue number, agent. A known one is prolonged by Redis alone.
        self.assignments: OrderedDict[int, tuple[Keyspace, int, str]] = OrderedDict()

    @staticmethod
    def matches(scope: Scope) -> bool:
        if scope["method"] != "POST":
            return False
        path: str = scope["path"]
        return path in REQUEST_TASK_PATHS or HEARTBEAT_PATH.fullmatch(path) is not None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        try:
            answer = await self.answer(scope, receive)
        except asyncio.CancelledError:
            # The server stops and waits no longer. A task that is just being assigned is kept: whoever asks again with
            # the same request id gets it.
            answer = answers.stopping()
        except Exception as error:  # noqa: BLE001 - answer_to logs what nobody expected
            answer = answer_to(error, scope["path"])
        if answer is not None:
            await send_answer(send, answer)

    async def answer(self, scope: Scope, receive: Any) -> Answer | None:
        visitor = visitor_from_scope(scope)
        body = await read_body(receive)
        await self.hub.refresh_agents()
        match = HEARTBEAT_PATH.fullmatch(scope["path"])
        if match is not None:
            return await self.heartbeat(int(match.group(1)), body, visitor)
        return await self.request_task(body, visitor, receive)

    async def request_task(self, body: bytes, visitor: Visitor, receive: Any) -> Answer | None:
        try:
            parsed = parse(RequestTask, body)
        except Refused:
            visitor.identify(None)  # who may not ask at all learns that first
            raise
        request = TaskRequest(self.hub, visitor, visitor.identify(parsed.agent_id), parsed)
        answers.check_github_is_on()
        self.hub.note_seen(request.caller.name, timezone.now())
        waiter, timeout_seconds = Waiter(request.roles), request.timeout_seconds
        watch = asyncio.create_task(watch_client(receive, waiter)) if timeout_seconds > 0 else None
        try:
            return await request.answer(waiter, timeout_seconds)
        finally:
            if watch is not None:
                watch.cancel()

    async def heartbeat(self, assignment_id: int, body: bytes, visitor: Visitor) -> Answer:
        caller = visitor.identify(None)
        progress = parse(Heartbeat, body or b"{}").progress or ""
        known = self.assignments.get(assignment_id)
        if known is not None and caller.name in ("", known[2]):
            keys, number, agent = known
            now = timezone.now()
            arguments = heartbeat_arguments(keys, assignment_id, agent, number, progress, now)
            try:
                found = await self.hub.run_script(HEARTBEAT, arguments)
                if found[0] == "live" and not int(found[2]):  # the row need not be saved yet
                    return heartbeat_answer(lease_expires_at(now).isoformat(), bool(int(found[1])))
            except RedisError as error:
                log.warning("heartbeat without Redis", error=str(error))
        return await self.hub.in_thread(self.save_heartbeat, assignment_id, caller, progress)

    def save_heartbeat(self, assignment_id: int, caller: Caller, progress: str) -> Answer:
        """Prolong the lease in the database, which decides. Redis is written again if it answers."""
        assignment = find_assignment(assignment_id)
        if caller.name and caller.name != assignment.agent.name:
            raise Refused(answers.wrong_agent())
        now = timezone.now()
        try:
            assignment = save_heartbeat(assignment_id, assignment.agent.name, progress, now)
        except LeaseLost:
            message = f"The lease is lost: the assignment is {assignment.state}."
            return answers.problem(409, "lease_lost", message)
        if (
            assignment.ended_at is not None
        ):  # taken back by a person: nothing to prolong, but the agent is told
            return heartbeat_answer(assignment.ended_at.isoformat(), True)
        try:
            restore_heartbeat(assignment, now)
        except RedisError as error:
            log.warning("heartbeat without Redis", error=str(error))
        keys = keys_of(assignment.repository)
        self.assignments[assignment.pk] = (keys, assignment.number, assignment.agent.name)
        while len(self.assignments) > KEPT_ASSIGNMENTS:
            self.assignments.popitem(last=False)
        return heartbeat_answer(lease_expires_at(now).isoformat(), assignment.is_cancelled)


def heartbeat_answer(lease_expires: str, cancel: bool) -> Answer:
    return Answer(200, {"lease_expires_at": lease_expires, "cancel": cancel})


async def watch_client(receive: Any, waiter: Waiter) -> None:
    """Notice that the client has gone: then nothing is claimed for it."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            waiter.is_gone = True
            waiter.wake(Woken.GONE)
            return


async def read_body(receive: Any) -> bytes:
    """The whole body. Raises Refused if it is too large."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(chunks)
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise Refused(answers.too_large(MAX_BODY_BYTES))
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def parse(model: type[Model], body: bytes) -> Model:
    """Raises Refused with what is wrong with the body."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Refused(answers.bad_request(place, first["msg"])) from None


async def send_answer(send: Any, answer: Answer, *, closes_connection: bool = False) -> None:
    headers = [(b"cache-control", b"no-store")]
    if answer.retry_after_seconds is not None:
        headers.append((b"retry-after", str(answer.retry_after_seconds).encode()))
    body = b""
    if answer.body is not None:
        body = json.dumps(answer.body, ensure_ascii=False).encode()
        headers.append((b"content-type", b"application/json; charset=utf-8"))
        headers.append((b"content-length", str(len(body)).encode()))
    if closes_connection:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
