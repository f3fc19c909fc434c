"""How often somebody may call: one token bucket per key, in the memory of this process.

A call costs a dictionary lookup, no round trip and no query. The price: every process counts for itself, so a caller
whose connections spread over four web processes gets up to four times the rate. The limits keep one caller from
taking everything; they are not meant for billing.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

from django.conf import settings
from django.http import HttpRequest

from broker_project.lib.config.access import AccessConfig, Network, Rate
from broker_project.lib.logs import get_logger

log = get_logger(__name__)

WINDOW_SECONDS = 60.0
KEPT_KEYS = 20_000  # per kind; the key that was quiet for longest is dropped first
KEPT_ADDRESSES = 4_096
IPV6_PREFIX = 64  # one customer has at least this much; counting single addresses would limit nobody


class TooManyRequests(Exception):
    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"too many requests, come back in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class Buckets:
    """``per_minute`` calls a minute for each key, all of them at once if the key was quiet before.

    A key is one number: when its bucket will be full again (the generic cell rate algorithm).
    """

    def __init__(self, per_minute: int, kept_keys: int = KEPT_KEYS) -> None:
        self.interval_seconds = WINDOW_SECONDS / per_minute
        self.kept_keys = kept_keys
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str, now: float) -> float:
        """Count a call: 0.0, or how many seconds too early it is; a call that is refused is not counted."""
        with self._lock:
            if early := self.early(key, now):
                return early
            self._full_at[key] = self._full_after(key, now)
            self._full_at.move_to_end(key)
            if len(self._full_at) > self.kept_keys:
                self._full_at.popitem(last=False)
        return 0.0

    def early(self, key: str, now: float) -> float:
        """What ``take`` would say, without counting."""
        early = self._full_after(key, now) - now - WINDOW_SECONDS
        # Sixty additions of 1.0 are not exactly 60.0.
        return early if early > self.interval_seconds / 1000 else 0.0

    def _full_after(self, key: str, now: float) -> float:
        return max(self._full_at.get(key, 0.0), now) + self.interval_seconds


@dataclass(frozen=True, slots=True)
class Address:
    """Where a call comes from, as it is counted and shown."""

    text: str
    key: str
    is_exempt: bool


class AddressBook:
    """Finds the caller's address behind proxies. ``X-Forwarded-For`` is believed from trusted proxies only."""

    def __init__(self, trusted: tuple[Network, ...], exempt: tuple[Network, ...]) -> None:
        self.trusted, self.exempt = trusted, exempt
        # The same few peers are looked up thousands of times a second.
        self.find = lru_cache(KEPT_ADDRESSES)(self._find)

    def trusts(self, peer: str) -> bool:
        """A Unix socket has no address; whoever may open it is on this machine."""
        found = parse_address(peer or "127.0.0.1")
        return found is not None and any(found in network for network in self.trusted)

    def _find(self, peer: str, forwarded: str = "") -> Address:
        """``forwarded`` is ``X-Forwarded-For``, the nearest hop last. Ignored unless the peer is trusted."""
        hop = parse_address(peer or "127.0.0.1")
        was_forwarded = False
        if forwarded and self.trusts(peer):
            for entry in reversed(forwarded.split(",")):
                found = parse_address(entry.strip())
                if found is None:
                    break  # not an address: the hop before it is the best we know
                hop, was_forwarded = found, True
                if not any(found in network for network in self.trusted):
                    break
        if hop is None:
            return Address("", "unknown", False)
        # A header cannot make a caller local.
        is_exempt = any(hop in network for network in self.exempt) and not (was_forwarded and hop.is_loopback)
        return Address(str(hop), counted_as(hop), is_exempt)


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """``192.0.2.1``, ``192.0.2.1:4711``, ``2001:db8::1``, ``[2001:db8::1]:4711``; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def counted_as(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))


class Limits:
    """All buckets of this process."""

    def __init__(self, access: AccessConfig) -> None:
        self.addresses = AddressBook(access.trusted_proxies, access.rate_exempt)
        self._buckets = {kind: Buckets(number) for kind, number in access.per_minute.items() if number}
        self._logged = Buckets(1)

    def count(self, kind: Rate, address: Address, key: str = "") -> None:
        """Count a call of this key, or else of the address. Raises TooManyRequests."""
        self._ask(kind, address, key or address.key, Buckets.take)

    def check(self, kind: Rate, address: Address, key: str = "") -> None:
        """Raises TooManyRequests if a call now would be one too many; counts nothing."""
        self._ask(kind, address, key or address.key, Buckets.early)

    def _ask(
        self, kind: Rate, address: Address, key: str, question: Callable[[Buckets, str, float], float]
    ) -> None:
        buckets = self._buckets.get(kind)
        if buckets is None or address.is_exempt:
            return
        now = time.monotonic()
        if early := question(buckets, key, now):
            if not self._logged.take(f"{kind}:{key}", now):  # once a minute: a flood must not flood the log
                log.warning("rate limit reached", kind=str(kind), key=key)
            raise TooManyRequests(max(1, math.ceil(early)))


@cache
def limits() -> Limits:
    """The limits of this process."""
    return Limits(settings.BROKER.access)


def address_of(request: HttpRequest) -> Address:
    """Where a request to Django comes from."""
    peer = request.META.get("REMOTE_ADDR", "")
    return limits().addresses.find(peer, request.headers.get("X-Forwarded-For", ""))
