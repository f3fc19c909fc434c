"""An httpx transport with a total time limit and a check of the address that is connected to.

httpx limits each single read; a far side that sends a byte now and then holds a worker for ever. Here every connect,
read and write gets what is left of the call's total. :func:`limited_call` sets it and translates httpx's errors.

The address check resolves the name, checks the addresses and connects to one of those it checked: a name server that
answers differently the second time is never asked a second time. TLS still verifies the name.
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

from broker_project.lib.errors import ForbiddenAddress, TimedOut, Unreachable
from broker_project.lib.redaction import redact

TOTAL_SECONDS = 60.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def call_limit(seconds: float) -> float:
    """How long a call may take: its own limit, or ``BROKER_CALL_SECONDS`` if that is shorter."""
    return min(seconds, float(settings.BROKER.call_seconds))


@contextmanager
def limited_call(system: str, seconds: float) -> Iterator[None]:
    """Everything the transport does in this block ends within ``seconds``. httpx's errors become ours."""
    limit = call_limit(seconds)
    token = _deadline.set(time.monotonic() + limit)
    try:
        yield
    except httpx.TimeoutException as error:
        raise TimedOut(system, f"no whole answer within {limit:.0f} s ({error or 'timeout'})") from error
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise Unreachable(system, redact(f"{type(error).__name__}: {error}", 300)) from error
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


# Given host, port and a resolved address: whether it may be connected to.
AddressCheck = Callable[[str, int, str], bool]


class LimitedBackend(httpcore.NetworkBackend):
    """Connects within the time limit, and only to addresses that pass the check if there is one."""

    def __init__(self, is_allowed: AddressCheck | None = None) -> None:
        self._is_allowed = is_allowed
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        addresses = resolve(host, port, _left(timeout, httpcore.ConnectTimeout))
        if self._is_allowed is not None and addresses:
            failure = ForbiddenAddress(host, f"{addresses[-1]} is not a public address")
            addresses = [address for address in addresses if self._is_allowed(host, port, address)]
        for address in addresses:
            try:
                limit = _left(timeout, httpcore.ConnectTimeout)
                return LimitedStream(
                    self._inner.connect_tcp(address, port, limit, local_address, socket_options)
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise httpcore.ConnectError("unix sockets are not used here")


def resolve(host: str, port: int, timeout: float | None) -> list[str]:
    """Numeric addresses of a host, in the system's order.

    The system's resolver has no time limit, so it runs in a thread that is abandoned when it takes too long.
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
    def __init__(self, is_allowed: AddressCheck | None = None) -> None:
        super().__init__(verify=tls_context(), trust_env=False)
        # httpx has no option for a network backend.
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls_context(), keepalive_expiry=5.0, network_backend=LimitedBackend(is_allowed)
        )


def limited_client(is_allowed: AddressCheck | None = None, **options: Any) -> httpx.Client:
    """An httpx client without proxies and redirects, to be used under :func:`limited_call`."""
    return httpx.Client(
        transport=LimitedTransport(is_allowed),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        **options,
    )
