"""Who may ask, as a process remembers it while other machines change the rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.agents_api.agent_cache import AccessRefused, Directory
from tasks.models import Agent
from tasks.services.agents import create_agent


@pytest.mark.django_db
def test_a_change_by_a_machine_whose_clock_is_behind_arrives() -> None:
    now = timezone.now()
    create_agent("agent-1", [], now)
    create_agent("agent-2", [], now)
    quick, whole = Directory(fresh_seconds=0), Directory(fresh_seconds=0, all_seconds=0)
    for seen in (quick, whole):
        seen.refresh()
        assert seen.identify("", "agent-1").name == "agent-1"
    Agent.objects.filter(name="agent-1").update(is_enabled=False, changed_at=now - timedelta(hours=1))
    for seen in (quick, whole):
        seen.refresh()
    # By its time of change alone it looks long known; the look at everything finds it.
    assert quick.identify("", "agent-1").name == "agent-1"
    with pytest.raises(AccessRefused, match="switched off"):
        whole.identify("", "agent-1")
