"""The lean path: request-task and heartbeat, served without Django's request machinery.

A waiting agent costs a socket, a timer and a few kilobytes; no thread, no transaction. Whatever may block runs in the
hub's bounded pool.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from typing import Any

from django.db import OperationalError
from django.utils import timezone
from pydantic import ValidationError
from redis.exceptions import RedisError

from broker_project.lib.config.dynamic import LONG_POLL_SECONDS, value_of
from broker_project.lib.logs import get_logger
from tasks.agents_api.agent_cache import AccessRefused, Caller, directory
from tasks.agents_api.authentication import Visitor, enter
from tasks.agents_api.long_poll import Hub, Receive, Send
from tasks.agents_api.schemas import Heartbeat, RequestTask
from tasks.agents_api.task_request import (
    MAX_SKIPS,
    AgentGotOne,
    Answer,
    TaskRequest,
    database_down_answer,
    maintenance_answer,
    nothing_answer,
    problem,
    redis_down_answer,
    refusal_before_claim,
    stopping_answer,
)
from tasks.agents_api.waiters import Waiter, Woken
from tasks.models import Assignment
from tasks.offers.heartbeat import HEARTBEAT, heartbeat_arguments, lease_expires_at
from tasks.offers.index import CLAIM, keys_of
from tasks.services.leases import LeaseLost, find_assignment, restore_heartbeat, save_heartbeat

log = get_logger(__name__)

REQUEST_TASK_PATHS = frozenset({"/api/v1/request-task", "/request-task"})
HEARTBEAT_PATH = re.compile(r"/api/v1/assignments/([0-9]{1,18})/heartbeat")
MAX_BODY_BYTES = 64 * 1024
REPLAY_LOOK_SECONDS = 0.2
# A repeated request waits so long for the first one's answer, however short its own time-out: a 204 would make the
# agent ask anew and end the task that it never heard of.
REPLAY_WAIT_SECONDS = 60.0
KNOWN_ASSIGNMENTS = 20_000


class HotPath:
    """An ASGI application for the agents' hot calls. ``matches`` says whether a scope is one of them."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.known: OrderedDict[int, tuple[Any, int, str]] = OrderedDict()  # id → keys, number, agent

    @staticmethod
    def matches(scope: dict[str, Any]) -> bool:
        if scope["method"] != "POST":
            return False
        path: str = scope["path"]
        return path in REQUEST_TASK_PATHS or HEARTBEAT_PATH.fullmatch(path) is not None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            answer = await self.answer(scope, receive)
        except asyncio.CancelledError:
            # The server stops and will not wait any longer. A task that is just being assigned is kept: who asks again
            # with the same request id gets it.
            answer = stopping_answer()
        except AccessRefused as refused:
            answer = problem(refused.status, refused.code, refused.message, refused.retry_after_seconds)
        except RedisError as error:
            log.warning("Redis does not answer", error=str(error))
            answer = redis_down_answer()
        except OperationalError as error:
            log.warning("the database does not answer", path=scope["path"], error=str(error))
            answer = database_down_answer()
        except Exception:
            log.exception("hot path failed", path=scope["path"])
            answer = problem(500, "internal", "Something went wrong here; it was written down.")
        if answer is not None:
            await reply(send, answer)

    async def answer(self, scope: dict[str, Any], receive: Receive) -> Answer | None:
        visitor = enter(scope)
        body = await read_body(receive)
        if body is None:
            return problem(413, "too_large", f"The body may have {MAX_BODY_BYTES} bytes.")
        if directory.is_stale:
            await self.hub.in_one_thread(directory.refresh)
        path = scope["path"]
        if path in REQUEST_TASK_PATHS:
            return await self.request_task(body, visitor, receive)
        match = HEARTBEAT_PATH.fullmatch(path)
        assert match is not None
        return await self.heartbeat(int(match.group(1)), body, visitor)

    # request-task

    async def request_task(self, body: bytes, visitor: Visitor, receive: Receive) -> Answer | None:
        parsed = parse(RequestTask, body)
        if isinstance(parsed, Answer):
            # Who may not ask at all learns that first.
            visitor.identify(None)
            return parsed
        request = TaskRequest(visitor.identify(parsed.agent_id), parsed)
        if refusal := refusal_before_claim():
            return refusal
        self.hub.note_seen(request.caller.name, timezone.now())
        if "timeout" in parsed.model_fields_set:
            seconds = float(parsed.timeout or 0)
        else:
            seconds = float(value_of(LONG_POLL_SECONDS))
        waiter = Waiter(request.roles)
        watch = asyncio.create_task(watch_client(receive, waiter)) if seconds > 0 else None
        try:
            return await self.get_task(request, visitor, waiter, seconds)
        finally:
            if watch is not None:
                watch.cancel()

    async def get_task(
        self, request: TaskRequest, visitor: Visitor, waiter: Waiter, seconds: float
    ) -> Answer | None:
        deadline = self.hub.loop.time() + seconds
        if request.body.request_id is not None:
            replayed = await self.replay(request)
            if replayed is not None:
                return replayed
        woken = Woken.WORK
        while True:
            if waiter.is_gone:
                return None
            answer = await self.try_once(request)
            if isinstance(answer, AgentGotOne):
                return await self.replayed_or_nothing(request, seconds)
            if answer is not None:
                return answer
            request.is_first_check = False
            remaining = deadline - self.hub.loop.time()
            if remaining <= 0:
                return await self.replayed_or_nothing(request, seconds)
            woken = await self.hub.wait(waiter, remaining)
            if woken is Woken.GONE:
                return None
            if woken in (Woken.TIMEOUT, Woken.CLOSING):
                return await self.replayed_or_nothing(request, seconds)
            if woken is Woken.REDIS:
                return redis_down_answer()
            # Somebody may have taken its token away while it waited.
            if directory.is_stale:
                await self.hub.in_one_thread(directory.refresh)
            visitor.is_still(request.caller.name)

    async def try_once(self, request: TaskRequest) -> Answer | AgentGotOne | None:
        """Claim and act until there is an answer or nothing on offer."""
        repositories = await self.hub.repositories()
        for _ in range(MAX_SKIPS):
            arguments = request.claim_arguments(repositories, timezone.now())
            found = await self.hub.run_script(CLAIM, arguments)
            if found[0] == "none":
                return None
            if found[0] == "maintenance":
                return maintenance_answer(found[1])
            answer = await self.hub.in_thread(request.act, found, repositories)
            if answer is not None:
                return answer
        return None

    async def replayed_or_nothing(self, request: TaskRequest, seconds: float) -> Answer:
        """The end of a request that got nothing: its twin with the same id may have been given the task."""
        replayed = await self.replay(request) if request.body.request_id is not None else None
        return replayed or nothing_answer(seconds)

    async def replay(self, request: TaskRequest) -> Answer | None:
        """The task of an earlier request with this id; waits for one that is still being assigned."""
        deadline = self.hub.loop.time() + REPLAY_WAIT_SECONDS
        while True:
            found = await self.hub.in_thread(request.replay)
            if isinstance(found, Answer):
                return found
            if not found:
                return None
            if self.hub.is_closing or self.hub.loop.time() >= deadline:
                return nothing_answer(0)
            await asyncio.sleep(REPLAY_LOOK_SECONDS)

    # heartbeat

    async def heartbeat(self, assignment_id: int, body: bytes, visitor: Visitor) -> Answer:
        caller = visitor.identify(None)
        parsed = parse(Heartbeat, body or b"{}")
        if isinstance(parsed, Answer):
            return parsed
        progress = parsed.progress or ""
        now = timezone.now()
        known = self.known.get(assignment_id)
        if known is not None and caller.name in ("", known[2]):
            keys, number, agent = known
            try:
                arguments = heartbeat_arguments(keys, assignment_id, agent, number, progress, now)
                state = await self.hub.run_script(HEARTBEAT, arguments)
            except RedisError as error:
                log.warning("heartbeat without Redis", error=str(error))
                state = ["unknown"]
            if state[0] == "live" and not int(state[2]):
                return beat_answer(lease_expires_at(now).isoformat(), bool(int(state[1])))
        return await self.hub.in_thread(self.save, assignment_id, caller, progress)

    def save(self, assignment_id: int, caller: Caller, progress: str) -> Answer:
        answer, assignment = save_and_answer(assignment_id, caller, progress)
        if assignment is not None:
            self.remember(assignment)
        return answer

    def remember(self, assignment: Assignment) -> None:
        self.known[assignment.pk] = (keys_of(assignment.repository), assignment.number, assignment.agent.name)
        while len(self.known) > KNOWN_ASSIGNMENTS:
            self.known.popitem(last=False)


