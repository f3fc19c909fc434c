"""PyGithub's connection, cheaper and with a total time limit.

PyGithub calls ``requests``, which looks for proxies and certificates in the environment before every call: more than
half of what a call costs. Here a connection looks them up when it is made, and then uses its urllib3 pool directly.
"""

from __future__ import annotations

import http.client
import io
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

import requests
import urllib3
from github.Requester import HTTPRequestsConnectionClass, Requester

# GitHub redirects requests for a renamed repository. PyGithub would drop the query and refuse to repeat a write.
REDIRECTS, MAX_REDIRECTS = (301, 302, 307, 308), 3
ANSWER_TIMEOUTS = 4  # time-outs that a whole answer may take; a socket's own starts again with each byte


class LimitedReader(io.RawIOBase):
    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw, self._give_up_at = raw, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        if time.monotonic() > self._give_up_at:
            raise TimeoutError("the answer takes too long")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class LimitedResponse(http.client.HTTPResponse):
    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        seconds = ANSWER_TIMEOUTS * sock.gettimeout()
        self.fp: Any = io.BufferedReader(LimitedReader(self.fp.detach(), seconds))


class Connection(HTTPRequestsConnectionClass):
    """Serves one thread at a time. Raises urllib3's errors."""

    scheme = "http"

    def __init__(self, host: str, port: int | None = None, **options: Any) -> None:
        super().__init__(host, port, **options)
        name = f"[{host}]" if ":" in host else host
        self.origin = f"{self.scheme}://{name}:{port}" if port else f"{self.scheme}://{name}"
        request: Any = requests.Request("GET", f"{self.origin}/").prepare()
        found = self.session.merge_environment_settings(request.url, {}, None, self.verify, None)
        verify, proxies = found["verify"], found["proxies"]
        pool: Any = self.adapter.get_connection_with_tls_context(request, verify, proxies)
        limited = {"response_class": LimitedResponse}
        pool.ConnectionCls = type("LimitedConnection", (pool.ConnectionCls,), limited)
        self.pool = pool
        # An HTTP proxy wants the whole address.
        self.prefix = self.adapter.request_url(request, proxies).removesuffix("/")

    def getresponse(self) -> Any:
        headers = {"Accept-Encoding": "gzip, deflate", **self.headers}
        options = {"timeout": self.timeout, "retries": False, "redirect": False, "assert_same_host": False}
        path = self.url
        for _ in range(1 + MAX_REDIRECTS):
            answer = self.pool.urlopen(self.verb, self.prefix + path, self.input, headers, **options)
            target = urljoin(self.origin + path, answer.headers.get("location", ""))
            # The token goes to no other host.
            if answer.status not in REDIRECTS or not target.startswith(f"{self.origin}/"):
                break
            path = target.removeprefix(self.origin)
        text = answer.data.decode("utf-8", "replace")
        # http.client takes an answer that ends in its headers for one without a body; GitHub sends no such 200.
        if answer.status < 200 or (answer.status < 202 and not text):
            raise urllib3.exceptions.ProtocolError("not a whole answer")
        found = dict(answer.headers)  # several headers of one name become one
        return SimpleNamespace(status=answer.status, getheaders=found.items, read=lambda: text)


class SecureConnection(Connection):
    scheme = "https"


def use_limited_connections() -> None:
    Requester.injectConnectionClasses(Connection, SecureConnection)  # type: ignore[arg-type]
    # PyGithub means that for its tests, and from then on makes a new connection for every call.
    Requester._Requester__persist = True  # type: ignore[attr-defined]
