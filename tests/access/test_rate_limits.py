"""Buckets and addresses: values in, values out. The clock is an argument."""

from __future__ import annotations

import ipaddress

import pytest

from broker_project.lib.config.access import LOOPBACK, AccessConfig, Rate
from broker_project.lib.rate_limits import AddressBook, Buckets, Limits, TooManyRequests

PROXIES = (*LOOPBACK, ipaddress.ip_network("10.0.0.0/8"))


def test_a_minutes_worth_at_once_and_then_one_by_one() -> None:
    buckets = Buckets(60)
    assert [buckets.take("a", 100.0) for _ in range(60)] == [0.0] * 60
    assert buckets.take("a", 100.0) == pytest.approx(1.0)
    assert buckets.take("b", 100.0) == 0.0, "each key has its own"
    assert buckets.take("a", 101.0) == 0.0, "a refused call is not counted"
    assert buckets.take("a", 101.0) == pytest.approx(1.0)
    assert [buckets.take("a", 161.0) for _ in range(60)] == [0.0] * 60, (
        "after a minute all of it is there again"
    )


@pytest.mark.parametrize("per_minute", [1, 3, 7, 600, 60_000, 999_983])
def test_never_more_than_the_rate_allows_over_ten_minutes(per_minute: int) -> None:
    buckets = Buckets(per_minute)
    step = 60 / min(per_minute, 600) / 2  # twice as often as allowed, or 1,200 a minute
    calls = round(600 / step)
    let_in = sum(buckets.take("a", 1000.0 + n * step) == 0.0 for n in range(calls))
    assert let_in <= per_minute * 11
    assert let_in >= min(calls, per_minute * 10)


def test_looking_counts_nothing() -> None:
    buckets = Buckets(1)
    assert [buckets.early("a", 1.0) for _ in range(5)] == [0.0] * 5
    assert len(buckets) == 0
    buckets.take("a", 1.0)
    assert buckets.early("a", 1.0) == pytest.approx(60.0)


def test_only_so_many_keys_are_kept_and_the_quiet_ones_go_first() -> None:
    buckets = Buckets(1, kept_keys=100)
    assert buckets.take("busy", 0.0) == 0.0
    for n in range(1000):
        buckets.take(f"k{n}", 1.0)
    assert len(buckets) == 100
    assert buckets.take("k999", 1.0) > 0, "the newest is remembered"
    assert buckets.take("busy", 1.0) == 0.0, "the oldest is forgotten"


@pytest.mark.parametrize(
    ("peer", "forwarded", "text", "key"),
    [
        ("203.0.113.9", "", "203.0.113.9", "203.0.113.9"),
        # A stranger's header is not believed.
        ("203.0.113.9", "198.51.100.1", "203.0.113.9", "203.0.113.9"),
        ("203.0.113.9", "127.0.0.1", "203.0.113.9", "203.0.113.9"),
        # A trusted proxy's is, from its end, past other trusted proxies.
        ("127.0.0.1", "198.51.100.1", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "1.2.3.4, 198.51.100.1", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "198.51.100.1, 10.0.0.7", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.7", "127.0.0.1, 198.51.100.1,10.1.1.1", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "10.0.0.7", "10.0.0.7", "10.0.0.7"),
        # With a port, in brackets, mapped.
        ("127.0.0.1", "198.51.100.1:4711", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "[2001:db8::5]:4711", "2001:db8::5", "2001:db8::/64"),
        ("::ffff:203.0.113.9", "", "203.0.113.9", "203.0.113.9"),
        # Nonsense is not passed over: what stands before it may be anybody's.
        ("127.0.0.1", "198.51.100.1, unknown", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.1, unknown, 10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("127.0.0.1", "1" * 500, "127.0.0.1", "127.0.0.1"),
        # A customer with IPv6 has 2**64 addresses.
        ("2001:db8:1:2:aaaa::1", "", "2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::2", "", "2001:db8:1:2:bbbb::2", "2001:db8:1:2::/64"),
        # A Unix socket.
        ("", "198.51.100.1", "198.51.100.1", "198.51.100.1"),
        ("testclient", "198.51.100.1", "", "unknown"),
    ],
)
def test_whose_address_it_is(peer: str, forwarded: str, text: str, key: str) -> None:
    found = AddressBook(PROXIES, ()).find(peer, forwarded)
    assert (found.text, found.key) == (text, key)


@pytest.mark.parametrize(
    ("peer", "forwarded", "is_exempt"),
    [
        ("127.0.0.1", "", True),
        ("::1", "", True),
        ("", "", True),
        ("192.168.4.4", "", True),
        ("10.0.0.7", "192.168.4.4", True),
        ("127.0.0.1", "198.51.100.1", False),
        # Nobody is on this machine because a header says so.
        ("127.0.0.1", "127.0.0.1", False),
        ("10.0.0.7", "::1", False),
        ("203.0.113.9", "127.0.0.1", False),
        ("203.0.113.9", "192.168.4.4", False),
    ],
)
def test_who_is_not_counted(peer: str, forwarded: str, is_exempt: bool) -> None:
    exempt = (*LOOPBACK, ipaddress.ip_network("192.168.0.0/16"))
    assert AddressBook(PROXIES, exempt).find(peer, forwarded).is_exempt is is_exempt


@pytest.fixture
def limits() -> Limits:
    rates = {Rate.AGENT: 2, Rate.ADDRESS: 0, Rate.LOGIN: 1}
    return Limits(AccessConfig("", (), LOOPBACK, rates, 5, 15, "off"))


def test_nought_switches_a_limit_off_and_this_machine_is_exempt(limits: Limits) -> None:
    far, near = limits.addresses.find("203.0.113.9"), limits.addresses.find("127.0.0.1")
    for _ in range(100):
        limits.count(Rate.ADDRESS, far)
        limits.count(Rate.AGENT, near, "agent-1")


def test_the_refusal_says_when_to_come_back(limits: Limits) -> None:
    far = limits.addresses.find("203.0.113.9")
    for _ in range(2):
        limits.count(Rate.AGENT, far, "agent-1")
    with pytest.raises(TooManyRequests) as refused:
        limits.count(Rate.AGENT, far, "agent-1")
    assert 29 <= refused.value.retry_after_seconds <= 30
    limits.count(Rate.AGENT, far, "agent-2")
