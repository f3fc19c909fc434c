"""Faults that a test asks for: what the network or the far side does wrong, once, a few times or for ever.

`FaultMiddleware` sits around one stand-in. A real end of the TCP connection needs the transport, which
`server.py` puts into the scope under `ABORT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from sandbox.core import World

ABORT = "sandbox.abort"  # scope key: Callable[[bool], None]; True sends what is written so far, then closes

KINDS = ("status", "stall", "drop", "lose_answer", "garbage", "truncate", "signal")
MAX_STALL_SECONDS = 600.0
GARBAGE = b"<html><body>502 upstream \xff\xfe not what you asked for"


class FaultRefused(ValueError):
    """A fault that cannot be made as described; the text is the sentence for the caller."""


@dataclass
class Fault:
    id: int
    system: str
    kind: str
    method: str | None = None
    path: str | None = None
    times: int = 1
    skip: int = 0
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    seconds: float = 0.0
    pid: int = 0
    signal: str = "SIGKILL"
    when: str = "before"
    seen: int = 0
    fired: int = 0

    @property
    def is_active(self) -> bool:
        return self.times == 0 or self.fired < self.times

    def matches(self, system: str, method: str, path: str) -> bool:
        return (
            self.is_active
            and self.system in ("*", system)
            and self.method in (None, method)
            and (self.path is None or re.search(self.path, path) is not None)
        )

    def as_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("id", "system", "kind", "method", "path", "times", "skip", "seen", "fired")
        }
        extras = {
            "status": ("status", "headers", "body"),
            "stall": ("seconds",),
            "signal": ("pid", "signal", "when"),
        }
        for name in extras.get(self.kind, ()):
            shown[name] = getattr(self, name)
        shown["active"] = self.is_active
        return shown


class Faults:
    """The faults in the order they were added; the first that matches a call is used."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._last_id = 0

    def add(self, order: Any, systems: list[str]) -> Fault:
        """Add a fault as the control endpoint received it. Raises FaultRefused."""
        fault = _checked(order, systems, self._last_id + 1)
        self._last_id = fault.id
        self._faults.append(fault)
        return fault

    def take(self, system: str, method: str, path: str) -> Fault | None:
        """The fault for this call, counted as fired; None if the call is to succeed."""
        for fault in self._faults:
            if fault.matches(system, method, path):
                fault.seen += 1
                if fault.seen > fault.skip:
                    fault.fired += 1
                    return fault
        return None

    def clear(self) -> None:
        self._faults.clear()

    def listing(self) -> list[dict[str, Any]]:
        return [fault.as_dict() for fault in self._faults]


def _checked(order: Any, systems: list[str], fault_id: int) -> Fault:
    if not isinstance(order, dict):
        raise FaultRefused("A fault is a JSON object.")
    known = {name for name in Fault.__dataclass_fields__ if name not in ("id", "seen", "fired")}
    unknown = sorted(set(order) - known)
    if unknown:
        raise FaultRefused(f"Unknown field: {', '.join(map(str, unknown))}.")
    system, kind = order.get("system"), order.get("kind")
    if system not in [*systems, "*"]:
        raise FaultRefused(f"'system' must be one of {', '.join(systems)} or '*'.")
    if kind not in KINDS:
        raise FaultRefused(f"'kind' must be one of {', '.join(KINDS)}.")
    fault = Fault(id=fault_id, system=system, kind=kind)
    _set_numbers(fault, order)
    _set_target(fault, order)
    _set_answer(fault, order)
    fault.signal, fault.when = order.get("signal", fault.signal), order.get("when", fault.when)
    if fault.signal not in signal.Signals.__members__:
        raise FaultRefused("'signal' must be a signal's name, such as SIGKILL.")
    if fault.when not in ("before", "after"):
        raise FaultRefused("'when' must be 'before' or 'after'.")
    if kind == "signal" and fault.pid <= 1:
        raise FaultRefused("'pid' must name a process.")
    return fault


def _set_numbers(fault: Fault, order: dict[str, Any]) -> None:
    for name in ("times", "skip", "status", "pid"):
        value = order.get(name, getattr(fault, name))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise FaultRefused(f"'{name}' must be a whole number, 0 or more.")
        setattr(fault, name, value)
    if not 100 <= fault.status <= 599:
        raise FaultRefused("'status' must be between 100 and 599.")
    seconds = order.get("seconds", 0)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MAX_STALL_SECONDS:
        raise FaultRefused(f"'seconds' must be a number from 0 to {MAX_STALL_SECONDS:.0f}.")
    fault.seconds = float(seconds)


