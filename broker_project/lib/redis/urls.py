"""``REDIS_URL`` with sentinels, which know the master.

``redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0`` (``rediss+sentinel`` with TLS) names
sentinels, the master's name and the database. User and password are those of the server; sentinels that want
a password of their own get it by ``?sentinel_password=`` (and ``sentinel_username=``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26379
SENTINEL_FORM = "redis+sentinel://host1:26379,host2:26379/master-name/0"
# Short, so that one sentinel that hangs leaves time to ask the next.
ASK_SECONDS = 2.0


@dataclass(frozen=True)
class SentinelAddress:
    """A master, as sentinels know it."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    is_tls: bool
    options: Mapping[str, str] = field(default_factory=dict)  # client_name, ssl_…: for the server
    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)

    def server_options(self) -> dict[str, Any]:
        credentials = {"username": self.username or None, "password": self.password or None}
        return {"db": self.database, **credentials, **self.tls(), **self.options}

    def sentinel_options(self) -> dict[str, Any]:
        credentials = {
            "username": self.sentinel_username or None,
            "password": self.sentinel_password or None,
        }
        tls = {name: value for name, value in self.options.items() if name.startswith("ssl_")}
        times = {"socket_connect_timeout": ASK_SECONDS, "socket_timeout": ASK_SECONDS}
        return {**credentials, **self.tls(), **tls, **times}

    def tls(self) -> dict[str, Any]:
        return {"ssl": True} if self.is_tls else {}


def is_sentinel(url: str) -> bool:
    return url.startswith(tuple(f"{scheme}://" for scheme in SENTINEL_SCHEMES))


def parse_sentinel(url: str) -> SentinelAddress:
    """Raises ValueError with the rest of a sentence that begins with the setting's name; it holds no secret."""
    login, hosts, parts = _split_url(url)
    username, _, password = login.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", service):
        raise ValueError(f"must name the master: {SENTINEL_FORM}.")
    if not re.fullmatch(r"[0-9]{0,4}", database):
        raise ValueError(f"must end in the master's name and a database number: {SENTINEL_FORM}.")
    options = _options(parts)
    return SentinelAddress(
        sentinels=tuple(_sentinel(entry) for entry in hosts.split(",")),
        service=service,
        database=int(database or 0),
        is_tls=parts.scheme == "rediss+sentinel",
        sentinel_username=options.pop("sentinel_username", ""),
        sentinel_password=options.pop("sentinel_password", ""),
        options=options,
        username=unquote(username),
        password=unquote(password),
    )


def _split_url(url: str) -> tuple[str, str, SplitResult]:
    """Credentials, hosts, and the rest. ``urlsplit`` refuses several hosts if one is in brackets."""
    match = re.match(r"([a-z+]+://)([^/?#]*)", url)
    netloc = match[2] if match else ""
    login, _, hosts = netloc.rpartition("@")
    return login, hosts, urlsplit(url.replace(f"//{netloc}", "//hosts", 1) if netloc else url)


def _sentinel(entry: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", entry.strip())
    port = int(match[2] or SENTINEL_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"must list its sentinels as host:port,…: {SENTINEL_FORM}.")
    return match[1].strip("[]"), port


def _options(parts: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in ("client_name", "sentinel_username", "sentinel_password") and not name.startswith(
            "ssl_"
        ):
            raise ValueError("has an option that is not known for sentinels; known are sentinel_… and ssl_….")
    return options


def passwords_of(url: str) -> set[str]:
    """Every password in a valid URL, as written and decoded, for the log filter."""
    login, _hosts, parts = _split_url(url)
    written = {login.partition(":")[2]}
    written |= {value for name, value in parse_qsl(parts.query) if "password" in name}
    return {form for text in written if text for form in (text, unquote(text))}
