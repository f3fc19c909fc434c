"""How large a request may be. Django writes a whole body to disk before a view can refuse it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from django.conf import settings

WEBHOOK_BYTES = 25 * 2**20  # GitHub sends no more

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class BodyTooLarge(Exception):
    pass


def cap_of(path: str) -> int:
    return WEBHOOK_BYTES if path.startswith("/webhooks/") else int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0)


async def call_capped(application: Application, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Call the application; 413 if the body is, or turns out to be, larger than its address takes."""
    cap = cap_of(scope["path"])
    taken = 0

    async def counted() -> dict[str, Any]:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > cap:
            raise BodyTooLarge
        return message

    if declared(scope) > cap:
        await refuse(send, cap)
        return
    try:
        await application(scope, counted, send)
    except BodyTooLarge:
        # Django reads everything before it answers anything: nothing has been sent yet.
        await refuse(send, cap)


def declared(scope: dict[str, Any]) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


async def refuse(send: Send, cap: int) -> None:
    body = json.dumps({"error": "too_large", "message": f"The body may have {cap} bytes."}).encode()
    headers = [
        (b"content-type", b"application/json; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
