"""The agents as a process remembers them while other machines change the rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.agents_api.agent_cache import AgentCache
from tasks.agents_api.answers import Refused
from tasks.agents_api.authentication import identify
from tasks.models import Agent
from tasks.services.agents import create_agent


@pytest.mark.django_db
def test_a_change_by_a_machine_whose_clock_is_behind_arrives() -> None:
    now = timezone.now()
    create_agent("agent-1", [], now)
    create_agent("agent-2", [], now)
    quick, whole = AgentCache(fresh_seconds=0), AgentCache(fresh_seconds=0, all_seconds=0)
    for cache in (quick, whole):
        cache.refresh()
        assert identify("", "agent-1", cache).name == "agent-1"
    Agent.objects.filter(name="agent-1").update(is_enabled=False, changed_at=now - timedelta(hours=1))
    for cache in (quick, whole):
        cache.refresh()
    # Its time of change alone looks old; reading everything finds it.
    assert identify("", "agent-1", quick).name == "agent-1"
    with pytest.raises(Refused, match="switched off"):
        identify("", "agent-1", whole)