def _set_target(fault: Fault, order: dict[str, Any]) -> None:
    """Which requests it is for."""
    method = order.get("method")
    if method is not None and not isinstance(method, str):
        raise FaultRefused("'method' must be text.")
    fault.method = method.upper() if method else None
    fault.path = order.get("path")
    if fault.path is not None:
        try:
            re.compile(fault.path)
        except (re.error, TypeError) as error:
            raise FaultRefused(f"'path' must be a regular expression: {error}.") from error


def _set_answer(fault: Fault, order: dict[str, Any]) -> None:
    headers = order.get("headers") or {}
    if not isinstance(headers, dict) or not all(
        isinstance(part, str) for pair in headers.items() for part in pair
    ):
        raise FaultRefused("'headers' must map names to text.")
    fault.headers = headers
    fault.body = order.get("body")


class FaultMiddleware:
    """Around one stand-in: writes every call into the journal and applies the first matching fault."""

    def __init__(self, app: ASGIApp, world: World, system: str) -> None:
        self.app = app
        self.world = world
        self.system = system

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        fault = self.world.faults.take(self.system, method, path)
        query = scope["query_string"].decode("latin-1")
        answer = _Answer(send)
        try:
            if fault is None:
                await self.app(scope, receive, answer.pass_on)
            else:
                await self._go_wrong(fault, scope, receive, answer)
        finally:
            self.world.record(
                self.system,
                method,
                f"{path}?{query}" if query else path,
                answer.status,
                fault.kind if fault else None,
            )

    async def _go_wrong(self, fault: Fault, scope: Scope, receive: Receive, answer: _Answer) -> None:
        match fault.kind:
            case "status":
                await _read_request(receive)
                await _send_status(fault, answer.pass_on)
            case "garbage":
                await _read_request(receive)
                headers = [(b"content-type", b"application/json; charset=utf-8")]
                await _send_whole(answer.pass_on, 200, headers, GARBAGE)
            case "stall":
                await _read_request(receive)
                await _wait_or_hang_up(fault.seconds, receive)
                _abort(scope)
            case "drop":
                await _read_request(receive)
                _abort(scope)
            case "lose_answer":
                await self.app(scope, receive, answer.hold)
                answer.status = None
                _abort(scope)
            case "truncate":
                await self.app(scope, receive, answer.hold)
                await answer.send_half()
                _abort(scope, flush=True)
            case "signal":
                if fault.when == "before":
                    _send_signal(fault)
                    await self.app(scope, receive, answer.pass_on)
                else:
                    await self.app(scope, receive, answer.hold)
                    _send_signal(fault)
                    await answer.send_all()


class _Answer:
    """The answer on its way out: passed on at once, or held until the fault is decided."""

    def __init__(self, send: Send) -> None:
        self.status: int | None = None
        self._send = send
        self._held: list[Message] = []

    async def pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    async def hold(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self._held.append(message)

    async def send_all(self) -> None:
        for message in self._held:
            await self._send(message)

    async def send_half(self) -> None:
        body = b"".join(message.get("body", b"") for message in self._held)
        for message in self._held:
            if message["type"] == "http.response.start":
                await self._send(message)
        await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})


def _abort(scope: Scope, *, flush: bool = False) -> None:
    abort: Callable[[bool], None] | None = scope.get(ABORT)
    if abort is None:
        raise RuntimeError("This fault needs the sandbox's own server (python -m sandbox).")
    abort(flush)


async def _read_request(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return


async def _wait_or_hang_up(seconds: float, receive: Receive) -> None:
    gone = asyncio.ensure_future(receive())
    await asyncio.wait([gone], timeout=seconds)
    gone.cancel()


def _send_signal(fault: Fault) -> None:
    try:
        os.kill(fault.pid, signal.Signals[fault.signal])
    except ProcessLookupError:
        # The process has ended by itself. The call goes on, and `fired` shows that it was tried.
        return


async def _send_status(fault: Fault, send: Send) -> None:
    headers = {name.lower(): value for name, value in fault.headers.items()}
    if isinstance(fault.body, str):
        body = fault.body.encode()
        headers.setdefault("content-type", "text/plain; charset=utf-8")
    elif fault.body is None:
        body = json.dumps({"message": f"Sandbox fault: {fault.status}"}).encode()
        headers.setdefault("content-type", "application/json; charset=utf-8")
    else:
        body = json.dumps(fault.body, ensure_ascii=False).encode()
        headers.setdefault("content-type", "application/json; charset=utf-8")
    if fault.status in (204, 304):
        body = b""
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await _send_whole(send, fault.status, pairs, body)


async def _send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [pair for pair in headers if pair[0] != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
