"""Who may ask: all agents, kept in memory and looked after every few seconds, so that a request costs no query."""

from __future__ import annotations

import hmac
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from tasks.lifecycle import agent_id_problem
from tasks.models import Agent
from tasks.services.agents import hash_token

FRESH_SECONDS = 2.0
# Between two of these, rows are found by their time of change; a machine whose clock is behind writes times that look
# old, so now and then everything is read.
ALL_SECONDS = 60.0
# Rows are written with a clock read a little before they can be seen.
OVERLAP = timedelta(seconds=30)


@dataclass(frozen=True)
class Caller:
    name: str
    roles: tuple[str, ...]
    has_token: bool = False


class AccessRefused(Exception):
    """The caller is not who it says, may not ask, or asks too often. ``status`` is 401, 403 or 429."""

    def __init__(self, status: int, code: str, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after_seconds = retry_after_seconds


class Directory:
    """A snapshot of the agents. ``refresh`` blocks on the database; ``identify`` never does."""

    def __init__(self, fresh_seconds: float = FRESH_SECONDS, all_seconds: float = ALL_SECONDS) -> None:
        self._lock = threading.Lock()
        self._fresh_seconds = fresh_seconds
        self._all_seconds = all_seconds
        self.forget()

    def forget(self) -> None:
        """Read everything again at the next refresh."""
        self._by_id: dict[int, Agent] = {}
        self._by_hash: dict[str, Agent] = {}
        self._by_name: dict[str, Agent] = {}
        self._newest: datetime | None = None
        self._checked_at = self._read_all_at = float("-inf")

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self._checked_at >= self._fresh_seconds

    def refresh(self) -> None:
        with self._lock:
            if not self.is_stale:
                return
            rows = Agent.objects.all()
            kept, now = self._by_id, time.monotonic()
            if self._newest is None or now - self._read_all_at >= self._all_seconds:
                kept, self._read_all_at = {}, now
            else:
                rows = rows.filter(changed_at__gt=self._newest - OVERLAP)
            changed = list(rows)
            if changed or kept is not self._by_id:
                self._by_id = {**kept, **{agent.pk: agent for agent in changed}}
                agents = self._by_id.values()
                self._by_hash = {agent.token_hash: agent for agent in agents if agent.token_hash}
                self._by_name = {agent.name: agent for agent in agents}
                self._newest = max((agent.changed_at for agent in agents), default=None)
            self._checked_at = time.monotonic()

    def known(self, name: str) -> Agent | None:
        """The agent of that name, if this process has seen its row."""
        return self._by_name.get(name)

    def identify(self, authorization: str, agent_id: str | None) -> Caller:
        """Who is calling. With tokens the token decides; a different ``agent_id`` beside it is refused.

        In open mode the id itself will do, and an unknown token is not looked at.
        """
        scheme, _, token = authorization.partition(" ")
        agent = None
        if scheme.lower() == "bearer" and token.strip():
            agent = self._by_token(token.strip())
        is_open = settings.BROKER.agent_auth == "open"
        if agent is None and not is_open:
            raise AccessRefused(401, "unauthorised", "Send the agent's token as a bearer token.")
        if agent is not None and not agent.is_enabled:
            raise AccessRefused(403, "agent_disabled", "This agent is switched off.")
        if agent is not None and agent_id is not None and agent_id != agent.name:
            raise AccessRefused(403, "wrong_agent", "The token belongs to another agent.")
        has_token = agent is not None
        if agent is None:
            agent = self._by_name.get(agent_id or "")
            if agent is not None and not agent.is_enabled:
                raise AccessRefused(403, "agent_disabled", "This agent is switched off.")
        if agent is not None:
            return Caller(agent.name, tuple(agent.roles), has_token)
        return Caller(agent_id or "", ())

    def _by_token(self, token: str) -> Agent | None:
        """The time this takes tells nothing: nobody without the pepper can steer where a hash is looked for."""
        wanted = hash_token(token)
        agent = self._by_hash.get(wanted)
        return agent if agent is not None and hmac.compare_digest(agent.token_hash, wanted) else None


def check_agent_id(agent_id: str) -> str:
    return agent_id_problem(agent_id, settings.BROKER.role_names)


directory = Directory()
