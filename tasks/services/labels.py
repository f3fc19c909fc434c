"""Label changes: owed from the moment a row changes, paid to GitHub at once or by the pollers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tasks.client import GitHubClient
from tasks.facts import relabelled
from tasks.label_marks import mark_labels_changed
from tasks.lifecycle import IN_PROGRESS, LIVE_STATES, NEEDS_REVIEW, priority_of
from tasks.models import Assignment, Issue, PullRequest, Repository


def labels_owed(add: Iterable[str] = (), remove: Iterable[str] = (), comment: str = "") -> dict[str, Any]:
    owed: dict[str, Any] = {"add": list(add), "remove": list(remove)}
    if comment:
        owed["comment"] = comment
    return owed


def changed_labels(labels: Iterable[str], owed: dict[str, Any]) -> list[str]:
    kept = [label for label in labels if label not in owed["remove"]]
    return kept + [label for label in owed["add"] if label not in kept]


def store_labels(repository: Repository, number: int, labels: list[str], now: datetime) -> None:
    """Write an issue's (or pull request's) labels as they now are or will be, and what follows from them."""
    mark_labels_changed(repository.pk, number)
    issue = (
        Issue.objects.filter(repository=repository, number=number).only("raw", "review_detected_at").first()
    )
    if issue is None:
        PullRequest.objects.filter(repository=repository, number=number).update(labels=labels)
        return
    detected_at = (issue.review_detected_at or now) if NEEDS_REVIEW in labels else None
    Issue.objects.filter(pk=issue.pk).update(
        labels=labels,
        raw=relabelled(issue.raw, labels),
        priority=priority_of(labels),
        review_detected_at=detected_at,
    )


def pay_labels(client: GitHubClient, assignment: Assignment) -> None:
    """Carry out what an ended assignment owes. Raises the shared errors; what was done stays done.

    A label that a live assignment of the same issue needs is left on: the debt may be older than that one.
    """
    owed = assignment.labels_due
    if owed is None:
        return
    live = Assignment.objects.filter(
        repository_id=assignment.repository_id, number=assignment.number, state__in=LIVE_STATES
    ).exclude(pk=assignment.pk)
    needed = {name for agent in live.values_list("agent__name", flat=True) for name in (IN_PROGRESS, agent)}
    if owed["add"] and not needed:
        client.add_labels(assignment.number, owed["add"])
    for name in owed["remove"]:
        if name not in needed:
            client.remove_label(assignment.number, name)
    if comment := owed.get("comment"):
        client.comment(assignment.number, comment)
    # Before the debt is off: a snapshot that shows the old labels meets one of the two.
    mark_labels_changed(assignment.repository_id, assignment.number)
    Assignment.objects.filter(pk=assignment.pk, labels_due=owed).update(labels_due=None)
    assignment.labels_due = None
