"""PyGithub's connection against a server that sends exactly the bytes of the test."""

from __future__ import annotations

import gzip
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker_project.lib.errors import OutsideError, TimedOut, Unreachable
from tasks.github.client import as_outside_errors
from tasks.github.session import Connection, SecureConnection

JSON = b'{"name": "main"}'
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n" + JSON


class Script(threading.Thread):
    """Serves one connection after the other; each is a list of answers, and then it is closed.

    An answer is bytes, sent when a whole request has come; more than one piece are sent with a pause between.
    """

    def __init__(
        self,
        *connections: list[bytes | list[bytes]],
        wrap: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(daemon=True)
        self.connections = connections
        self.wrap = wrap
        self.requests: list[bytes] = []
        self.is_done = threading.Event()
        self.may_close = threading.Event()
        self.may_close.set()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, 0), family=family)
        self.port: int = self.listener.getsockname()[1]

    def run(self) -> None:
        try:
            for answers in self.connections:
                wire, _ = self.listener.accept()
                try:
                    if self.wrap:
                        wire = self.wrap.wrap_socket(wire, server_side=True)
                    for answer in answers:
                        self.requests.append(read_request(wire))
                        for piece in answer if isinstance(answer, list) else [answer]:
                            wire.sendall(piece)
                            threading.Event().wait(0.02)
                    self.may_close.wait(10)
                except OSError:
                    pass  # the client hung up, as some tests want it to
                finally:
                    wire.close()
        finally:
            self.listener.close()
            self.is_done.set()


def read_request(wire: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += wire.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    lower = head.lower()
    length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in lower else 0
    while len(body) < length:
        body += wire.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def served(
    *connections: list[bytes | list[bytes]], wrap: ssl.SSLContext | None = None, holds: bool = False
) -> Iterator[Script]:
    script = Script(*connections, wrap=wrap)
    if holds:
        script.may_close.clear()
    script.start()
    try:
        yield script
    finally:
        script.may_close.set()
        assert script.is_done.wait(10)


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def call(
    port: int,
    verb: str = "GET",
    body: str | None = None,
    *,
    timeout: int = 5,
    kind: type[Connection] = Connection,
    url: str = "/repos/o/r",
    headers: dict[str, str] | None = None,
) -> Any:
    return call_on(kind("127.0.0.1", port, timeout=timeout), verb, body, url, headers)


def call_on(
    connection: Connection,
    verb: str = "GET",
    body: str | None = None,
    url: str = "/repos/o/r",
    headers: dict[str, str] | None = None,
) -> Any:
    connection.request(verb, url, body, headers or {"Authorization": "token secret"})  # type: ignore[arg-type]
    with as_outside_errors():
        return connection.getresponse()


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


HEAD = b"HTTP/1.1 200 OK\r\n"
ZIPPED = gzip.compress(JSON)
SHAPES: dict[str, bytes | list[bytes]] = {
    "with its length": PLAIN,
    "in single bytes": [PLAIN[n : n + 1] for n in range(60)] + [PLAIN[60:]],
    "in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(JSON[:3], JSON[3:]),
    "until the end": HEAD + b"Content-Type: application/json\r\n\r\n" + JSON,
    "of the old version": b"HTTP/1.0 200 OK\r\n\r\n" + JSON,
    "zipped": HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(ZIPPED), ZIPPED),
    "after an interim one": b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN,
    "after two interim ones, later": [
        b"HTTP/1.1 100 Continue\r\nLink: </a>\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        PLAIN,
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_may_come_in_any_shape(shape: str) -> None:
    with served([SHAPES[shape]]) as server:
        answer = call(server.port)
    assert (answer.status, answer.read()) == (200, JSON.decode())
    assert "link" not in dict(answer.getheaders())  # of the interim one


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_is_whole_at_once(status: int) -> None:
    with served([b"HTTP/1.1 %d X\r\nETag: a\r\n\r\n" % status], holds=True) as server:
        answer = call(server.port)
    assert (answer.status, answer.read(), dict(answer.getheaders())) == (status, "", {"ETag": "a"})


def test_what_is_asked_is_what_pygithub_said() -> None:
    with served([PLAIN, PLAIN]) as server:
        connection = Connection("127.0.0.1", server.port, timeout=5)
        call_on(connection, "POST", '{"a": "\\u00e9"}', url="/x?y=1", headers={"User-Agent": "broker"})
        call_on(connection, "DELETE", url="/z")
    first, second = (request.decode() for request in server.requests)
    assert first.startswith(f"POST /x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n")
    assert "\r\nUser-Agent: broker\r\n" in first
    assert "\r\nContent-Length: 15\r\n" in first
    assert first.endswith('\r\n\r\n{"a": "\\u00e9"}')
    assert second.startswith("DELETE /z HTTP/1.1")


def test_headers_of_one_name_are_one() -> None:
    answer = HEAD + b"Link: <a>\r\nlink: <b>\r\nContent-Length: 2\r\n\r\n[]"
    with served([answer]) as server:
        assert dict(call(server.port).getheaders())["Link"] == "<a>, <b>"


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "a\nb", "a\rb"])
def test_nothing_breaks_out_of_its_line(value: str) -> None:
    with pytest.raises(ValueError, match="Invalid header value"):
        call(1, headers={"Authorization": value})
    with served([PLAIN]) as server:
        call(server.port, url=f"/repos/{value}")
    assert server.requests[0].startswith(f"GET /repos/{quote(value, safe=chr(58))} HTTP/1.1\r\n".encode())


