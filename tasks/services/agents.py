"""Agents and their tokens. A token is shown once and kept as a keyed hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Max

from tasks.lifecycle import agent_id_problem
from tasks.models import Agent

TOKEN_PREFIX = "brk_"  # noqa: S105 - what a token begins with, so that people and scanners recognise one


class BadAgent(ValueError):
    """A sentence that says what is wrong with a name or a role."""


def hash_token(token: str) -> str:
    """Keyed with a secret of this installation: the table alone does not let anybody in."""
    pepper = settings.BROKER.access.token_pepper or settings.SECRET_KEY
    return hmac.digest(pepper.encode(), token.encode(), hashlib.sha256).hex()


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def name_problem(name: str) -> str:
    """Why this cannot be an agent's name; empty if it can."""
    return agent_id_problem(name, settings.BROKER.role_names)


def check_agent(name: str, roles: list[str]) -> None:
    if problem := name_problem(name):
        raise BadAgent(problem)
    unknown = sorted(set(roles) - settings.BROKER.role_names)
    if unknown:
        known = ", ".join(sorted(settings.BROKER.role_names))
        raise BadAgent(f"unknown role {', '.join(unknown)}; the agents file has {known}")


def create_agent(name: str, roles: list[str], now: datetime) -> tuple[Agent, str]:
    """A new agent and its token, which is not kept."""
    check_agent(name, roles)
    token = new_token()
    try:
        with transaction.atomic():
            agent = Agent.objects.create(
                name=name,
                roles=sorted(set(roles)),
                token_hash=hash_token(token),
                token_hint=token[-4:],
                token_made_at=now,
            )
            mark_changed(agent, now)
    except IntegrityError:
        raise BadAgent(f"there is already an agent {name!r}; rotate its token in the admin") from None
    return agent, token


def rotate_token(agent: Agent, now: datetime) -> str:
    """A new token; the old one is refused within seconds."""
    token = new_token()
    with transaction.atomic():
        mark_changed(agent, now, token_hash=hash_token(token), token_hint=token[-4:], token_made_at=now)
    return token


def revoke_token(agent: Agent, now: datetime) -> None:
    with transaction.atomic():
        mark_changed(agent, now, token_hash="", token_hint="", token_made_at=None)


def switch_agent(agent: Agent, on: bool, now: datetime) -> bool:
    """Let it ask or not; within seconds every process knows. False: it was so already."""
    with transaction.atomic():
        if not Agent.objects.filter(pk=agent.pk, is_enabled=not on).update(is_enabled=on):
            return False
        mark_changed(agent, now)
    return True


def mark_changed(agent: Agent, now: datetime, **values: Any) -> None:
    """Write ``values`` so that every process notices.

    They look for rows changed after the newest they know. A clock that is behind, on another machine or after a
    jump, would hide the change from them for ever: so it is never put before one that is there already.
    """
    newest = Agent.objects.aggregate(newest=Max("changed_at"))["newest"] or now
    moment = max(now, newest + timedelta(microseconds=1))
    Agent.objects.filter(pk=agent.pk).update(**values, changed_at=moment)


def agent_named(name: str) -> Agent:
    """The agent of that name, made on its first request where the API is open."""
    return Agent.objects.get_or_create(name=name)[0]


def save_last_seen(seen: Mapping[str, datetime]) -> None:
    """One query for all: what matters is within seconds."""
    if seen:
        Agent.objects.filter(name__in=list(seen)).update(last_seen_at=max(seen.values()))
