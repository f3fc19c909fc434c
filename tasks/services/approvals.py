"""Edits after approval: noticed when GitHub's news is applied, and let through by a person who saw the difference."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.db import transaction

from tasks.models import EditedIssue, Event, Issue, Repository
from tasks.offers.policy import is_approved_by_labels
from tasks.offers.projector import project
from tasks.reasons import Reason, ReasonCode, refused
from tasks.services.events import make_event


def digest_of(issue: Issue) -> str:
    """What a person saw, so that nothing else is approved."""
    return hashlib.sha256(f"{issue.title}\0{issue.body}".encode()).hexdigest()


def note_edits(
    repository: Repository, pairs: Sequence[tuple[Issue, Issue]], now: datetime, who: str
) -> list[Event]:
    """Of issues before and after a change: keep the approved text of those whose words changed. Unsaved events.

    The caller holds the rows' locks. An edit that brings the approved words back needs no look.
    """
    if not settings.BROKER.approval_gate:
        return []
    edited = [(row, new) for row, new in pairs if (row.title, row.body) != (new.title, new.body)]
    waiting = {
        entry.issue_id: entry for entry in EditedIssue.objects.filter(issue__in=[r for r, _ in edited])
    }
    events = []
    for row, new in edited:
        known = waiting.get(row.pk)
        if known is None:
            if not is_approved_by_labels(row):
                continue
            EditedIssue.objects.create(issue=row, title=row.title, body=row.body, edited_at=now)
            reason = Reason.of(ReasonCode.EDITED)
            events.append(make_event(repository, row.number, "edited", now=now, who=who, reason=reason))
        elif (known.title, known.body) == (new.title, new.body):
            known.delete()
            events.append(make_event(repository, row.number, "edit taken back", now=now, who=who))
    return events


def approve_edit(issue_id: int, seen_digest: str, *, who: str, now: datetime) -> None:
    """Let the text through that ``seen_digest`` stands for. Raises :class:`ActionRefused`."""
    with transaction.atomic():
        issue = Issue.objects.select_for_update().select_related("repository").get(pk=issue_id)
        if digest_of(issue) != seen_digest:
            raise refused(ReasonCode.EDITED_AGAIN)
        if not EditedIssue.objects.filter(issue=issue).delete()[0]:
            raise refused(ReasonCode.NO_EDIT)
        event = make_event(issue.repository, issue.number, "approved", now=now, who=who)
        event.save(force_insert=True)
    project(issue.repository, [issue.number], now)
