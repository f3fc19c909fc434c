"""A proxy that passes requests on and can lose the answers: the call was carried out, the caller never hears of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


class DroppingProxy:
    """``drop["/complete"] = 2`` loses the next two answers to paths that end so."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.drop: dict[str, int] = {}
        self.bodies: list[tuple[str, bytes]] = []  # path and body of every request
        self.lock = threading.Lock()
        self.url = ""

    def is_to_be_lost(self, path: str) -> bool:
        with self.lock:
            for ending, left in self.drop.items():
                if path.endswith(ending) and left > 0:
                    self.drop[ending] = left - 1
                    return True
        return False

    def sent_to(self, ending: str) -> list[bytes]:
        with self.lock:
            return [body for path, body in self.bodies if path.endswith(ending)]


@contextmanager
def dropping_proxy(target: str) -> Iterator[DroppingProxy]:
    proxy = DroppingProxy(target)
    client = httpx.Client(base_url=target, timeout=60, trust_env=False, verify=False)

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with proxy.lock:
                proxy.bodies.append((self.path, body))
            kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            answer = client.request(self.command, self.path, content=body, headers=kept)
            self.close_connection = True
            if proxy.is_to_be_lost(self.path):
                return
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                    self.send_header(name, value)
            if answer.content:
                self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = pass_on

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
        client.close()
