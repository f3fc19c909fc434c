"""A proxy in front of the sandbox that lets a share of the calls fail: refused, dropped, or answered in vain."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import httpx

KEPT = ("content-type", "x-goog", "x-ratelimit", "etag", "retry-after")


class FlakyProxy:
    """``base_url`` stands for the sandbox. ``calls`` counts what came through, by system and fate."""

    def __init__(self, target: str, share: float, seed: int) -> None:
        self.target = target
        self.share = share
        self.dice = Random(seed)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.client = httpx.Client(base_url=target, timeout=30, trust_env=False, verify=False)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.pass_on(self)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        system = handler.path.split("/")[1]
        fate = self.dice.choice(("503", "drop", "lost")) if self.dice.random() < self.share else "well"
        self.calls[system, fate] += 1
        if fate == "503":
            handler.send_response(503)
            handler.send_header("content-length", "0")
            handler.end_headers()
            return
        if fate == "drop":
            handler.close_connection = True
            return
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in ("host", "accept-encoding")}
        answer = self.client.request(handler.command, handler.path, content=body, headers=headers)
        if fate == "lost":
            handler.close_connection = True
            return
        handler.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.startswith(KEPT):
                handler.send_header(name, value)
        handler.send_header("content-length", str(len(answer.content)))
        handler.end_headers()
        handler.wfile.write(answer.content)


@contextmanager
def flaky_proxy(target: str, share: float = 0.1, seed: int = 1) -> Iterator[FlakyProxy]:
    proxy = FlakyProxy(target, share, seed)
    thread = threading.Thread(target=proxy.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
        proxy.client.close()
        thread.join(5)
