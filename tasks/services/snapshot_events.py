"""What of GitHub's news goes on the timeline of an issue."""

from __future__ import annotations

from django.conf import settings

from tasks.github.branches import BranchRefused, has_deliverables
from tasks.lifecycle import NEEDS_REVIEW, PARKED, IssueStatus, status_word
from tasks.models import Assignment, Event, Issue, PullRequest, Repository
from tasks.offers.candidates import branch_of
from tasks.offers.policy import is_author_refused
from tasks.reasons import Reason, ReasonCode
from tasks.services.events import make_event
from tasks.services.snapshot_labels import SnapshotSource


class SnapshotEvents:
    """Unsaved events of one transaction."""

    def __init__(self, repository: Repository, source: SnapshotSource) -> None:
        self.repository, self.source = repository, source
        self.events: list[Event] = []

    def add(
        self,
        number: int,
        what: str,
        before: str = "",
        after: str = "",
        reason: Reason | str = "",
        assignment: Assignment | None = None,
    ) -> None:
        event = make_event(
            self.repository,
            number,
            what,
            now=self.source.now,
            who=self.source.who,
            from_status=before,
            to_status=after,
            reason=reason,
            assignment=assignment,
        )
        self.events.append(event)

    def save(self) -> None:
        Event.objects.bulk_create(self.events)

    def note_issue(self, row: Issue | None, new: Issue) -> None:
        number, before, after = new.number, status_of(row) if row else "", status_of(new)
        if row is None:
            self.add(number, "opened", before, after)
        elif new.is_open and not row.is_open:
            self.add(number, "reopened", before, after)
        elif row.is_open and not new.is_open:
            self.add(number, "closed", before, after)
            return
        known: set[str] = set(row.labels) if row else set()
        if PARKED in new.labels and PARKED not in known:
            self.add(number, "parked", before, after)
        elif PARKED in known and PARKED not in new.labels:
            self.add(number, "unparked", before, after)
        if NEEDS_REVIEW in new.labels and NEEDS_REVIEW not in known:
            self.add(number, "review wanted", before, after)
        problem = body_problem(new, self.repository)
        if problem and (row is None or problem != body_problem(row, self.repository)):
            self.add(number, "skipped", after, after, problem)

    def note_pull(self, row: PullRequest | None, new: PullRequest) -> None:
        if row is None:
            self.add(new.number, "pull request opened" if new.is_open else "closed")
        elif row.is_open != new.is_open:
            self.add(new.number, "pull request reopened" if new.is_open else "closed")


def status_of(issue: Issue) -> IssueStatus:
    return status_word(issue.labels, is_open=issue.is_open)


def body_problem(issue: Issue, repository: Repository) -> Reason | None:
    """Why the body alone keeps an issue that has its labels from being handed out; None if it does not."""
    is_meant = issue.is_open and issue.priority is not None and set(issue.labels) & settings.BROKER.role_names
    if is_meant and is_author_refused(issue):
        return Reason.of(ReasonCode.FOREIGN_AUTHOR)
    if not is_meant or NEEDS_REVIEW in issue.labels:
        return None
    if not has_deliverables(issue.body):
        return Reason.of(ReasonCode.NO_DELIVERABLES)
    plan = branch_of(issue, repository.default_branch)
    return plan.reason if isinstance(plan, BranchRefused) else None
