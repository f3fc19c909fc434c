from __future__ import annotations

import gzip
import resource
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from broker_project.lib.errors import (
    BadAnswer,
    ForbiddenAddress,
    Missing,
    OutsideError,
    RateLimited,
    Rejected,
    TimedOut,
    TooLarge,
    Unreachable,
)
from broker_project.lib.http import Fetcher, checked_url, retry_after
from sandbox.launcher import SandboxHandle
from tests.support.raw_server import RawServer, raw_server

MEGABYTE = 2**20


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    with Fetcher(settings.BROKER.allowed_private_hosts) as made:
        yield made


@pytest.fixture
def raw() -> Iterator[RawServer]:
    with raw_server() as server:
        yield server


def allowing(server: RawServer, total_seconds: float = 10) -> Fetcher:
    return Fetcher({("127.0.0.1", server.port)}, total_seconds)


def peak_memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_an_answer_comes_with_its_decoded_body(sandbox: SandboxHandle, fetcher: Fetcher) -> None:
    fetched = fetcher.fetch(f"{sandbox.base_url}/feed/rss2.xml", max_bytes=MEGABYTE)
    assert fetched.status == 200
    assert b"<rss" in fetched.body
    assert fetched.headers["etag"]


def test_unchanged_is_no_error(sandbox: SandboxHandle, fetcher: Fetcher) -> None:
    url = f"{sandbox.base_url}/feed/rss2.xml"
    etag = fetcher.fetch(url, max_bytes=MEGABYTE).headers["etag"]
    again = fetcher.fetch(url, max_bytes=MEGABYTE, headers={"If-None-Match": etag})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "path", ["endless", "big?mb=60", "big?mb=2000&length=off", "gzip-bomb", "lying-length?mode=more"]
)
def test_too_much_is_refused_while_it_arrives(sandbox: SandboxHandle, fetcher: Fetcher, path: str) -> None:
    before = peak_memory_bytes()
    with pytest.raises(TooLarge):
        fetcher.fetch(f"{sandbox.base_url}/feed/hostile/{path}", max_bytes=MEGABYTE)
    assert peak_memory_bytes() - before < 40 * MEGABYTE


def test_a_body_that_breaks_off_is_no_body(sandbox: SandboxHandle, fetcher: Fetcher) -> None:
    with pytest.raises(Unreachable):
        fetcher.fetch(f"{sandbox.base_url}/feed/hostile/lying-length", max_bytes=MEGABYTE)


def test_the_total_time_counts_not_each_read(sandbox: SandboxHandle) -> None:
    with Fetcher(settings.BROKER.allowed_private_hosts, total_seconds=2) as fetcher:
        with pytest.raises(TimedOut):
            fetcher.fetch(f"{sandbox.base_url}/feed/hostile/slow?seconds=300", max_bytes=MEGABYTE)


def test_redirects_end(sandbox: SandboxHandle, fetcher: Fetcher) -> None:
    with pytest.raises(Rejected, match="redirects"):
        fetcher.fetch(f"{sandbox.base_url}/feed/hostile/redirect-loop", max_bytes=MEGABYTE)


def test_a_good_redirect_is_followed(sandbox: SandboxHandle, fetcher: Fetcher) -> None:
    target = f"{sandbox.base_url}/feed/rss2.xml"
    fetched = fetcher.fetch(f"{sandbox.base_url}/feed/hostile/redirect?to={target}", max_bytes=MEGABYTE)
    assert fetched.url == target


@pytest.mark.parametrize(
    "target",
    [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost:1/",
        "http://127.0.0.1:1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0/",
        "ftp://example.com/x",
        "http://user:secret@example.com/",
    ],
)
def test_no_redirect_leads_where_we_must_not_go(
    sandbox: SandboxHandle, fetcher: Fetcher, target: str
) -> None:
    with pytest.raises(ForbiddenAddress):
        fetcher.fetch(f"{sandbox.base_url}/feed/hostile/redirect?to={target}", max_bytes=MEGABYTE)


def test_only_the_allowed_port_of_an_allowed_host_is_open(sandbox: SandboxHandle, raw: RawServer) -> None:
    with Fetcher(settings.BROKER.allowed_private_hosts) as fetcher, pytest.raises(ForbiddenAddress):
        fetcher.fetch(raw.url, max_bytes=MEGABYTE)
    assert raw.requests == []


