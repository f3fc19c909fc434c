"""What people do by hand: take an assignment back, park an issue, offer it again.

Every function raises :class:`ActionRefused`, and changes nothing, where the state does not allow it.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from broker_project.lib.errors import ActionRefused, OutsideError
from broker_project.lib.logs import get_logger
from tasks.github.client import client_for
from tasks.github.label_marks import mark_labels_changed
from tasks.lifecycle import LIVE_STATES, PARKED, AssignmentState, IssueStatus
from tasks.models import Assignment, FixTask, Issue, PullRequest, Repository
from tasks.offers.projector import project
from tasks.reasons import Reason, ReasonCode, refused
from tasks.services.events import make_event
from tasks.services.labels import (
    LabelChanges,
    changed_labels,
    label_changes,
    merged_changes,
    send_label_changes,
    store_labels,
    try_label_changes,
)
from tasks.services.leases import end

log = get_logger(__name__)


def release(assignment: Assignment, *, who: str, now: datetime) -> None:
    """End it: the issue is on offer at once, its agent hears ``cancel`` with the next heartbeat."""
    if not _take_back(assignment, who=who, now=now, is_parked=False):
        assignment.refresh_from_db(fields=["state"])
        raise ActionRefused(assignment.get_state_display(), code=ReasonCode.ENDED_ALREADY)


def _take_back(assignment: Assignment, *, who: str, now: datetime, is_parked: bool) -> bool:
    """False: it had ended already."""
    if assignment.state == AssignmentState.CLAIMING:
        raise refused(ReasonCode.BEING_ASSIGNED)
    reason = Reason.of(ReasonCode.PARKED_BY if is_parked else ReasonCode.RELEASED_BY, who=who)
    return end(
        assignment,
        AssignmentState.RELEASED,
        who=who,
        now=now,
        is_cancelled=True,
        is_parked=is_parked,
        reason=reason,
    )


def park(repository: Repository, number: int, *, who: str, now: datetime) -> None:
    """Out of the choice until somebody offers it again; a live assignment is taken back first."""
    labels = known_labels(repository, number)
    if labels is None:
        raise refused(ReasonCode.CLOSED)
    if PARKED in labels:
        raise refused(ReasonCode.PARKED_ALREADY)
    live = (
        Assignment.objects.select_related("agent", "repository")
        .filter(repository=repository, number=number, state__in=LIVE_STATES)
        .first()
    )
    if live is not None:
        if not _take_back(live, who=who, now=now, is_parked=True):
            raise refused(ReasonCode.ENDED_ALREADY)
        return
    changes = label_changes([PARKED], comment=parked_by(who))
    _change_labels(repository, number, labels, changes, "parked", who, now)


def offer_again(repository: Repository, number: int, *, who: str, now: datetime) -> None:
    """Label off, attempts forgotten, on offer at once if nothing else is in the way."""
    labels = known_labels(repository, number)
    if labels is None:
        raise refused(ReasonCode.CLOSED)
    if Assignment.objects.filter(repository=repository, number=number, state__in=LIVE_STATES).exists():
        raise refused(ReasonCode.TAKEN)
    issues = Issue.objects.filter(repository=repository, number=number)
    fixes = FixTask.objects.filter(repository=repository, pull_number=number, state=FixTask.State.OPEN)
    was_refused = issues.exclude(refused_reason="").exists()
    if PARKED not in labels and not was_refused:
        raise refused(ReasonCode.NOT_PARKED)
    if PARKED in labels:
        _change_labels(repository, number, labels, label_changes(remove=[PARKED]), "offered again", who, now)
    else:
        event = make_event(repository, number, "offered again", now=now, who=who, to_status="open")
        event.save(force_insert=True)
    issues.update(lost_attempts=0, refused_reason="", coded_refusal=None)
    fixes.update(lost_attempts=0)
    project(repository, [number], now)


def known_labels(repository: Repository, number: int) -> list[str] | None:
    """The labels of an open issue, or of the open pull request with that number; None: there is none."""
    for model in (Issue, PullRequest):
        rows = model._default_manager.filter(repository=repository, number=number, is_open=True)
        found = rows.values_list("labels", flat=True).first()
        if found is not None:
            return list(found)
    return None


def parked_by(who: str) -> str:
    return (
        f"Parked by {who}. Take the label `{PARKED}` off to offer it again.\n\n"
        f"{who} が保留しました。ラベル `{PARKED}` を外すと、もう一度割り当ての対象になります。"
    )


def _change_labels(
    repository: Repository,
    number: int,
    labels: list[str],
    changes: LabelChanges,
    what: str,
    who: str,
    now: datetime,
) -> None:
    """Change an idle issue's labels here and on GitHub. What GitHub does not take now is pending."""
    last = (
        Assignment.objects.select_related("agent", "repository")
        .filter(repository=repository, number=number)
        .order_by("-id")
        .first()
    )
    if last is None and not _tell_github(repository, number, changes):
        raise refused(ReasonCode.GITHUB_SILENT)
    after = changed_labels(labels, changes)
    before_word, after_word = (
        IssueStatus.PARKED if PARKED in names else IssueStatus.OPEN for names in (labels, after)
    )
    with transaction.atomic():
        if last is not None:
            pending = Assignment.objects.select_for_update().get(pk=last.pk).labels_due
            last.labels_due = merged_changes(pending, changes)
            Assignment.objects.filter(pk=last.pk).update(labels_due=last.labels_due)
        store_labels(repository, number, after, now)
        make_event(
            repository, number, what, now=now, who=who, from_status=before_word, to_status=after_word
        ).save(force_insert=True)
    project(repository, [number], now)
    if last is not None:
        try_label_changes(last)


def _tell_github(repository: Repository, number: int, changes: LabelChanges) -> bool:
    try:
        send_label_changes(client_for(repository), number, changes)
    except OutsideError as error:
        log.warning("labels not changed", issue=number, error=str(error))
        return False
    mark_labels_changed(repository.pk, number)
    return True
