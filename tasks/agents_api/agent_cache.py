"""All agents in memory, refreshed every few seconds, so that a request costs no query."""

from __future__ import annotations

import hmac
import threading
import time
from datetime import datetime, timedelta

from tasks.models import Agent
from tasks.services.agents import hash_token

FRESH_SECONDS = 2.0
# In between only rows with a newer time of change are read. A machine whose clock is behind writes times that look
# old, so now and then everything is read.
ALL_SECONDS = 60.0
# A row becomes visible a little after the clock was read for it.
OVERLAP = timedelta(seconds=30)


class AgentCache:
    """A snapshot of the agents. Only ``refresh`` asks the database."""

    def __init__(self, fresh_seconds: float = FRESH_SECONDS, all_seconds: float = ALL_SECONDS) -> None:
        self._lock = threading.Lock()
        self._fresh_seconds = fresh_seconds
        self._all_seconds = all_seconds
        self.clear()

    def clear(self) -> None:
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

    def by_name(self, name: str) -> Agent | None:
        return self._by_name.get(name)

    def by_token(self, token: str) -> Agent | None:
        # The time this takes reveals nothing: without the pepper nobody can choose where a hash is looked up.
        wanted = hash_token(token)
        agent = self._by_hash.get(wanted)
        return agent if agent is not None and hmac.compare_digest(agent.token_hash, wanted) else None


agent_cache = AgentCache()
