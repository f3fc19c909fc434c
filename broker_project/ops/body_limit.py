"""A limit for request bodies. Django writes a whole body to disk before a view can refuse it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.conf import settings

WEBHOOK_BYTES = 25 * 2**20  # GitHub sends no more

Receive = Callable[[], Awaitable[dict[str, Any]]]


class BodyTooLarge(Exception):
    pass


def limit_bytes_of(path: str) -> int:
    return WEBHOOK_BYTES if path.startswith("/webhooks/") else int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0)


def check_declared_length(scope: dict[str, Any], limit_bytes: int) -> None:
    """Raises BodyTooLarge by the ``Content-Length`` header, before anything is read."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise BodyTooLarge


def limited(receive: Receive, limit_bytes: int) -> Receive:
    """The same ``receive``, which raises BodyTooLarge once more has arrived."""
    received = 0

    async def receive_limited() -> dict[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit_bytes:
            raise BodyTooLarge
        return message

    return receive_limited
