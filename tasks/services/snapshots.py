"""What GitHub says of issues and pull requests, brought into the rows: shared by the poll and the webhook.

An older snapshot never overwrites a newer one. But GitHub's times have whole seconds, and a snapshot may
have been taken while we were changing labels ourselves. So label changes that GitHub has not taken yet are
laid over what it says; labels that we changed after a listing was asked for are kept; and a webhook that
arrives within a minute of our own change only adds or takes off the label that it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from tasks.github.answers import Json
from tasks.github.branches import BranchRefused, has_deliverables, plan_branch
from tasks.github.label_marks import labels_changed_since
from tasks.github.rows import read_issue, read_pull, read_pull_as_issue, set_labels
from tasks.lifecycle import LIVE_STATES, NEEDS_REVIEW, PARKED, IssueStatus, status_word
from tasks.models import Assignment, Event, Issue, PullRequest, Repository
from tasks.offers.policy import is_author_refused
from tasks.reasons import Reason, ReasonCode
from tasks.services.approvals import note_edits
from tasks.services.events import make_event
from tasks.services.labels import changed_labels

GITHUB = "github"
OWN_CHANGE_SECONDS = 60  # how long webhooks of our own change may be on their way

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


@dataclass(frozen=True)
class LabelChange:
    """What a webhook is about: one label put on or taken off."""

    name: str
    is_added: bool


@dataclass(frozen=True)
class Seen:
    """Where snapshots come from: a listing asked for at ``asked_at``, or else a webhook."""

    now: datetime
    asked_at: datetime | None = None
    label_change: LabelChange | None = None
    who: str = GITHUB


@dataclass
class Changes:
    """What applying changed. ``numbers`` go to the index; of ``held`` the labels were not believed."""

    numbers: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    opened: int = 0
    closed: int = 0
    changed: int = 0
    events: list[Event] = field(default_factory=list)

    def add(self, other: Changes) -> None:
        self.numbers |= other.numbers
        self.held |= other.held
        self.opened += other.opened
        self.closed += other.closed
        self.changed += other.changed


def apply_issue(repository: Repository, raw: Json, now: datetime) -> set[int]:
    """One issue (or pull request in its shape). Returns the numbers to be refreshed in the index."""
    return apply_issues(repository, [raw], Seen(now)).numbers


def apply_pull(repository: Repository, raw: Json, now: datetime) -> set[int]:
    """One pull request. Returns the numbers to be refreshed: its own and the issues it is linked to."""
    return apply_pulls(repository, [raw], Seen(now)).numbers


def apply_issues(repository: Repository, raws: Iterable[Json], seen: Seen) -> Changes:
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
    changes = Changes()
    with transaction.atomic():
        closing = [issue.number for issue in issues.values() if not issue.is_open]
        closing += [pull.number for pull in pulls.values() if not pull.is_open]
        lock_assignments(repository, closing)
        if issues:
            _apply_issue_rows(repository, issues, seen, changes)
        if pulls:
            _apply_pull_rows(repository, pulls, seen, changes, is_complete=False)
        Event.objects.bulk_create(changes.events)
    return changes


def apply_pulls(repository: Repository, raws: Iterable[Json], seen: Seen) -> Changes:
    pulls = {pull.number: pull for pull in (read_pull(repository, raw) for raw in raws)}
    changes = Changes()
    with transaction.atomic():
        lock_assignments(repository, [pull.number for pull in pulls.values() if not pull.is_open])
        if pulls:
            _apply_pull_rows(repository, pulls, seen, changes, is_complete=True)
        Event.objects.bulk_create(changes.events)
    return changes


def _apply_issue_rows(
    repository: Repository, given: Mapping[int, Issue], seen: Seen, changes: Changes
) -> None:
    rows = {row.number: row for row in locked(Issue, repository, given)}
    view = view_labels(repository, rows, given, seen)
    changes.held |= view.ours
    written: list[Issue] = []
    unparked: list[int] = []
    for number, new in given.items():
        row = rows.get(number)
        if row is None:
            if not new.is_open:
                continue  # nobody here ever knew it
            new.review_detected_at = seen.now if NEEDS_REVIEW in new.labels else None
            written.append(new)
        elif new.updated_at >= row.updated_at:
            if (labels := view.believe(number, row.labels, new.labels)) != new.labels:
                set_labels(new, labels)
            if not differs(row, new, TOLD_FIELDS):
                if not differs(row, new, ("raw", "html_url")):
                    continue
                new.refused_reason, new.coded_refusal = row.refused_reason, row.coded_refusal
            new.review_detected_at = review_time(row, new, seen.now)
            if new.is_open and PARKED in row.labels and PARKED not in new.labels:
                unparked.append(number)
            written.append(new)
        else:
            continue
        changes.numbers.add(number)
        _note_issue(changes, repository, row, new, seen)
    upsert(Issue, written, ISSUE_FIELDS)
    if unparked:
        Issue.objects.filter(repository=repository, number__in=unparked).update(lost_attempts=0)
    pairs = [(rows[new.number], new) for new in written if new.number in rows]
    changes.events += note_edits(repository, pairs, seen.now, seen.who)
    cancel_assignments(
        repository,
        [new.number for new in written if not new.is_open and rows[new.number].is_open],
        seen,
        changes,
    )


def _apply_pull_rows(
    repository: Repository,
    given: Mapping[int, PullRequest],
    seen: Seen,
    changes: Changes,
    *,
    is_complete: bool,
) -> None:
    rows = {row.number: row for row in locked(PullRequest, repository, given)}
    view = view_labels(repository, rows, given, seen)
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
        _note_pull(changes, repository, row, new, seen)
    upsert(PullRequest, written, PULL_FIELDS)
    cancel_assignments(
        repository,
        [new.number for new in written if not new.is_open and rows[new.number].is_open],
        seen,
        changes,
    )


def close_vanished(repository: Repository, number: int, now: datetime, *, who: str = GITHUB) -> set[int]:
    """An issue or pull request that GitHub no longer has: deleted, or moved to another repository."""
    changes, seen = Changes(), Seen(now, who=who)
    with transaction.atomic():
        lock_assignments(repository, [number])
        found = Issue.objects.filter(repository=repository, number=number, is_open=True).update(is_open=False)
        for pull in PullRequest.objects.filter(repository=repository, number=number, is_open=True):
            found += PullRequest.objects.filter(pk=pull.pk).update(is_open=False)
            changes.numbers.update(pull.closes)
        if found:
            changes.numbers.add(number)
            _event(
                changes, repository, number, "closed", seen, "open", "completed", "gone from the repository"
            )
            cancel_assignments(repository, [number], seen, changes)
            Event.objects.bulk_create(changes.events)
    return changes.numbers


def differs(row: Row, new: Row, fields: Iterable[str]) -> bool:
    return any(getattr(row, name) != getattr(new, name) for name in fields)


def upsert(model: type[Row], rows: Sequence[Row], fields: Sequence[str]) -> None:
    """One statement for new and known rows alike; what is not in ``fields`` is left alone in known ones."""
    model._default_manager.bulk_create(
        rows, update_conflicts=True, unique_fields=["repository", "number"], update_fields=list(fields)
    )


@dataclass(frozen=True)
class LabelView:
    """What is known of labels that a snapshot may show wrongly."""

    seen: Seen
    ours: set[int]  # changed by us so lately that the snapshot may not show it
    owed: dict[int, list[Json]]  # changes that GitHub has not taken yet

    def believe(self, number: int, known: Sequence[str], told: Sequence[str]) -> list[str]:
        if number in self.ours:
            change = self.seen.label_change
            if change is None:
                return list(known)
            rest = [name for name in known if name != change.name]
            return [*rest, change.name] if change.is_added else rest
        labels = list(told)
        for owed in self.owed.get(number, ()):
            labels = changed_labels(labels, owed)
        return labels


def view_labels(
    repository: Repository, rows: Mapping[int, Row], given: Mapping[int, Row], seen: Seen
) -> LabelView:
    numbers = [n for n, new in given.items() if n in rows and rows[n].labels != new.labels]
    if not numbers:
        return LabelView(seen, set(), {})
    since = seen.asked_at or seen.now - timedelta(seconds=OWN_CHANGE_SECONDS)
    owed: dict[int, list[Json]] = {}
    debts = Assignment.objects.filter(repository=repository, number__in=numbers, labels_due__isnull=False)
    for number, due in debts.order_by("id").values_list("number", "labels_due"):
        owed.setdefault(number, []).append(due or {"add": [], "remove": []})
    return LabelView(seen, labels_changed_since(repository.pk, numbers, since), owed)


def review_time(row: Issue, new: Issue, now: datetime) -> datetime | None:
    if NEEDS_REVIEW not in new.labels:
        return None
    return row.review_detected_at or now


def locked(model: type[Row], repository: Repository, numbers: Iterable[int]) -> QuerySet[Row]:
    """The rows of these numbers, in one order everywhere: no two transactions wait for each other."""
    rows = model._default_manager.select_for_update()
    return rows.filter(repository=repository, number__in=numbers).order_by("number")


def lock_assignments(repository: Repository, numbers: Sequence[int]) -> None:
    """Whoever ends an assignment changes it first and its issue second; so does whoever closes the issue."""
    if numbers:
        live = Assignment.objects.select_for_update().filter(repository=repository, number__in=numbers)
        list(live.filter(state__in=LIVE_STATES).order_by("pk").values_list("pk"))


def cancel_assignments(repository: Repository, numbers: Sequence[int], seen: Seen, changes: Changes) -> None:
    """The agents at work on what was closed hear of it with their next heartbeat."""
    if not numbers:
        return
    live = Assignment.objects.filter(
        repository=repository, number__in=numbers, state__in=LIVE_STATES, is_cancelled=False
    )
    for assignment in live.select_related("repository"):
        if Assignment.objects.filter(pk=assignment.pk, state__in=LIVE_STATES, is_cancelled=False).update(
            is_cancelled=True
        ):
            _event(
                changes,
                repository,
                assignment.number,
                "cancelled",
                seen,
                reason=Reason.of(ReasonCode.CLOSED_ON_GITHUB),
            )
            changes.events[-1].assignment = assignment


# Events


def _note_issue(changes: Changes, repository: Repository, row: Issue | None, new: Issue, seen: Seen) -> None:
    before = status_of(row) if row else ""
    after = status_of(new)

    def note(what: str) -> None:
        _event(changes, repository, new.number, what, seen, before, after)

    if row is None or (new.is_open and not row.is_open):
        changes.opened += 1
        note("opened" if row is None else "reopened")
    elif row.is_open and not new.is_open:
        changes.closed += 1
        note("closed")
        return
    else:
        changes.changed += 1
    known = set(row.labels) if row else set()
    if PARKED in new.labels and PARKED not in known:
        note("parked")
    elif row is not None and PARKED in known and PARKED not in new.labels:
        note("unparked")
    if NEEDS_REVIEW in new.labels and NEEDS_REVIEW not in known:
        note("review wanted")
    problem = body_problem(new, repository)
    if problem and (row is None or problem != body_problem(row, repository)):
        _event(changes, repository, new.number, "skipped", seen, after, after, problem)


def body_problem(issue: Issue, repository: Repository) -> Reason | None:
    """Why the body alone keeps an issue that has its labels from being handed out; None if it does not."""
    is_meant = issue.is_open and issue.priority is not None and set(issue.labels) & settings.BROKER.role_names
    if is_meant and is_author_refused(issue):
        return Reason.of(ReasonCode.FOREIGN_AUTHOR)
    if not is_meant or NEEDS_REVIEW in issue.labels:
        return None
    if not has_deliverables(issue.body):
        return Reason.of(ReasonCode.NO_DELIVERABLES)
    plan = plan_branch(issue.body, issue.number, repository.default_branch or "main")
    return plan.reason if isinstance(plan, BranchRefused) else None


def _note_pull(
    changes: Changes, repository: Repository, row: PullRequest | None, new: PullRequest, seen: Seen
) -> None:
    if row is None or row.is_open != new.is_open:
        words = (
            ("pull request opened" if row is None else "pull request reopened") if new.is_open else "closed"
        )
        _event(changes, repository, new.number, words, seen)
    changes.changed += 1


def status_of(issue: Issue) -> IssueStatus:
    return status_word(issue.labels, is_open=issue.is_open)


def _event(
    changes: Changes,
    repository: Repository,
    number: int,
    what: str,
    seen: Seen,
    before: str = "",
    after: str = "",
    reason: Reason | str = "",
) -> None:
    event = make_event(
        repository,
        number,
        what,
        now=seen.now,
        who=seen.who,
        from_status=before,
        to_status=after,
        reason=reason,
    )
    changes.events.append(event)