# Connections


def test_a_connection_serves_many_calls() -> None:
    with served([PLAIN, PLAIN, PLAIN]) as server:
        connection = Connection("127.0.0.1", server.port, timeout=5)
        for _ in range(3):
            assert call_on(connection).status == 200
    assert len(server.requests) == 3


@pytest.mark.parametrize("how", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_one_that_is_to_be_closed_is_not_used_again(how: bytes) -> None:
    answer = how + b"Content-Length: 16\r\n\r\n" + JSON
    with served([answer], [PLAIN]) as server:
        connection = Connection("127.0.0.1", server.port, timeout=5)
        assert call_on(connection).read() == call_on(connection).read() == JSON.decode()


def test_one_that_github_closed_meanwhile_is_made_anew() -> None:
    with served([PLAIN], [PLAIN]) as server:
        connection = Connection("127.0.0.1", server.port, timeout=5)
        assert call_on(connection).status == 200
        threading.Event().wait(0.2)  # the server closes it
        assert call_on(connection).status == 200


# What goes wrong


BROKEN: dict[str, bytes | list[bytes]] = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "half a body": HEAD + b"Content-Length: 100\r\n\r\n" + JSON,
    "half of the chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + JSON,
    "another language": b"SSH-2.0-OpenSSH_9.2\r\n",
    "zipped, but not": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 16\r\n\r\n" + JSON,
    "another protocol": b"HTTP/1.1 101 X\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_answer_that_breaks_off_may_have_happened(kind: str) -> None:
    with served([BROKEN[kind]]) as server, pytest.raises(Unreachable, match="broke off") as caught:
        call(server.port)
    assert caught.value.may_have_happened


def test_no_answer_in_time_may_have_happened() -> None:
    with served([b""], holds=True) as server, pytest.raises(TimedOut, match="no answer in time") as caught:
        call(server.port, timeout=1)
    assert caught.value.may_have_happened


def test_an_answer_that_trickles_in_ends_some_time() -> None:
    trickle = [PLAIN[:40]] + [b" "] * 400
    with served([trickle]) as server, pytest.raises(OutsideError) as caught:
        call(server.port, timeout=1)
    assert isinstance(caught.value, TimedOut)


def test_nobody_there_has_not_happened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(Unreachable, match="no connection") as caught:
        call(port)
    assert not caught.value.may_have_happened


# TLS and proxies


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, signed by itself; the key is in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_of_the_operators_own_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with served([PLAIN, PLAIN], wrap=server_side(certificate)) as server:
        connection = SecureConnection("127.0.0.1", server.port, timeout=5)
        assert call_on(connection).read() == JSON.decode()
        assert call_on(connection).status == 200
    assert len(server.requests) == 2


def test_a_stranger_gets_neither_token_nor_request(certificate: Path) -> None:
    with served([PLAIN], wrap=server_side(certificate)) as server:
        with pytest.raises(Unreachable, match="no secure connection") as caught:
            call(server.port, kind=SecureConnection)
    assert not caught.value.may_have_happened
    assert server.requests == []


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with served([PLAIN]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:word@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        answer = call_on(Connection("github.test", None, timeout=5))
    assert (answer.status, answer.read()) == (200, JSON.decode())
    assert proxy.requests[0].startswith(b"GET http://github.test/repos/o/r HTTP/1.1\r\n")
    assert b"\r\nproxy-authorization: basic bwu6d29yza==" in proxy.requests[0].lower()


def test_a_redirect_to_another_host_is_left_alone() -> None:
    away = b"HTTP/1.1 301 X\r\nLocation: http://127.0.0.2/x\r\nContent-Length: 0\r\n\r\n"
    with served([away]) as server:
        assert call(server.port).status == 301
    here = b"HTTP/1.1 307 X\r\nLocation: /moved?a=1\r\nContent-Length: 0\r\n\r\n"
    with served([here, PLAIN]) as server:
        assert call(server.port, "POST", "{}").status == 200
    assert server.requests[1].startswith(b"POST /moved?a=1 HTTP/1.1")
    assert server.requests[1].endswith(b"{}")


def test_an_address_of_version_six() -> None:
    try:
        server = Script([b"HTTP/1.1 307 X\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n", PLAIN], host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    server.start()
    assert call_on(Connection("::1", server.port, timeout=5), url="/a").status == 200
    assert server.is_done.wait(10)
    assert f"Host: [::1]:{server.port}".encode() in server.requests[1]
