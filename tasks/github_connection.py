"""PyGithub's way to GitHub: its requests over one pool of connections a process, through urllib3.

PyGithub speaks through an object of the shape of ``http.client``. Its own one wraps ``requests``, which looks for
proxies in the environment and merges sessions anew for each call: more than half of what a call costs. What the
environment says about proxies and certificates is read here once.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from urllib.parse import urljoin

import requests
import urllib3
from github.Requester import Requester

# GitHub sends on who asks for a renamed repository. PyGithub would lose the query on the way, and write nothing.
REDIRECTS, MAX_REDIRECTS = (301, 302, 307, 308), 3
CONNECTIONS = 32  # kept open to one host; more at once are made and closed

_pools: dict[tuple[str, str, Any], urllib3.PoolManager] = {}
_pools_lock = threading.Lock()


def forget_connections() -> None:
    global _pools, _pools_lock
    _pools, _pools_lock = {}, threading.Lock()


# A forked child must not share its parent's sockets, nor wait for a lock that nobody will release.
os.register_at_fork(after_in_child=forget_connections)


def _pool_for(scheme: str, host: str, verify: bool | str) -> urllib3.PoolManager:
    with _pools_lock:
        key = (scheme, host, verify)
        if key not in _pools:
            _pools[key] = _make_pool(scheme, host, verify)
        return _pools[key]


def _make_pool(scheme: str, host: str, verify: bool | str) -> urllib3.PoolManager:
    with requests.Session() as session:
        found = session.merge_environment_settings(f"{scheme}://{host}/", {}, None, None, None)
    options: dict[str, Any] = {"maxsize": CONNECTIONS, "block": False}
    if scheme == "https":
        trusted = found["verify"] if verify is True else verify
        options["cert_reqs"] = "CERT_REQUIRED" if trusted else "CERT_NONE"
        options["ca_certs"] = trusted if isinstance(trusted, str) else requests.utils.DEFAULT_CA_BUNDLE_PATH
    proxy = requests.utils.select_proxy(f"{scheme}://{host}/", found["proxies"])
    if not proxy:
        return urllib3.PoolManager(**options)
    login = urllib3.util.parse_url(proxy).auth
    headers = urllib3.util.make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **options)


class Answer:
    """What PyGithub reads of an answer."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self.status = answer.status
        self._answer = answer

    def getheaders(self) -> list[tuple[str, str]]:
        return list(self._answer.headers.items())

    def read(self) -> str:
        return self._answer.data.decode("utf-8", "replace")


class Connection:
    """One call, on a connection of the shared pool. PyGithub makes one of these each time."""

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
        self.host = host
        self._address = f"{self.scheme}://{host}" + (f":{port}" if port else "")
        self._timeout = urllib3.Timeout(connect=timeout, read=timeout)
        self._pool = _pool_for(self.scheme, host, verify)

    def request(self, verb: str, url: str, body: Any, headers: dict[str, str], stream: bool = False) -> None:
        self._call = (verb, url, body, {"Accept-Encoding": "gzip, deflate", **headers})

    def getresponse(self) -> Answer:
        """Raises urllib3's errors."""
        verb, url, body, headers = self._call
        address = self._address + url
        for _ in range(1 + MAX_REDIRECTS):
            answer = self._pool.urlopen(
                verb,
                address,
                body=body.encode() if isinstance(body, str) else body,
                headers=headers,
                timeout=self._timeout,
                retries=False,
                redirect=False,
            )
            target = urljoin(address, answer.headers.get("location", ""))
            if answer.status not in REDIRECTS or not target.startswith(f"{self._address}/"):
                break  # the token goes to no other host
            address = target
        return Answer(answer)

    def close(self) -> None:
        """The pool keeps what is open."""


class SecureConnection(Connection):
    scheme = "https"


def use_shared_connections() -> None:
    Requester.injectConnectionClasses(Connection, SecureConnection)  # type: ignore[arg-type]
