"""An httpx transport with a total time limit and a check of the very address that is connected to.

httpx limits each single read; a far side that sends a byte now and then holds a worker for ever. Here every
connect, read and write of a call gets what is left of its total (:func:`time_limit`).

The address check resolves the name, checks the numbers and connects to one of the checked numbers: a name
server that answers differently the second time is never asked a second time. TLS still verifies the name.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import httpcore
import httpx
from django.conf import settings

TOTAL_SECONDS = 60.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def call_limit(seconds: float) -> float:
    """How long a call may take: its own limit, or ``BROKER_CALL_SECONDS`` if that is shorter."""
    return min(seconds, float(settings.BROKER.call_seconds))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Everything the transport does in this block ends within ``seconds``; an outer, shorter limit stands."""
    outer = _deadline.get()
    mine = time.monotonic() + call_limit(seconds)
    token = _deadline.set(mine if outer is None else min(outer, mine))
    try:
        yield
    finally:
        _deadline.reset(token)


def _left(timeout: float | None, error: type[Exception]) -> float | None:
    """The smaller of the step's own limit and what is left of the total."""
    deadline = _deadline.get()
    if deadline is None:
        return timeout
    left = deadline - time.monotonic()
    if left <= 0:
        raise error("the total time limit is used up")
    return left if timeout is None else min(timeout, left)


class LimitedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In pieces, since the limit of a write applies to each piece that the socket takes.
        view = memoryview(buffer)
        for start in range(0, len(view), 65536):
            self._stream.write(bytes(view[start : start + 65536]), _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        limit = _left(timeout, httpcore.ConnectTimeout)
        return LimitedStream(self._stream.start_tls(ssl_context, server_hostname, limit))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


# Given host, port and a resolved address: raises if it must not be connected to.
AddressCheck = Callable[[str, int, str], None]


class LimitedBackend(httpcore.NetworkBackend):
    """Connects within the time limit, to checked addresses only if there is a check."""

    def __init__(self, check: AddressCheck | None = None) -> None:
        self._check = check
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = resolve(host, port, _left(timeout, httpcore.ConnectTimeout))
        refusal: Exception | None = None
        if self._check is not None:
            permitted = []
            for address in addresses:
                try:
                    self._check(host, port, address)
                    permitted.append(address)
                except Exception as error:  # noqa: BLE001 - the check's own error, raised below if nothing is left
                    refusal = error
            addresses = permitted
        failure: Exception | None = refusal
        for address in addresses:
            try:
                limit = _left(timeout, httpcore.ConnectTimeout)
                return LimitedStream(
                    self._inner.connect_tcp(address, port, limit, local_address, socket_options)
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise httpcore.ConnectError("unix sockets are not used here")


def resolve(host: str, port: int, timeout: float | None) -> list[str]:
    """Numeric addresses of a host, in the system's order.

    The system's resolver has no time limit of its own, so it runs in a thread that is left behind when it
    takes too long.
    """
    answers: queue.SimpleQueue[list[str] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put(list(dict.fromkeys(str(entry[4][0]) for entry in found)))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="resolver", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout)
    except queue.Empty:
        raise httpcore.ConnectTimeout(f"no address for {host} in time") from None
    if isinstance(answer, list):
        return answer
    raise httpcore.ConnectError(f"no address for {host}: {answer}") from answer


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Loading the certificates costs tens of milliseconds; once a process is enough."""
    return httpx.create_ssl_context(trust_env=False)


class LimitedTransport(httpx.HTTPTransport):
    def __init__(self, check: AddressCheck | None = None) -> None:
        super().__init__(verify=tls_context(), trust_env=False)
        # httpx offers no other way to bring a network backend in.
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls_context(), keepalive_expiry=5.0, network_backend=LimitedBackend(check)
        )


def limited_client(check: AddressCheck | None = None, **options: Any) -> httpx.Client:
    """An httpx client without proxies, redirects or cookies of its own, under :func:`time_limit`."""
    return httpx.Client(
        transport=LimitedTransport(check),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        **options,
    )
