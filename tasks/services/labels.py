"""Label changes: owed from the moment a row changes, paid to GitHub at once or by the pollers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from redis.exceptions import RedisError

from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.locks import acquire_lock, new_owner, release_lock
from tasks.github.answers import relabelled
from tasks.github.client import GitHubClient
from tasks.github.label_marks import mark_labels_changed
from tasks.lifecycle import IN_PROGRESS, LIVE_STATES, NEEDS_REVIEW, priority_of
from tasks.models import Assignment, Issue, PullRequest, Repository

log = get_logger(__name__)

PAYING_SECONDS = 90  # longer than the calls of one payment may take together


def labels_owed(add: Iterable[str] = (), remove: Iterable[str] = (), comment: str = "") -> dict[str, Any]:
    owed: dict[str, Any] = {"add": list(add), "remove": list(remove)}
    if comment:
        owed["comment"] = comment
    return owed


def changed_labels(labels: Iterable[str], owed: dict[str, Any]) -> list[str]:
    """To GitHub a label is the same in any case."""
    gone = {name.lower() for name in owed["remove"]}
    kept = [label for label in labels if label.lower() not in gone]
    there = {label.lower() for label in kept}
    return kept + [label for label in owed["add"] if label.lower() not in there]


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


def pay_labels(client: GitHubClient, assignment: Assignment) -> bool:
    """Carry out what an ended assignment owes. Raises the shared errors; what was done stays done.

    A label that a live assignment of the same issue needs is left on: the debt may be older than that one.
    False if somebody else paid or is paying it: who ended the assignment and the poller must not both do so.
    """
    if assignment.labels_due is None:
        return False
    with only_payer(assignment) as is_ours:
        return is_ours and _pay(client, assignment)


@contextmanager
def only_payer(assignment: Assignment) -> Iterator[bool]:
    """While Redis is away anybody may pay: labels that are put on twice cost requests and nothing else."""
    key, owner = keyspace().key(k.LOCK_PROCESS, name=f"labels-{assignment.pk}"), new_owner("labels")
    is_locked = False
    try:
        is_locked = acquire_lock(redis_client(), key, owner, PAYING_SECONDS)
        is_ours = is_locked
    except RedisError as error:
        log.warning("labels are paid without a lock", issue=assignment.number, error=str(error))
        is_ours = True
    try:
        yield is_ours
    finally:
        if is_locked:
            try:
                release_lock(redis_client(), key, owner)
            except RedisError as error:  # it expires by itself
                log.warning("lock not released", key=key, error=str(error))


def _pay(client: GitHubClient, assignment: Assignment) -> bool:
    owed = Assignment.objects.filter(pk=assignment.pk).values_list("labels_due", flat=True).first()
    if owed is None:
        assignment.labels_due = None
        return False
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
    return True
