"""The settings of access: tokens, proxies, rate limits, log-in."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from broker_project.lib.environment import ConfigError, Environment

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
NOBODY = "none"
MOST_PER_MINUTE = 10_000_000


class Rate(StrEnum):
    """What is counted. Each kind has buckets of its own."""

    AGENT = "agent"  # calls with one agent's token
    ADDRESS = "address"  # calls of the agent API from one address
    REFUSED = "refused"  # calls from one address that got 401
    WEBHOOK = "webhook"  # deliveries from one address
    FIX = "fix"  # tasks/fix: each may ask GitHub
    EXPLAIN = "explain"  # explain: each reads every open issue
    LOGIN = "login"  # log-in forms sent from one address, second factors included


@dataclass(frozen=True)
class AccessConfig:
    token_pepper: str = field(repr=False)  # empty: Django's secret key
    trusted_proxies: tuple[Network, ...]
    rate_exempt: tuple[Network, ...]
    per_minute: Mapping[Rate, int]  # 0: not limited
    login_failures: int
    login_lock_minutes: int
    second_factor: str  # off, optional, required


def read_access(env: Environment, *, is_public: bool) -> AccessConfig:
    pepper = env.token("BROKER_TOKEN_PEPPER")
    if pepper and len(pepper) < 32:
        raise ConfigError("BROKER_TOKEN_PEPPER must have at least 32 characters.")

    def rate(name: str, default: int) -> int:
        return env.integer(name, default, low=0, high=MOST_PER_MINUTE)

    return AccessConfig(
        token_pepper=pepper,
        trusted_proxies=read_networks(
            "BROKER_TRUSTED_PROXIES", env.listing("BROKER_TRUSTED_PROXIES"), LOOPBACK
        ),
        # A public host is behind a proxy that ends TLS, so a call from this machine may be anybody's.
        rate_exempt=read_networks(
            "BROKER_RATE_EXEMPT", env.listing("BROKER_RATE_EXEMPT"), () if is_public else LOOPBACK
        ),
        per_minute={
            Rate.AGENT: rate("BROKER_RATE_AGENT_PER_MINUTE", 1_200),
            Rate.ADDRESS: rate("BROKER_RATE_ADDRESS_PER_MINUTE", 60_000),
            Rate.REFUSED: rate("BROKER_RATE_REFUSED_PER_MINUTE", 60),
            Rate.WEBHOOK: rate("BROKER_RATE_WEBHOOK_PER_MINUTE", 3_000),
            Rate.FIX: rate("BROKER_RATE_FIX_PER_MINUTE", 60),
            Rate.EXPLAIN: rate("BROKER_RATE_EXPLAIN_PER_MINUTE", 60),
            Rate.LOGIN: rate("BROKER_RATE_LOGIN_PER_MINUTE", 30),
        },
        login_failures=env.integer("BROKER_LOGIN_FAILURES", 5, low=1, high=1000),
        login_lock_minutes=env.integer("BROKER_LOGIN_LOCK_MINUTES", 15, low=1, high=10080),
        second_factor=env.choice("BROKER_ADMIN_2FA", "off", ("off", "optional", "required")),
    )


def read_networks(name: str, entries: tuple[str, ...], default: tuple[Network, ...]) -> tuple[Network, ...]:
    """Addresses or networks; ``none`` for nobody, where an empty value would be the default."""
    if not entries:
        return default
    if entries == (NOBODY,):
        return ()
    found = []
    for entry in entries:
        try:
            found.append(ipaddress.ip_network(entry))
        except ValueError:
            raise ConfigError(
                f"{name} must be addresses or networks separated by commas, or {NOBODY}, not {entry[:60]!r}."
            ) from None
    return tuple(found)
