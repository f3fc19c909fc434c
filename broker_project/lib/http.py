"""Fetching feeds, pages and documents from servers that nobody vouches for.

A :class:`Fetcher` limits everything that the far side decides: the total time, the bytes after decompression (while
they arrive, not afterwards), the number of redirects, and the addresses connected to. It raises only errors of
:mod:`broker_project.lib.errors`.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType

import httpx

from broker_project.lib.addresses import is_public
from broker_project.lib.errors import (
    BadAnswer,
    ForbiddenAddress,
    Rejected,
    TooLarge,
    error_for_status,
)
from broker_project.lib.transport import TOTAL_SECONDS, limited_call, limited_client

MAX_REDIRECTS = 5
MAX_URL_LENGTH = 4096
PIECE_BYTES = 256 * 1024  # the most that one step of decompression may put into memory
USER_AGENT = "Broker/1.0 (feed reader)"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
CONDITIONS = frozenset({"if-none-match", "if-modified-since"})


@dataclass(frozen=True)
class Fetched:
    """An answer with its decoded body. ``url`` is the one that answered, after redirects."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Use as a context manager; connections are reused inside it."""

    def __init__(
        self,
        allowed_private_hosts: Collection[tuple[str, int]] = frozenset(),
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        self._allowed = frozenset(allowed_private_hosts)
        self._total_seconds = total_seconds
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "gzip, deflate"}
        self._client = limited_client(self._is_allowed, headers=headers)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def fetch(self, url: str, *, max_bytes: int, headers: Mapping[str, str] | None = None) -> Fetched:
        """The whole answer: 2xx, or 304 if ``headers`` ask for it. Raises :class:`OutsideError`."""
        with self._opened(url, headers or {}) as response:
            body = bytearray()
            for piece in limited(response, max_bytes):
                body += piece
            return Fetched(str(response.url), response.status_code, response.headers, bytes(body))

    def download(self, url: str, path: Path, *, max_bytes: int) -> int:
        """Stream the answer into a new file and return its size. On any error there is no file."""
        try:
            with self._opened(url, {}) as response, path.open("wb") as file:
                return sum(file.write(piece) for piece in limited(response, max_bytes))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    @contextmanager
    def _opened(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        target = checked_url(url)
        with limited_call(target.host, self._total_seconds):
            for _ in range(MAX_REDIRECTS + 1):
                request = self._client.build_request("GET", target, headers=dict(headers))
                response = self._client.send(request, stream=True)
                try:
                    location = response.headers.get("location")
                    if response.status_code in REDIRECTS and location:
                        target = checked_url(str(joined(target, location)))
                        continue
                    is_unchanged = response.status_code == 304 and CONDITIONS & set(request.headers)
                    if not (response.is_success or is_unchanged):
                        after = retry_after(response.headers.get("retry-after"))
                        raise error_for_status(target.host, response.status_code, retry_after_seconds=after)
                    yield response
                    return
                finally:
                    response.close()
            raise Rejected(target.host, f"more than {MAX_REDIRECTS} redirects")

    def _is_allowed(self, host: str, port: int, address: str) -> bool:
        """Called by the transport with each address that it may connect to."""
        return (host.lower().strip("[]"), port) in self._allowed or is_public(address)


def checked_url(url: str) -> httpx.URL:
    """The URL, if it is one that may be fetched. The addresses of its host are checked when connecting."""
    try:
        parsed = httpx.URL(url) if len(url) <= MAX_URL_LENGTH else None
    except (httpx.InvalidURL, ValueError, TypeError):
        parsed = None
    if parsed is None or not parsed.host or (parsed.port is not None and not 0 < parsed.port < 65536):
        raise Rejected("web", "this is no usable address")
    if parsed.scheme not in ("http", "https"):
        raise ForbiddenAddress(parsed.host, f"{parsed.scheme}: is not fetched, only http and https")
    if parsed.userinfo:
        raise ForbiddenAddress(parsed.host, "addresses with a user name or password are not fetched")
    return parsed.copy_with(fragment=None)


def joined(base: httpx.URL, location: str) -> httpx.URL:
    try:
        return base.join(location)
    except (httpx.InvalidURL, ValueError):
        raise BadAnswer(base.host, "a redirect to no usable address") from None


def limited(response: httpx.Response, max_bytes: int) -> Iterator[bytes]:
    """The decoded body in pieces; :class:`TooLarge` as soon as it is more than ``max_bytes``."""
    host = response.url.host
    encoding = response.headers.get("content-encoding", "").strip().lower()
    length = response.headers.get("content-length", "")
    if encoding in ("", "identity") and length.isdecimal() and int(length) > max_bytes:
        raise too_large(response, f"{int(length)} bytes announced, {max_bytes} are taken")
    size = 0
    for piece in decoded(response, host, encoding):
        size += len(piece)
        if size > max_bytes:
            raise too_large(response, f"more than {max_bytes} bytes")
        yield piece


def too_large(response: httpx.Response, message: str) -> TooLarge:
    error = TooLarge(response.url.host, message)
    error.content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return error


def decoded(response: httpx.Response, host: str, encoding: str) -> Iterator[bytes]:
    """httpx would decompress a whole network read at once, and layer after layer: a thousandfold each."""
    if encoding in ("", "identity"):
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadAnswer(host, f"content encoding {encoding[:40]!r} was not asked for")
    inflate = zlib.decompressobj(zlib.MAX_WBITS | (0 if encoding == "deflate" else 16))
    is_first = True
    for raw in response.iter_raw():
        rest = raw
        while rest and not inflate.eof:
            try:
                piece = inflate.decompress(rest, PIECE_BYTES)
            except zlib.error as error:
                if encoding == "deflate" and is_first:
                    # Many servers send "deflate" without the zlib header that the standard asks for.
                    inflate, is_first = zlib.decompressobj(-zlib.MAX_WBITS), False
                    continue
                raise BadAnswer(host, f"damaged {encoding} content") from error
            is_first = False
            rest = inflate.unconsumed_tail
            if piece:
                yield piece
    if not inflate.eof:
        raise BadAnswer(host, f"{encoding} content that breaks off")


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a ``Retry-After`` header, given as seconds or as a date."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
