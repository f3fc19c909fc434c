"""Serve an ASGI application as the product's web part is served: same server, same loop, same flags.

``python -m bench.serve FD MODULE:NAME`` on a socket that the parent opened.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        sys.argv[2],
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    uvicorn.Server(config).run(sockets=[listener])


async def reply(send: Any, status: int, body: bytes) -> None:
    headers = [(b"cache-control", b"no-store")]
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    main()
