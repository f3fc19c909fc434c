"""How an assignment ends, and how it lives until then. Every ending is fenced by the agent and the live state."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from broker_project.lib.claims import LeaseLost as LeaseLost
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact, redact_value
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import redis_client
from tasks.github.client import client_for
from tasks.lifecycle import (
    ENDINGS_THAT_COUNT,
    IN_PROGRESS,
    LIVE_STATES,
    NEEDS_REVIEW,
    PARKED,
    AssignmentState,
    IssueStatus,
    TaskType,
    is_to_be_parked,
    status_after,
    status_word,
)
from tasks.models import Assignment, FixTask, Issue, PullRequest, Repository
from tasks.offers.heartbeat import lease_expires_at
from tasks.offers.index import keys_of
from tasks.offers.projector import project
from tasks.reasons import Reason, ReasonCode
from tasks.services.events import make_event, reason_columns
from tasks.services.labels import (
    LabelChanges,
    changed_labels,
    label_changes,
    send_label_changes,
    store_labels,
    try_label_changes,
)
from tasks.services.reviews import remember_review

log = get_logger(__name__)


class UnknownAssignment(Exception):
    pass


def find_assignment(assignment_id: int) -> Assignment:
    found = Assignment.objects.select_related("agent", "repository").filter(pk=assignment_id).first()
    if found is None:
        raise UnknownAssignment(assignment_id)
    return found


def save_heartbeat(assignment_id: int, agent_name: str, progress: str, now: datetime) -> Assignment:
    """Prolong the lease in the database, which decides. Raises :class:`LeaseLost`.

    An assignment that a person took back is returned as it is, ended and cancelled: its agent is to hear so.
    """
    changes: dict[str, Any] = {"last_heartbeat_at": now}
    if progress:
        changes["progress"] = redact(progress, 2000)
    alive = Assignment.objects.filter(
        pk=assignment_id, agent__name=agent_name, state=AssignmentState.LIVE
    ).update(**changes)
    found = find_assignment(assignment_id)
    if not alive and not (found.agent.name == agent_name and was_taken_back(found)):
        raise LeaseLost
    return found


def was_taken_back(assignment: Assignment) -> bool:
    return assignment.state == AssignmentState.RELEASED and assignment.is_cancelled


def restore_heartbeat(assignment: Assignment, now: datetime) -> None:
    """Redis forgot this assignment: write its keys again."""
    project(assignment.repository, [assignment.number], now)


def complete_assignment(
    assignment: Assignment, agent_name: str, result: Any, pull_number: int | None, now: datetime
) -> Assignment:
    return end_by_agent(
        assignment,
        agent_name,
        AssignmentState.COMPLETED,
        now,
        result=redact_value(result),
        **({"pull_number": pull_number} if pull_number else {}),
    )


def fail_assignment(
    assignment: Assignment, agent_name: str, reason: Reason | str, now: datetime
) -> Assignment:
    return end_by_agent(assignment, agent_name, AssignmentState.FAILED, now, reason=reason)


def release_assignment(assignment: Assignment, agent_name: str, now: datetime) -> Assignment:
    reason = Reason.of(ReasonCode.GIVEN_BACK)
    return end_by_agent(assignment, agent_name, AssignmentState.RELEASED, now, reason=reason)


def end_by_agent(
    assignment: Assignment, agent_name: str, state: AssignmentState, now: datetime, **fields: Any
) -> Assignment:
    """End it, or give the same answer again if this very ending is on record. Raises :class:`LeaseLost`."""
    if assignment.agent.name != agent_name:
        raise LeaseLost
    if end(assignment, state, who=agent_name, now=now, **fields):
        return assignment
    assignment.refresh_from_db()
    if assignment.state == state and not assignment.is_cancelled:
        return assignment
    raise LeaseLost


def end(
    assignment: Assignment,
    state: AssignmentState,
    *,
    who: str,
    now: datetime,
    is_cancelled: bool | None = None,
    is_parked: bool = False,
    reason: Reason | str = "",
    **fields: Any,
) -> bool:
    """End a live assignment; False if it was not live any more. Redis and GitHub follow; neither can undo it.

    One that was being made when it was read is left alone if it has gone live since.
    """
    previous = assignment.state
    if previous not in LIVE_STATES:
        return False
    values: dict[str, Any] = {"state": state, "ended_at": now, **reason_columns(reason), **fields}
    if is_cancelled is not None:
        values["is_cancelled"] = is_cancelled
    with transaction.atomic():
        if not Assignment.objects.filter(pk=assignment.pk, state=previous).update(**values):
            return False
        for name, value in values.items():
            setattr(assignment, name, value)
        parked = is_parked or count_attempt(assignment, state)
        changes = label_changes_after(assignment, state, parked)
        Assignment.objects.filter(pk=assignment.pk).update(labels_due=changes)
        assignment.labels_due = changes
        labels_before, is_open = current_issue(assignment)
        labels = changed_labels(labels_before, changes)
        store_labels(assignment.repository, assignment.number, labels, now)
        settle_fix_task(assignment, state)
        by_labels = status_word(labels, is_open=is_open)
        word, _ = status_after(by_labels, state, TaskType(assignment.task_type))
        event = make_event(
            assignment.repository,
            assignment.number,
            "parked" if parked else str(state),
            now=now,
            who=who,
            from_status="processing" if previous == AssignmentState.LIVE else "open",
            to_status=str(word),
            reason=reason,
            assignment=assignment,
        )
        event.save(force_insert=True)
    settle_review(assignment, state)
    show_ended(assignment, now)
    try_label_changes(assignment)
    return True


def count_attempt(assignment: Assignment, state: AssignmentState) -> bool:
    """Count a lost or failed attempt; True if that was one too many."""
    if state not in ENDINGS_THAT_COUNT:
        return False
    if assignment.task_type == TaskType.FIX:
        fixes = FixTask.objects.filter(
            repository=assignment.repository, pull_number=assignment.number, state=FixTask.State.ASSIGNED
        )
        fixes.update(lost_attempts=F("lost_attempts") + 1)
        attempts = fixes.values_list("lost_attempts", flat=True).first() or 0
    else:
        issues = Issue.objects.filter(repository=assignment.repository, number=assignment.number)
        issues.update(lost_attempts=F("lost_attempts") + 1)
        attempts = issues.values_list("lost_attempts", flat=True).first() or 0
    return is_to_be_parked(attempts, settings.BROKER.max_attempts)


def label_changes_after(assignment: Assignment, state: AssignmentState, parked: bool) -> LabelChanges:
    add = []
    comment = ""
    if parked:
        add.append(PARKED)
        comment = parking_comment(assignment, state)
    elif state is AssignmentState.COMPLETED and assignment.task_type != TaskType.FIX:
        add.append(NEEDS_REVIEW)
    return label_changes(add, [IN_PROGRESS, assignment.agent.name], comment)


def parking_comment(assignment: Assignment, state: AssignmentState) -> str:
    if state in ENDINGS_THAT_COUNT:
        reason = f" The last reason: {assignment.reason[:500]}" if assignment.reason else ""
        english = f"Parked after {assignment.attempt} attempts that were lost or failed.{reason}"
        japanese = "試行が上限に達したため保留しました。"
    else:
        english, japanese = f"{assignment.reason[:500].capitalize()}.", "管理者が保留しました。"
    return (
        f"{english}\n\n"
        f"Take the label `{PARKED}` off to offer it again.\n\n"
        f"{japanese}"
        f"ラベル `{PARKED}` を外すと、もう一度割り当ての対象になります。"
    )


def current_issue(assignment: Assignment) -> tuple[list[str], bool]:
    """The labels of the issue or pull request, and whether it is open; one that nobody knows counts as open."""
    for model in (Issue, PullRequest):
        rows = model.objects.filter(repository=assignment.repository, number=assignment.number)
        if (found := rows.values_list("labels", "is_open").first()) is not None:
            return list(found[0] or []), found[1]
    return [], True


def settle_fix_task(assignment: Assignment, state: AssignmentState) -> None:
    if assignment.task_type != TaskType.FIX:
        return
    after = FixTask.State.DONE if state is AssignmentState.COMPLETED else FixTask.State.OPEN
    FixTask.objects.filter(
        repository=assignment.repository, pull_number=assignment.number, state=FixTask.State.ASSIGNED
    ).update(state=after)


def settle_review(assignment: Assignment, state: AssignmentState) -> None:
    if assignment.task_type == TaskType.REVIEW and state is AssignmentState.COMPLETED:
        remember_review(assignment)


ENDING_COUNTERS = {
    AssignmentState.COMPLETED: "completed",
    AssignmentState.FAILED: "failed",
    AssignmentState.LOST: "failed",
    AssignmentState.RELEASED: "released",
}
TYPE_COUNTERS = {TaskType.REVIEW: "reviewed", TaskType.FIX: "fixed"}


def ending_counts(assignment: Assignment) -> list[str]:
    """The daily counters that the end of this assignment raises."""
    found = [ENDING_COUNTERS.get(AssignmentState(assignment.state))]
    if assignment.state == AssignmentState.COMPLETED:
        found.append(TYPE_COUNTERS.get(TaskType(assignment.task_type)))
    return [name for name in found if name]


def show_ended(assignment: Assignment, now: datetime) -> None:
    """The lock is that of an assignment that died half-way, or that went live while Redis was away."""
    unlock = {assignment.number: assignment.agent.name}
    project(assignment.repository, [assignment.number], now, counts=ending_counts(assignment), unlock=unlock)


def finish_previous(repository: Repository, number: int, agent_name: str, now: datetime) -> None:
    """The next request of an agent ends what it had: both labels off, ``needs-review`` on (seed 001).

    Raises the shared errors if GitHub did not take the labels of an issue that has no assignment of ours.
    """
    live = (
        Assignment.objects.select_related("agent", "repository")
        .filter(repository=repository, number=number, state=AssignmentState.LIVE)
        .first()
    )
    if live is not None:
        if live.agent.name == agent_name:
            end(
                live,
                AssignmentState.COMPLETED,
                who=agent_name,
                now=now,
                reason=Reason.of(ReasonCode.SUPERSEDED),
            )
        return
    issue = Issue.objects.filter(repository=repository, number=number, is_open=True).first()
    if issue is None or not {IN_PROGRESS, agent_name} <= set(issue.labels):
        redis_client().delete(keys_of(repository).key(k.AGENT_CURRENT_TASK, agent=agent_name))
        project(repository, [number], now)
        return
    changes = label_changes([NEEDS_REVIEW], [IN_PROGRESS, agent_name])
    send_label_changes(client_for(repository), number, changes)
    with transaction.atomic():
        store_labels(repository, number, changed_labels(issue.labels, changes), now)
        event = make_event(
            repository,
            number,
            "completed",
            now=now,
            who=agent_name,
            from_status="processing",
            to_status=str(IssueStatus.NEEDS_REVIEW),
            reason=Reason.of(ReasonCode.LABELS_SUPERSEDED),
        )
        event.save(force_insert=True)
    project(repository, [number], now)


def live_assignment_of(agent_name: str) -> Assignment | None:
    return (
        Assignment.objects.select_related("agent", "repository")
        .filter(agent__name=agent_name, state=AssignmentState.LIVE)
        .first()
    )


def lost_before(now: datetime | None = None) -> datetime:
    """Leases whose last heartbeat is older than this are lost."""
    moment = now or timezone.now()
    return moment - (lease_expires_at(moment) - moment)