def save_and_answer(assignment_id: int, caller: Caller, progress: str) -> tuple[Answer, Assignment | None]:
    """A heartbeat by the database, which decides; Redis is written again if it listens."""
    from tasks.services.leases import UnknownAssignment

    try:
        assignment = find_assignment(assignment_id)
    except UnknownAssignment:
        return problem(404, "unknown_assignment", "There is no such assignment."), None
    if caller.name and caller.name != assignment.agent.name:
        return problem(403, "wrong_agent", "This assignment belongs to another agent."), None
    now = timezone.now()
    try:
        assignment = save_heartbeat(assignment_id, assignment.agent.name, progress, now)
    except LeaseLost:
        return problem(409, "lease_lost", f"The lease is lost: the assignment is {assignment.state}."), None
    if assignment.ended_at is not None:  # taken back by a person: nothing to prolong, but the agent is told
        return beat_answer(assignment.ended_at.isoformat(), True), None
    try:
        restore_heartbeat(assignment, now)
    except RedisError as error:
        log.warning("heartbeat without Redis", error=str(error))
    return beat_answer(lease_expires_at(now).isoformat(), assignment.is_cancelled), assignment


def beat_answer(lease_expires: str, cancel: bool) -> Answer:
    return Answer(200, {"lease_expires_at": lease_expires, "cancel": cancel})


# ASGI


async def watch_client(receive: Receive, waiter: Waiter) -> None:
    """Notice that the client has gone: then nothing is claimed for it."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            waiter.is_gone = True
            waiter.wake(Woken.GONE)
            return


async def read_body(receive: Receive) -> bytes | None:
    """The whole body; None if it is too large."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(chunks)
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            return None
        chunks.append(chunk)
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def parse(model: type[Any], body: bytes) -> Any:
    """The validated body, or the answer that says what is wrong with it."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        return problem(422, "bad_request", describe(error))


def describe(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    text = str(first["msg"]).removeprefix("Value error, ")
    return f"{place}: {text}." if place else f"{text}."


async def reply(send: Send, answer: Answer) -> None:
    headers = [(b"cache-control", b"no-store")]
    if answer.retry_after_seconds is not None:
        headers.append((b"retry-after", str(answer.retry_after_seconds).encode()))
    body = b""
    if answer.body is not None:
        body = json.dumps(answer.body, ensure_ascii=False).encode()
        headers.append((b"content-type", b"application/json; charset=utf-8"))
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