def test_the_checked_address_is_the_one_connected_to(raw: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that changes its answer after the check is not asked again."""
    real, asked = socket.getaddrinfo, []

    def changing(host: str, port: int, *args: Any, **kwargs: Any) -> list:
        if host != "feed.test":
            return real(host, port, *args, **kwargs)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    raw.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    with Fetcher({("feed.test", raw.port)}) as fetcher:
        assert fetcher.fetch(f"http://feed.test:{raw.port}/", max_bytes=10).body == b"ok"
        assert asked == ["feed.test"]
        assert b"host: feed.test:" in raw.requests[0].lower()
        # A new connection resolves anew, and is checked anew: this name is allowed, the next is not.
    with Fetcher() as fetcher, pytest.raises(ForbiddenAddress):
        fetcher.fetch(f"http://feed.test:{raw.port}/", max_bytes=10)


def test_tls_asks_for_the_name_not_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    real, names = socket.getaddrinfo, []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def local(host: str, asked_port: int, *args: Any, **kwargs: Any) -> list:
        return real("127.0.0.1" if host == "feed.test" else host, asked_port, *args, **kwargs)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda sock, name, ctx: names.append(name)

    def serve() -> None:
        connection, _ = listener.accept()
        try:
            context.wrap_socket(connection, server_side=True)
        except (ssl.SSLError, OSError):
            connection.close()  # it has no certificate; the name was all that was wanted

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setattr(socket, "getaddrinfo", local)
    with Fetcher({("feed.test", port)}) as fetcher, pytest.raises(Unreachable):
        fetcher.fetch(f"https://feed.test:{port}/", max_bytes=10)
    thread.join(10)
    listener.close()
    assert names == ["feed.test"]


def response(body: bytes, encoding: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def raw_deflate(body: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(body) + made.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"text", mtime=0)),
        ("x-gzip", gzip.compress(b"text", mtime=0)),
        ("deflate", zlib.compress(b"text")),
        ("deflate", raw_deflate(b"text")),
        ("identity", b"text"),
    ],
)
def test_usual_encodings_are_decoded(raw: RawServer, encoding: str, body: bytes) -> None:
    raw.answer = response(body, encoding)
    with allowing(raw) as fetcher:
        assert fetcher.fetch(raw.url, max_bytes=100).body == b"text"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", b"\x8b\x01\x80text\x03"),
        ("gzip, gzip", gzip.compress(gzip.compress(bytes(10**6), mtime=0), mtime=0)),
        ("gzip", gzip.compress(b"text" * 100, mtime=0)[:-12]),
        ("gzip", b"no gzip at all"),
        ("deflate", b"\xff\xff\xff\xff"),
    ],
)
def test_other_encodings_and_damaged_bodies_are_bad_answers(
    raw: RawServer, encoding: str, body: bytes
) -> None:
    raw.answer = response(body, encoding)
    with allowing(raw) as fetcher, pytest.raises(BadAnswer):
        fetcher.fetch(raw.url, max_bytes=10**7)


def test_statuses_become_errors(sandbox: SandboxHandle, fetcher: Fetcher) -> None:
    with pytest.raises(Missing):
        fetcher.fetch(f"{sandbox.base_url}/feed/nothing", max_bytes=MEGABYTE)
    sandbox.fault("feed", "status", status=429, headers={"Retry-After": "120"})
    with pytest.raises(RateLimited) as caught:
        fetcher.fetch(f"{sandbox.base_url}/feed/rss2.xml", max_bytes=MEGABYTE)
    assert caught.value.retry_after_seconds == 120


@pytest.mark.parametrize("kind", ["drop", "truncate"])
def test_a_broken_connection_is_unreachable(sandbox: SandboxHandle, fetcher: Fetcher, kind: str) -> None:
    sandbox.fault("feed", kind)
    with pytest.raises(Unreachable):
        fetcher.fetch(f"{sandbox.base_url}/feed/rss2.xml", max_bytes=MEGABYTE)


def test_nothing_listens(fetcher: Fetcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Fetcher({("127.0.0.1", port)}) as own, pytest.raises(Unreachable):
        own.fetch(f"http://127.0.0.1:{port}/", max_bytes=1)


def test_a_download_streams_to_disk(sandbox: SandboxHandle, fetcher: Fetcher, tmp_path: Path) -> None:
    before = peak_memory_bytes()
    size = fetcher.download(
        f"{sandbox.base_url}/feed/hostile/big?mb=50", tmp_path / "x.pdf", max_bytes=50 * MEGABYTE
    )
    assert size == 50 * MEGABYTE
    assert (tmp_path / "x.pdf").stat().st_size == 50 * MEGABYTE
    assert peak_memory_bytes() - before < 20 * MEGABYTE


def test_a_failed_download_leaves_no_file(sandbox: SandboxHandle, fetcher: Fetcher, tmp_path: Path) -> None:
    for path, error in [("big?mb=51&length=off", TooLarge), ("lying-length", Unreachable)]:
        with pytest.raises(error):
            fetcher.download(
                f"{sandbox.base_url}/feed/hostile/{path}", tmp_path / "x.pdf", max_bytes=50 * MEGABYTE
            )
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://", "http:///x", "http://a:99999999/", "http://x/" + "a" * 5000]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(OutsideError):
        checked_url(url)


def test_retry_after_in_both_forms() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after("30") == 30
    assert retry_after("Thu, 01 Jan 2026 00:01:00 GMT", now) == 60
    assert retry_after("Thu, 01 Jan 2025 00:01:00 GMT", now) == 0
    assert retry_after("soon") is None
    assert retry_after(None) is None
