"""PyGithub's way to GitHub: HTTP/1.1 on connections that a process keeps open, their answers read by httptools.

PyGithub speaks through an object of the shape of ``http.client``. Its own one wraps ``requests``, which looks for
proxies in the environment and merges sessions anew for each call; ``urllib3`` alone still costs more than all else
in a call. What the environment says about proxies and certificates is read here once.
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
import threading
import time
import zlib
from collections import deque
from typing import Any, Protocol
from urllib.parse import urljoin

import httptools
import requests
import urllib3
from github.Requester import Requester

from broker_project.lib.errors import TimedOut, Unreachable
from broker_project.lib.side_by_side import READABLE, WRITABLE, aside, wait_for
from tasks.github.answers import SYSTEM

# GitHub sends on who asks for a renamed repository. PyGithub would lose the query on the way, and write nothing.
REDIRECTS, MAX_REDIRECTS = (301, 302, 307, 308), 3
CONNECTIONS = 32  # kept open to one host; more at once are made and closed
READS_OF_AN_ANSWER = 4  # time-outs that a whole answer may take: one that trickles in holds nobody for ever
CHUNK = 1 << 16


class Answer:
    """What PyGithub reads of an answer."""

    def __init__(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.status = status
        self.headers = headers
        self._data = data

    def getheaders(self) -> list[tuple[str, str]]:
        return list(self.headers.items())

    def read(self) -> str:
        return self._data.decode("utf-8", "replace")


def authority(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{name}:{port}" if port else name


class Way(Protocol):
    """To one host: one call, one answer. Raises the shared errors, or urllib3's."""

    def call(
        self, verb: str, target: str, headers: dict[str, str], body: bytes | None, timeout: float
    ) -> Answer: ...


class Reading:
    """What httptools finds in the bytes of an answer."""

    __slots__ = ("body", "has_headers", "headers", "is_complete")

    def __init__(self) -> None:
        self.on_message_begin()

    def on_message_begin(self) -> None:
        """Also of what follows an interim answer (1xx)."""
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.has_headers = self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        self.has_headers = True

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def lasts_until_the_end(self) -> bool:
        """Nothing says how long the body is: it ends with the connection."""
        return (
            self.has_headers
            and "content-length" not in self.headers
            and "transfer-encoding" not in self.headers
        )

    @property
    def data(self) -> bytes:
        data = b"".join(self.body)
        if self.headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
            return zlib.decompress(data, 47)  # either of the two formats
        return data


