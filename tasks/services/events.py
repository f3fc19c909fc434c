"""The timeline: every status change of an issue leaves a row."""

from __future__ import annotations

from datetime import datetime

from broker_project.lib.redaction import redact
from tasks.models import Assignment, Event, Repository


def make_event(
    repository: Repository,
    number: int,
    what: str,
    *,
    now: datetime,
    who: str,
    from_status: str = "",
    to_status: str = "",
    reason: str = "",
    assignment: Assignment | None = None,
) -> Event:
    """An unsaved event, for a bulk insert with the change it tells of."""
    return Event(
        repository=repository,
        number=number,
        what=what,
        from_status=from_status,
        to_status=to_status,
        reason=redact(reason),
        who=who[:150],
        at=now,
        assignment=assignment,
    )
