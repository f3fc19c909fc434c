"""What may stand in REDIS_URL beside one server's address."""

from __future__ import annotations

import pytest

from broker_project.lib.redis.urls import SentinelAddress, is_sentinel, parse_sentinel, passwords_of

ONE = (("s1", 26379),)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis+sentinel://s1/mymaster", SentinelAddress(ONE, "mymaster", 0, False)),
        ("redis+sentinel://s1:26379/mymaster/3", SentinelAddress(ONE, "mymaster", 3, False)),
        ("rediss+sentinel://s1/m", SentinelAddress(ONE, "m", 0, True)),
        (
            "redis+sentinel://user:p%40ss@s1:1,[::1]:2,10.0.0.3/a.b/0",
            SentinelAddress(
                (("s1", 1), ("::1", 2), ("10.0.0.3", 26379)),
                "a.b",
                0,
                False,
                username="user",
                password="p@ss",
            ),
        ),
        (
            "redis+sentinel://s1/m?sentinel_username=u&sentinel_password=w%2Fx&client_name=c",
            SentinelAddress(
                ONE,
                "m",
                0,
                False,
                {"client_name": "c"},
                sentinel_username="u",
                sentinel_password="w/x",
            ),
        ),
    ],
)
def test_good_ones(url: str, address: SentinelAddress) -> None:
    assert is_sentinel(url)
    assert parse_sentinel(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://s1:26379", "must name the master"),
        ("redis+sentinel://s1:26379/", "must name the master"),
        ("redis+sentinel://:secret-1@s1/my master/0", "must name the master"),
        ("redis+sentinel://:secret-1@s1/m/x", "a database number"),
        ("redis+sentinel://:secret-1@s1/m/0/1", "a database number"),
        ("redis+sentinel://:secret-1@/m", "host:port"),
        ("redis+sentinel://:secret-1@s1,,s2/m", "host:port"),
        ("redis+sentinel://:secret-1@s1:0/m", "host:port"),
        ("redis+sentinel://:secret-1@s1:70000/m", "host:port"),
        ("redis+sentinel://s1/m?password=secret-1", "an option"),
    ],
)
def test_bad_ones_name_the_fault_and_no_secret(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        parse_sentinel(url)
    assert "secret-1" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("", set()),
        ("redis://127.0.0.1:6379/0", set()),
        ("redis://:plain@h/0", {"plain"}),
        ("rediss://u:a%40b@h/0", {"a%40b", "a@b"}),
        ("redis+sentinel://:one@s1,s2/m?sentinel_password=two", {"one", "two"}),
    ],
)
def test_passwords_are_found_to_be_hidden(url: str, found: set[str]) -> None:
    assert passwords_of(url) == found


def test_a_secret_is_not_in_the_text_of_an_address() -> None:
    shown = repr(parse_sentinel("redis+sentinel://:secret-1@s1/m?sentinel_password=secret-2"))
    assert "secret" not in shown.replace("sentinel_password", "")