class Direct:
    """The host itself, without a proxy."""

    def __init__(self, host: str, port: int | None, tls: ssl.SSLContext | None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._name = authority(host, port)
        self._idle: deque[socket.socket] = deque()

    def call(
        self, verb: str, target: str, headers: dict[str, str], body: bytes | None, timeout: float
    ) -> Answer:
        request = self._request(verb, target, headers, body)
        wire = self._open_wire() or aside(lambda: self._connect(timeout))
        is_kept = False
        try:
            send_all(wire, request, timeout)
            answer, is_kept = read_answer(wire, timeout)
        except TimeoutError:
            raise TimedOut(SYSTEM, "no answer in time") from None
        except (OSError, httptools.HttpParserError, httptools.HttpParserUpgrade, zlib.error):
            raise Unreachable(SYSTEM, "the connection broke off") from None
        finally:
            if is_kept and len(self._idle) < CONNECTIONS:
                self._idle.append(wire)
            else:
                wire.close()
        return answer

    def _request(self, verb: str, target: str, headers: dict[str, str], body: bytes | None) -> bytes:
        lines = [f"{verb} {target} HTTP/1.1", f"Host: {self._name}", "Accept-Encoding: gzip"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or verb not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(body or b'')}")
        head = "\r\n".join(lines)
        if len(head.splitlines()) != len(lines):
            raise ValueError("a line break in a header or an address")
        return (head + "\r\n\r\n").encode("latin-1") + (body or b"")

    def _open_wire(self) -> socket.socket | None:
        """One that GitHub has not closed meanwhile: who closes can be read from, and nothing else can."""
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return None
            looked = select.poll()
            looked.register(wire, select.POLLIN)
            if not looked.poll(0):
                return wire
            wire.close()

    def _connect(self, timeout: float) -> socket.socket:
        # The port is always named: http.client would look for one in an IPv6 address.
        connection = (
            http.client.HTTPSConnection(self._host, self._port or 443, timeout=timeout, context=self._tls)
            if self._tls
            else http.client.HTTPConnection(self._host, self._port or 80, timeout=timeout)
        )
        try:
            connection.connect()
        except TimeoutError:
            raise TimedOut(SYSTEM, "no connection in time", may_have_happened=False) from None
        except ssl.SSLError as error:
            reason = f"no secure connection ({error.reason})"
            raise Unreachable(SYSTEM, reason, may_have_happened=False) from None
        except OSError:  # refused, or a name without an address
            raise Unreachable(SYSTEM, "no connection", may_have_happened=False) from None
        wire: socket.socket = connection.sock
        wire.setblocking(False)
        return wire


def send_all(wire: socket.socket, data: bytes, timeout: float) -> None:
    """Raises OSError or TimeoutError."""
    while data:
        try:
            data = data[wire.send(data) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            wait_for(wire.fileno(), WRITABLE, timeout)
        except ssl.SSLWantReadError:
            wait_for(wire.fileno(), READABLE, timeout)


def receive(wire: socket.socket, timeout: float) -> bytes:
    """What has come, at least a byte; nothing at the end. Raises OSError or TimeoutError."""
    while True:
        try:
            return wire.recv(CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            wait_for(wire.fileno(), READABLE, timeout)
        except ssl.SSLWantWriteError:
            wait_for(wire.fileno(), WRITABLE, timeout)


def read_answer(wire: socket.socket, timeout: float) -> tuple[Answer, bool]:
    """The answer, and whether the connection serves for another. Raises OSError, TimeoutError or httptools' errors."""
    reading = Reading()
    parser = httptools.HttpResponseParser(reading)
    until = time.monotonic() + READS_OF_AN_ANSWER * timeout
    ended = False
    wait_for(wire.fileno(), READABLE, timeout)  # looking first would find nothing yet
    while not (reading.is_complete and parser.get_status_code() >= 200):
        if time.monotonic() > until:
            raise TimeoutError
        data = receive(wire, timeout)
        if not data:
            if not reading.lasts_until_the_end:
                raise ConnectionError("the answer ends in the middle")
            ended = True
            break
        parser.feed_data(data)
    is_kept = (
        not ended
        and parser.get_http_version() == "1.1"
        and "close" not in reading.headers.get("connection", "").lower()
    )
    return Answer(parser.get_status_code(), reading.headers, reading.data), is_kept


class ThroughProxy:
    """The environment names a proxy: urllib3 knows its ways."""

    def __init__(self, origin: str, proxy: str, options: dict[str, Any]) -> None:
        login = urllib3.util.parse_url(proxy).auth
        headers = urllib3.util.make_headers(proxy_basic_auth=login) if login else None
        self._origin = origin
        self._pool = urllib3.ProxyManager(
            proxy, proxy_headers=headers, maxsize=CONNECTIONS, block=False, **options
        )

    def call(
        self, verb: str, target: str, headers: dict[str, str], body: bytes | None, timeout: float
    ) -> Answer:
        found = aside(
            lambda: self._pool.urlopen(
                verb,
                self._origin + target,
                body=body,
                headers={"Accept-Encoding": "gzip, deflate", **headers},
                timeout=urllib3.Timeout(connect=timeout, read=timeout),
                retries=False,
                redirect=False,
            )
        )
        return Answer(found.status, {name.lower(): text for name, text in found.headers.items()}, found.data)


_ways: dict[tuple[str, str, int | None, Any], Way] = {}
_ways_lock = threading.Lock()


def forget_connections() -> None:
    global _ways, _ways_lock
    _ways, _ways_lock = {}, threading.Lock()


# A forked child must not share its parent's sockets, nor wait for a lock that nobody will release.
os.register_at_fork(after_in_child=forget_connections)


def _way_to(scheme: str, host: str, port: int | None, verify: bool | str) -> Way:
    with _ways_lock:
        key = (scheme, host, port, verify)
        if key not in _ways:
            _ways[key] = _find_way(scheme, host, port, verify)
        return _ways[key]


def _find_way(scheme: str, host: str, port: int | None, verify: bool | str) -> Way:
    origin = f"{scheme}://{authority(host, port)}"
    with requests.Session() as session:
        found = session.merge_environment_settings(f"{origin}/", {}, None, None, None)
    trusted = found["verify"] if verify is True else verify
    if trusted is True:
        trusted = requests.utils.DEFAULT_CA_BUNDLE_PATH
    proxy = requests.utils.select_proxy(f"{origin}/", found["proxies"])
    if proxy:
        certificates = {"cert_reqs": "CERT_REQUIRED" if trusted else "CERT_NONE", "ca_certs": trusted or None}
        return ThroughProxy(origin, proxy, certificates if scheme == "https" else {})
    return Direct(host, port, _tls_context(trusted) if scheme == "https" else None)


def _tls_context(trusted: str | bool | None) -> ssl.SSLContext:
    if not isinstance(trusted, str):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif os.path.isdir(trusted):
        context = ssl.create_default_context(capath=trusted)
    else:
        context = ssl.create_default_context(cafile=trusted)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connection:
    """The way to one host, for one requester of PyGithub's: it is used by one thread at a time."""

    scheme = "http"

    def __init__(
        self,
        host: str,
        port: int | None = None,
        strict: bool = False,
        timeout: int | None = None,
        retry: Any = None,
        pool_size: int | None = None,
        verify: bool | str = True,
        **_more: Any,
    ) -> None:
        assert timeout is not None  # the client always names one
        self.host = host
        self._origin = f"{self.scheme}://{authority(host, port)}"
        self._timeout = timeout
        self._way = _way_to(self.scheme, host, port, verify)

    def request(self, verb: str, url: str, body: Any, headers: dict[str, str], stream: bool = False) -> None:
        self._call = (verb, url, headers, body.encode() if isinstance(body, str) else body)

    def getresponse(self) -> Answer:
        verb, target, headers, body = self._call
        answer = self._way.call(verb, target, headers, body, self._timeout)
        for _ in range(MAX_REDIRECTS):
            if answer.status not in REDIRECTS:
                break
            address = urljoin(self._origin + target, answer.headers.get("location", ""))
            if not address.startswith(f"{self._origin}/"):
                break  # the token goes to no other host
            target = address.removeprefix(self._origin)
            answer = self._way.call(verb, target, headers, body, self._timeout)
        return answer

    def close(self) -> None:
        """What is open is kept for others."""


class SecureConnection(Connection):
    scheme = "https"


def use_shared_connections() -> None:
    Requester.injectConnectionClasses(Connection, SecureConnection)  # type: ignore[arg-type]
