"""Label changes on GitHub: pending from the moment a row changes, applied at once or by the pollers.

An ended assignment keeps its changes in the column ``labels_due`` until GitHub has taken them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from redis.exceptions import RedisError

from broker_project.lib.errors import Missing, OutsideError, Rejected
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.locks import acquire_lock, new_owner, release_lock
from tasks.github.answers import relabelled
from tasks.github.client import GitHubClient, client_for
from tasks.github.label_marks import mark_labels_changed
from tasks.lifecycle import IN_PROGRESS, LIVE_STATES, NEEDS_REVIEW, priority_of
from tasks.models import Assignment, Issue, PullRequest, Repository
from tasks.services.events import make_event

log = get_logger(__name__)

APPLY_SECONDS = 90  # longer than the calls for one assignment may take together

LabelChanges = dict[str, Any]  # {"add": […], "remove": […], "comment": "…"}, as the column has it


def label_changes(add: Iterable[str] = (), remove: Iterable[str] = (), comment: str = "") -> LabelChanges:
    changes: LabelChanges = {"add": list(add), "remove": list(remove)}
    if comment:
        changes["comment"] = comment
    return changes


def changed_labels(labels: Iterable[str], changes: LabelChanges) -> list[str]:
    """To GitHub a label is the same in any letter case."""
    gone = {name.lower() for name in changes["remove"]}
    kept = [label for label in labels if label.lower() not in gone]
    there = {label.lower() for label in kept}
    return kept + [label for label in changes["add"] if label.lower() not in there]


def merged_changes(pending: LabelChanges | None, newer: LabelChanges) -> LabelChanges:
    """Both as one; about a label, the newer one stands."""
    if pending is None:
        return newer
    add = [name for name in pending["add"] if name not in newer["remove"]]
    remove = [name for name in pending["remove"] if name not in newer["add"]]
    comments = [text for text in (pending.get("comment"), newer.get("comment")) if text]
    return label_changes(
        dict.fromkeys([*add, *newer["add"]]),
        dict.fromkeys([*remove, *newer["remove"]]),
        "\n\n".join(comments),
    )


def store_labels(repository: Repository, number: int, labels: list[str], now: datetime) -> None:
    """Write an issue's (or pull request's) labels as they now are or will be, and what follows from them."""
    mark_labels_changed(repository.pk, number)
    rows = Issue.objects.filter(repository=repository, number=number)
    issue = rows.only("raw", "review_detected_at").first()
    if issue is None:
        PullRequest.objects.filter(repository=repository, number=number).update(labels=labels)
        return
    detected_at = (issue.review_detected_at or now) if NEEDS_REVIEW in labels else None
    rows.update(
        labels=labels,
        raw=relabelled(issue.raw, labels),
        priority=priority_of(labels),
        review_detected_at=detected_at,
    )


# GitHub


def send_label_changes(
    client: GitHubClient, number: int, changes: LabelChanges, needed: Collection[str] = ()
) -> None:
    """Change the labels on GitHub. Raises the shared errors; what was done stays done.

    ``needed`` are labels that somebody works under: they stay on, and nothing is added beside them.
    """
    if changes["add"] and not needed:
        client.add_labels(number, changes["add"])
    for name in changes["remove"]:
        if name not in needed:
            client.remove_label(number, name)
    if comment := changes.get("comment"):
        client.comment(number, comment)


def apply_label_changes(assignment: Assignment) -> bool:
    """Apply the pending changes of an assignment. Raises the shared errors; what was done stays done.

    False if there are none, or somebody else applies them: who ended the assignment and the poller must not both.
    """
    if assignment.labels_due is None:
        return False
    with exclusive_apply(assignment) as is_ours:
        return is_ours and _apply(assignment)


def try_label_changes(assignment: Assignment) -> None:
    """Apply them now if GitHub answers; the poller does it otherwise."""
    try:
        apply_label_changes(assignment)
    except OutsideError as error:
        log.warning("labels follow later", issue=assignment.number, error=str(error))


@contextmanager
def exclusive_apply(assignment: Assignment) -> Iterator[bool]:
    """While Redis is away anybody may: labels that are put on twice cost requests and nothing else."""
    key, owner = keyspace().key(k.LOCK_PROCESS, name=f"labels-{assignment.pk}"), new_owner("labels")
    is_locked = False
    try:
        is_locked = acquire_lock(redis_client(), key, owner, APPLY_SECONDS)
        is_ours = is_locked
    except RedisError as error:
        log.warning("labels are changed without a lock", issue=assignment.number, error=str(error))
        is_ours = True
    try:
        yield is_ours
    finally:
        if is_locked:
            try:
                release_lock(redis_client(), key, owner)
            except RedisError as error:  # it expires by itself
                log.warning("lock not released", key=key, error=str(error))


def _apply(assignment: Assignment) -> bool:
    rows = Assignment.objects.filter(repository_id=assignment.repository_id, number=assignment.number)
    changes = rows.filter(pk=assignment.pk).values_list("labels_due", flat=True).first()
    if changes is None:
        assignment.labels_due = None
        return False
    # These changes may be older than a live assignment of the same issue, which needs its labels.
    live = rows.filter(state__in=LIVE_STATES).exclude(pk=assignment.pk)
    agents = live.values_list("agent__name", flat=True)
    needed = {name for agent in agents for name in (IN_PROGRESS, agent)}
    send_label_changes(client_for(assignment.repository), assignment.number, changes, needed)
    # Marked before they are off the row: a snapshot that shows the old labels meets one of the two.
    mark_labels_changed(assignment.repository_id, assignment.number)
    rows.filter(pk=assignment.pk, labels_due=changes).update(labels_due=None)
    assignment.labels_due = None
    return True


def apply_pending_label_changes(repository: Repository, limit: int) -> int:
    """Apply what ended assignments left, oldest first. An outage stops it; the next run goes on."""
    pending = Assignment.objects.filter(repository=repository, labels_due__isnull=False)
    count = 0
    for assignment in pending.select_related("agent", "repository").order_by("id")[:limit]:
        try:
            count += apply_label_changes(assignment)
        except (Missing, Rejected) as error:
            give_up_label_changes(assignment, error)
            count += 1
        except OutsideError as error:
            log.warning("labels follow later", issue=assignment.number, error=str(error))
            break
    return count


def give_up_label_changes(assignment: Assignment, error: OutsideError) -> None:
    """GitHub will never take these labels: the issue is gone, or it refuses them. That goes on record."""
    pending = Assignment.objects.filter(pk=assignment.pk, labels_due__isnull=False)
    if pending.update(labels_due=None):
        make_event(
            assignment.repository,
            assignment.number,
            "labels given up",
            now=assignment.ended_at or assignment.created_at,
            who="poll",
            reason=redact(error.message, 300),
            assignment=assignment,
        ).save(force_insert=True)
