"""What GitHub says of issues and pull requests, brought into the rows: shared by the poll and the webhook.

An older snapshot never overwrites a newer one. Which of its labels are believed is said in
:mod:`tasks.services.snapshot_labels`. The caller projects the numbers that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from django.db import transaction
from django.db.models import QuerySet

from tasks.github.answers import Json
from tasks.github.rows import read_issue, read_pull, read_pull_as_issue, set_labels
from tasks.lifecycle import LIVE_STATES, NEEDS_REVIEW, PARKED
from tasks.models import Assignment, Issue, PullRequest, Repository
from tasks.reasons import Reason, ReasonCode
from tasks.services.approvals import note_edits
from tasks.services.snapshot_events import SnapshotEvents
from tasks.services.snapshot_labels import GITHUB, LabelView, SnapshotSource, view_labels

ISSUE_FIELDS = (
    "title",
    "body",
    "is_open",
    "labels",
    "html_url",
    "author",
    "author_association",
    "opened_at",
    "updated_at",
    "raw",
    "priority",
    "review_detected_at",
    "refused_reason",
    "coded_refusal",
)
PULL_FIELDS = (
    "title",
    "body",
    "is_open",
    "labels",
    "html_url",
    "head_ref",
    "head_sha",
    "base_ref",
    "closes",
    "opened_at",
    "updated_at",
)
TOLD_FIELDS = ("title", "body", "is_open", "labels", "updated_at")

Row = TypeVar("Row", Issue, PullRequest)


@dataclass
class Changes:
    """What applying changed. ``numbers`` are to be projected; of ``held`` the labels were not believed."""

    numbers: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    opened: int = 0
    closed: int = 0
    changed: int = 0

    def add(self, other: Changes) -> None:
        self.numbers |= other.numbers
        self.held |= other.held
        self.opened += other.opened
        self.closed += other.closed
        self.changed += other.changed


def apply_pull(repository: Repository, raw: Json, now: datetime) -> set[int]:
    """One pull request. Returns the numbers to be projected: its own and the issues it is linked to."""
    return apply_pulls(repository, [raw], SnapshotSource(now)).numbers


def apply_issues(repository: Repository, raws: Iterable[Json], source: SnapshotSource) -> Changes:
    """A page of issues, with one query for what is known and one write for what changed. Raises BadAnswer."""
    issues: dict[int, Issue] = {}
    pulls: dict[int, PullRequest] = {}
    for raw in raws:
        if raw.get("pull_request"):
            pull = read_pull_as_issue(repository, raw)
            pulls[pull.number] = pull
        else:
            issue = read_issue(repository, raw)
            issues[issue.number] = issue
    changes, events = Changes(), SnapshotEvents(repository, source)
    with transaction.atomic():
        closing = [issue.number for issue in issues.values() if not issue.is_open]
        closing += [pull.number for pull in pulls.values() if not pull.is_open]
        lock_assignments(repository, closing)
        if issues:
            _apply_issue_rows(issues, changes, events)
        if pulls:
            _apply_pull_rows(pulls, changes, events, is_complete=False)
        events.save()
    return changes


def apply_pulls(repository: Repository, raws: Iterable[Json], source: SnapshotSource) -> Changes:
    pulls = {pull.number: pull for pull in (read_pull(repository, raw) for raw in raws)}
    changes, events = Changes(), SnapshotEvents(repository, source)
    with transaction.atomic():
        lock_assignments(repository, [pull.number for pull in pulls.values() if not pull.is_open])
        if pulls:
            _apply_pull_rows(pulls, changes, events, is_complete=True)
        events.save()
    return changes


def _apply_issue_rows(given: Mapping[int, Issue], changes: Changes, events: SnapshotEvents) -> None:
    repository, source = events.repository, events.source
    rows = {row.number: row for row in locked(Issue, repository, given)}
    view = view_labels(repository, rows, given, source)
    changes.held |= view.ours
    written = [new for new in given.values() if _is_news(rows.get(new.number), new, view)]
    unparked = []
    for new in written:
        row = rows.get(new.number)
        changes.numbers.add(new.number)
        if row is None or (new.is_open and not row.is_open):
            changes.opened += 1
        elif row.is_open and not new.is_open:
            changes.closed += 1
        else:
            changes.changed += 1
        if row is not None and new.is_open and PARKED in row.labels and PARKED not in new.labels:
            unparked.append(new.number)
        events.note_issue(row, new)
    upsert(Issue, written, ISSUE_FIELDS)
    if unparked:
        Issue.objects.filter(repository=repository, number__in=unparked).update(lost_attempts=0)
    pairs = [(rows[new.number], new) for new in written if new.number in rows]
    events.events += note_edits(repository, pairs, source.now, source.who)
    cancel_assignments(closed_numbers(rows, written), events)


def _is_news(row: Issue | None, new: Issue, view: LabelView) -> bool:
    """Whether an issue is to be written, which ``new`` is then ready for."""
    now = view.source.now
    if row is None:
        new.review_detected_at = now if NEEDS_REVIEW in new.labels else None
        return new.is_open  # nobody here ever knew one that is closed
    if new.updated_at < row.updated_at:
        return False
    if (labels := view.believe(new.number, row.labels, new.labels)) != new.labels:
        set_labels(new, labels)
    if not differs(row, new, TOLD_FIELDS):
        if not differs(row, new, ("raw", "html_url")):
            return False
        new.refused_reason, new.coded_refusal = row.refused_reason, row.coded_refusal
    new.review_detected_at = (row.review_detected_at or now) if NEEDS_REVIEW in new.labels else None
    return True


def _apply_pull_rows(
    given: Mapping[int, PullRequest], changes: Changes, events: SnapshotEvents, *, is_complete: bool
) -> None:
    """``is_complete``: whole pull requests. In a listing of issues they come without their branches."""
    rows = {row.number: row for row in locked(PullRequest, events.repository, given)}
    view = view_labels(events.repository, rows, given, events.source)
    changes.held |= view.ours
    written: list[PullRequest] = []
    for number, new in given.items():
        row = rows.get(number)
        if row is None:
            # Only a whole pull request tells its branches; one that is closed was never of interest.
            if not is_complete or not new.is_open:
                continue
        elif new.updated_at < row.updated_at:
            continue
        else:
            new.labels = view.believe(number, row.labels, new.labels)
            if not is_complete:
                new.head_ref, new.head_sha, new.base_ref = row.head_ref, row.head_sha, row.base_ref
            if not differs(row, new, PULL_FIELDS):
                continue
        written.append(new)
        changes.numbers |= {number, *new.closes, *(row.closes if row else ())}
        changes.changed += 1
        events.note_pull(row, new)
    upsert(PullRequest, written, PULL_FIELDS)
    cancel_assignments(closed_numbers(rows, written), events)


def closed_numbers(rows: Mapping[int, Row], written: Iterable[Row]) -> list[int]:
    return [new.number for new in written if not new.is_open and rows[new.number].is_open]


def close_vanished(repository: Repository, number: int, now: datetime, *, who: str = GITHUB) -> set[int]:
    """An issue or pull request that GitHub no longer has: deleted, or moved to another repository."""
    numbers: set[int] = set()
    events = SnapshotEvents(repository, SnapshotSource(now, who=who))
    with transaction.atomic():
        lock_assignments(repository, [number])
        found = Issue.objects.filter(repository=repository, number=number, is_open=True).update(is_open=False)
        for pull in PullRequest.objects.filter(repository=repository, number=number, is_open=True):
            found += PullRequest.objects.filter(pk=pull.pk).update(is_open=False)
            numbers.update(pull.closes)
        if found:
            numbers.add(number)
            events.add(number, "closed", "open", "completed", "gone from the repository")
            cancel_assignments([number], events)
            events.save()
    return numbers


def differs(row: Row, new: Row, fields: Iterable[str]) -> bool:
    return any(getattr(row, name) != getattr(new, name) for name in fields)


def upsert(model: type[Row], rows: Sequence[Row], fields: Sequence[str]) -> None:
    """One statement for new and known rows alike; what is not in ``fields`` is left alone in known ones."""
    model._default_manager.bulk_create(
        rows, update_conflicts=True, unique_fields=["repository", "number"], update_fields=list(fields)
    )


def locked(model: type[Row], repository: Repository, numbers: Iterable[int]) -> QuerySet[Row]:
    """The rows of these numbers, in one order everywhere: no two transactions wait for each other."""
    rows = model._default_manager.select_for_update()
    return rows.filter(repository=repository, number__in=numbers).order_by("number")


def lock_assignments(repository: Repository, numbers: Sequence[int]) -> None:
    """Whoever ends an assignment changes it first and its issue second; so does whoever closes the issue."""
    if numbers:
        live = Assignment.objects.select_for_update().filter(repository=repository, number__in=numbers)
        list(live.filter(state__in=LIVE_STATES).order_by("pk").values_list("pk"))


def cancel_assignments(numbers: Sequence[int], events: SnapshotEvents) -> None:
    """The agents at work on what was closed hear of it with their next heartbeat."""
    if not numbers:
        return
    live = Assignment.objects.filter(state__in=LIVE_STATES, is_cancelled=False)
    for assignment in live.filter(repository=events.repository, number__in=numbers):
        if live.filter(pk=assignment.pk).update(is_cancelled=True):
            reason = Reason.of(ReasonCode.CLOSED_ON_GITHUB)
            events.add(assignment.number, "cancelled", reason=reason, assignment=assignment)
