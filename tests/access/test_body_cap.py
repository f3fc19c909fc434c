"""How much a stranger may send, over real HTTP: declared or not, it is refused before it fills the disk."""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Iterator

import pytest

from broker_project.ops.body_limit import WEBHOOK_BYTES
from tests.support.server import WEBHOOK_SECRET, BrokerServer

MEGABYTE = 2**20


def chunks(size: int, first: bytes = b"") -> Iterator[bytes]:
    """Without a declared length."""
    yield first
    left = size - len(first)
    while left > 0:
        yield b" " * min(left, 256 * 1024)
        left -= 256 * 1024


def declare(server: BrokerServer, path: str, size: int) -> bytes:
    """The answer to a head alone: nothing of the body is waited for."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode())
        return connection.recv(200)


@pytest.mark.parametrize(
    ("path", "cap"),
    [
        ("/webhooks/github", WEBHOOK_BYTES),
        ("/admin/login/", 2 * MEGABYTE),
        ("/api/v1/assignments/1/complete", 2 * MEGABYTE),
        ("/nowhere", 2 * MEGABYTE),
    ],
)
def test_more_than_the_address_takes_is_413(broker_server: BrokerServer, path: str, cap: int) -> None:
    with broker_server.client() as client:
        streamed = client.post(path, content=chunks(cap + 1))
        assert (streamed.status_code, streamed.json()["error"]) == (413, "too_large")
        assert declare(broker_server, path, cap + 1).startswith(b"HTTP/1.1 413 ")
        assert not declare(broker_server, path, 0).startswith(b"HTTP/1.1 413 ")
        assert client.get("/health").status_code == 200


def test_the_signature_is_over_the_bytes_as_they_came(broker_server: BrokerServer) -> None:
    """Every spelling of the same JSON has a signature of its own; what arrives in pieces is still one body."""
    compact, spaced = b'{"zen":"x"}', b'{ "zen" : "x" }\n'
    given = {"X-GitHub-Event": "ping", "Content-Type": "application/json"}

    def sign(body: bytes) -> str:
        return "sha256=" + hmac.new(WEBHOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()

    found = []
    with broker_server.client() as client:
        for number, (body, signed) in enumerate([(spaced, spaced), (compact, compact), (spaced, compact)]):
            headers = {**given, "X-GitHub-Delivery": f"d-{number}", "X-Hub-Signature-256": sign(signed)}
            found.append(
                client.post(
                    "/webhooks/github", content=iter([body[:4], body[4:]]), headers=headers
                ).status_code
            )
    assert found == [202, 202, 401]
