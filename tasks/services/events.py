"""The timeline: every status change of an issue leaves a row."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from broker_project.lib.redaction import redact, redact_value
from tasks.models import Assignment, Event, Repository
from tasks.reasons import Reason


def reason_columns(reason: Reason | str) -> dict[str, Any]:
    """``reason`` (the English sentence) and ``coded_reason`` of an event or an assignment, without secrets.

    A plain text is what an agent or an outside system said; it has no code.
    """
    coded = reason.as_json() if isinstance(reason, Reason) else None
    return {"reason": redact(str(reason)), "coded_reason": redact_value(coded)}


def make_event(
    repository: Repository,
    number: int,
    what: str,
    *,
    now: datetime,
    who: str,
    from_status: str = "",
    to_status: str = "",
    reason: Reason | str = "",
    assignment: Assignment | None = None,
) -> Event:
    """An unsaved event, for a bulk insert with the change it tells of."""
    return Event(
        repository=repository,
        number=number,
        what=what,
        from_status=from_status,
        to_status=to_status,
        **reason_columns(reason),
        who=who[:150],
        at=now,
        assignment=assignment,
    )
