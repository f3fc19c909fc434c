"""Stands before the sandbox and can be told to answer everything wrongly: with what it was sent, secrets and all."""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

PASS = "pass"
STATUSES = {"401": 401, "422": 422, "500": 500}
# Beside those: 200 with something else than asked for, a redirect with everything in its address, a closed connection.
MODES = (*STATUSES, "text", "json", "redirect", "drop")
UNSAFE = {"connection", "transfer-encoding", "content-length", "host"}


class EchoingProxy:
    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.mode = PASS
        self.failing: frozenset[str] | None = None  # the systems that the mode is for; None: all of them
        self.echoed: Counter[str] = (
            Counter()
        )  # answers that carried what was sent, by the first part of the path
        self.seen = ""  # every head that was ever sent here: what there was to leak
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.answer(self, body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that goes away is its own business

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def fail(self, mode: str, *systems: str) -> None:
        """From now on: the mode for these systems, or for all."""
        self.mode, self.failing = mode, frozenset(systems) or None

    def answer(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        heads = "; ".join(f"{name}: {value}" for name, value in handler.headers.items())
        self.seen += f"{handler.path} {heads} {body[:4000]!r}\n"
        system = urlsplit(handler.path).path.split("/")[1]
        is_well = self.mode == PASS or (self.failing is not None and system not in self.failing)
        if is_well:
            self.forward(handler, body)
        else:
            self.echo(handler, system, f"{handler.command} {handler.path} {heads}", body)

    def echo(self, handler: http.server.BaseHTTPRequestHandler, system: str, heads: str, body: bytes) -> None:
        self.echoed[system] += 1
        sent = body[:2000].decode("utf-8", "replace")
        credentials = handler.headers.get("Authorization", "").split(" ")[-1]
        said = f"not with {credentials}! You sent {heads} {sent} "
        said += f"in Base64 {base64.b64encode(heads.encode()).decode()} as {heads!r} or {quote(heads)}"
        if self.mode == "drop":
            handler.close_connection = True
            handler.connection.close()
        elif self.mode == "redirect" and "redirected" not in handler.path:
            where = f"{self.url}/{system}/redirected?authorization={quote(heads, safe='')}"
            self.send(handler, 302, "Found", "text/plain", said.encode(), Location=where[:6000])
        elif self.mode in ("text", "redirect"):
            self.send(handler, 200, "OK", "text/html", f"<html>{said}</html>".encode())
        elif self.mode == "json":
            self.send(handler, 200, "OK", "application/json", json.dumps({"said": said}).encode())
        else:
            status = STATUSES[self.mode]
            extra = {"Retry-After": "1"} if status == 429 else {}
            reason = "".join(char for char in credentials if char.isprintable())[:200] or "No"
            self.send(
                handler,
                status,
                reason,
                "application/json",
                json.dumps(shaped(system, status, said)).encode(),
                **extra,
            )

    def forward(self, handler: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        connection = http.client.HTTPConnection(self.target.hostname or "", self.target.port, timeout=60)
        heads = {name: value for name, value in handler.headers.items() if name.lower() not in UNSAFE}
        connection.request(handler.command, handler.path, body, heads)
        answer = connection.getresponse()
        data = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in UNSAFE}
        self.send(handler, answer.status, answer.reason, kept.pop("content-type", "text/plain"), data, **kept)
        connection.close()

    def send(
        self,
        handler: http.server.BaseHTTPRequestHandler,
        status: int,
        reason: str,
        content_type: str,
        body: bytes,
        **heads: str,
    ) -> None:
        # The sandbox names its own address in links; the client shall stay with us.
        body = body.replace(self.target.geturl().encode(), self.url.encode())
        handler.send_response(status, reason)
        for name, value in {"Content-Type": content_type, **heads, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value.replace(self.target.geturl(), self.url))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def shaped(system: str, status: int, said: str) -> object:
    """An error as each of the systems words it."""
    if system == "gemini":
        return {
            "error": {
                "code": status,
                "message": said,
                "status": "INVALID_ARGUMENT",
                "details": [{"reason": said}],
            }
        }
    if system == "mastodon":
        return {"error": said, "error_description": said}
    if system == "football":
        return {"get": "x", "errors": {"token": said}, "response": []}
    return {"message": said, "errors": [{"message": said, "code": "custom"}], "documentation_url": said}


@contextmanager
def echoing_proxy(target: str) -> Iterator[EchoingProxy]:
    proxy = EchoingProxy(target)
    thread = threading.Thread(target=proxy.server.serve_forever, daemon=True)
    thread.start()
    yield proxy
    proxy.server.shutdown()
    proxy.server.server_close()
