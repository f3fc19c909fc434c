"""The sandbox's HTTP server: uvicorn, with connections that a fault can cut."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sandbox.faults import ABORT

SHUTDOWN_SECONDS = 3


class CuttableProtocol(HttpToolsProtocol):
    """Lets the application end the TCP connection, with or without what was written so far."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[ABORT] = self._cut

    def _cut(self, flush: bool) -> None:
        # Marked as disconnected first: otherwise uvicorn answers 500 for an application that sent nothing.
        self.cycle.disconnected = True
        if flush:
            self.transport.close()
        else:
            self.transport.abort()


class _Server(uvicorn.Server):
    """Prints one line once it listens, so that its parent knows."""

    def __init__(self, config: uvicorn.Config, ready_line: str | None) -> None:
        super().__init__(config)
        self._ready_line = ready_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready_line:
            print(self._ready_line, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn raises the signal again after the shutdown; a clean end would look like a kill.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only then; without it answers take 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def serve(app: Starlette, listener: socket.socket, *, ready_line: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        app,
        http=CuttableProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    asyncio.run(_Server(config, ready_line).serve(sockets=[listener]))
