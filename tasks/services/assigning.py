"""From a claim in Redis to an assignment: row, branch, labels, prompt, answer; or all of it undone.

The row comes first (state ``claiming``), then GitHub, then the row goes live. Whoever dies in between is found by
the sweep: the row says what may have been done.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from redis.exceptions import RedisError

from broker_project.lib import keyspace as k
from broker_project.lib.errors import Missing, OutsideError, Rejected
from broker_project.lib.locks import RELEASE, release_lock
from broker_project.lib.logs import get_logger
from broker_project.lib.quick_rows import insert_row, update_rows
from broker_project.lib.redaction import redact
from broker_project.lib.stores import redis_client
from tasks.branches import BranchPlan
from tasks.client import GitHubClient, client_for
from tasks.facts import Subject, relabelled, subject_of
from tasks.index import (
    PUT,
    keys_of,
    make_entry,
    put_arguments,
    queue_slots,
    refresh_issues,
    review_delay,
)
from tasks.label_marks import queue_label_mark
from tasks.lifecycle import IN_PROGRESS, AssignmentState, NotOffered, TaskType, classify, role_for
from tasks.models import Agent, Assignment, Event, FixTask, Issue, PullRequest, Repository
from tasks.prompts import build_prompt
from tasks.services.events import make_event
from tasks.services.labels import labels_owed, pay_labels
from tasks.state import Change, lease_expires_at, lease_seconds, record_assigned

log = get_logger(__name__)

HEARTBEAT_EVERY_SECONDS = 60


@dataclass(frozen=True)
class Claim:
    """An issue that the index gave us; its lock is ours."""

    repository: Repository
    number: int
    task_type: TaskType = TaskType.DEVELOPMENT  # as the index knew it


@dataclass(frozen=True)
class Assigned:
    assignment: Assignment
    answer: dict[str, Any]


@dataclass(frozen=True)
class Skipped:
    """This one cannot be handed out, for a reason on record; the next may."""

    reason: str


@dataclass(frozen=True)
class AgentBusy:
    """Another request of the same agent was faster: it has a live assignment, or is getting one."""


@dataclass(frozen=True)
class Work:
    """Where the work goes and what the agent is told about it."""

    branch: str
    base: str
    pull: PullRequest | None
    comments: list[dict[str, Any]]
    creates_branch: bool


def assign_claim(
    claim: Claim, agent: Agent, roles: tuple[str, ...], request_id: str | None, now: datetime
) -> Assigned | Skipped | AgentBusy:
    """Turn a claim into an assignment. Raises the shared errors on an outage; everything is undone then."""
    repository = claim.repository
    subject = subject_of(repository, claim.number, claim.task_type)
    verdict = (
        classify(subject.facts, settings.BROKER.role_names, review_delay())
        if subject
        else NotOffered(claim.number, "gone")
    )
    if subject is None or isinstance(verdict, NotOffered):
        # The index was behind the rows.
        give_back(claim, agent.name, now)
        return Skipped(verdict.reason if isinstance(verdict, NotOffered) else "gone")
    assignment = Assignment(
        agent=agent,
        repository=repository,
        number=claim.number,
        pull_number=subject.pull.number
        if subject.pull and verdict.task_type is not TaskType.DEVELOPMENT
        else None,
        task_type=verdict.task_type,
        role=role_for(verdict.roles, roles),
        state=AssignmentState.CLAIMING,
        attempt=attempts_so_far(subject) + 1,
        created_at=now,
        last_heartbeat_at=now,
        request_id=request_id,
    )
    plan_work(assignment, subject)
    try:
        with transaction.atomic():
            insert_row(assignment)
    except IntegrityError:
        give_back(claim, agent.name, now)
        return AgentBusy() if is_agent_busy(agent, request_id) else Skipped("an agent has it")
    try:
        client = client_for(repository)
        work = prepare_on_github(client, assignment, subject)
    except OutsideError as error:
        undo(assignment, error, timezone.now())
        if concerns_this_issue_alone(error):
            remember_refusal(assignment, subject, error)
            return Skipped(error.message)
        raise
    return go_live(assignment, subject, work, timezone.now())


def attempts_so_far(subject: Subject) -> int:
    if subject.fix is not None:
        return subject.fix.lost_attempts
    return subject.issue.lost_attempts if subject.issue is not None else 0


def is_agent_busy(agent: Agent, request_id: str | None) -> bool:
    live = Assignment.objects.filter(agent=agent)
    if request_id is not None and live.filter(request_id=request_id).exists():
        return True
    return live.filter(state__in=[AssignmentState.CLAIMING, AssignmentState.LIVE]).exists()


def plan_work(assignment: Assignment, subject: Subject) -> None:
    """Branch and base. A review or fix works on its pull request's head branch."""
    if assignment.task_type == TaskType.DEVELOPMENT:
        assert isinstance(subject.plan, BranchPlan)  # classify refused the others
        assignment.branch = subject.plan.name
        assignment.base_branch = subject.plan.base or assignment.repository.default_branch
    else:
        assert subject.pull is not None
        assignment.branch, assignment.base_branch = subject.pull.head_ref, subject.pull.base_ref


def prepare_on_github(client: GitHubClient, assignment: Assignment, subject: Subject) -> Work:
    """At most three requests: base and branch, or the comments; then both labels in one."""
    comments: list[dict[str, Any]] = []
    is_development = assignment.task_type == TaskType.DEVELOPMENT
    if is_development:
        if not assignment.base_branch:
            assignment.base_branch = client.default_branch()
        client.create_branch(assignment.branch, assignment.base_branch)
    elif assignment.task_type == TaskType.REVIEW and subject.pull is not None:
        with suppress(Missing):  # they are a help, no condition
            comments = client.pull_comments(subject.pull.number)
    labels = client.add_labels(assignment.number, [IN_PROGRESS, assignment.agent.name])
    # GitHub answers with all labels; ours are on, in whatever case an older label of that name was written.
    ours = [name for name in (IN_PROGRESS, assignment.agent.name) if name not in labels]
    assignment.answer = {"labels": [*(labels or subject.facts.labels), *ours]}
    return Work(assignment.branch, assignment.base_branch, subject.pull, comments, is_development)


def go_live(assignment: Assignment, subject: Subject, work: Work, now: datetime) -> Assigned | Skipped:
    """The last step: the row goes live, Redis follows, the lock is released.

    The issue's row is left as GitHub last told it: that it is in progress follows from the live assignment, and the
    next poll or webhook says so, too. Rewriting it here would cost two queries and fight with whoever syncs.
    """
    labels = assignment.answer["labels"]
    answer = make_answer(assignment, subject, work, labels, now)
    assignment.started_at = assignment.last_heartbeat_at = now
    assignment.answer = answer
    with transaction.atomic():
        changes = {
            "state": AssignmentState.LIVE,
            "started_at": now,
            "last_heartbeat_at": now,
            "branch": assignment.branch,
            "base_branch": assignment.base_branch,
            "answer": answer,
        }
        went_live = update_rows(Assignment, changes, id=assignment.pk, state=AssignmentState.CLAIMING)
        if went_live:
            if subject.fix is not None:
                FixTask.objects.filter(pk=subject.fix.pk).update(state=FixTask.State.ASSIGNED)
            insert_row(assigned_event(assignment, now))
    if not went_live:
        # The sweep took us for dead while GitHub kept us waiting; it has undone the rest.
        return Skipped("taken for lost while being assigned")
    assignment.state = AssignmentState.LIVE
    facts = replace(subject.facts, labels=tuple(labels), is_taken=True)
    show_assigned(assignment, replace(subject, facts=facts), now)
    return Assigned(assignment, answer)


def assigned_event(assignment: Assignment, now: datetime) -> Event:
    return make_event(
        assignment.repository,
        assignment.number,
        "assigned",
        now=now,
        who=assignment.agent.name,
        from_status="open",
        to_status="processing",
        reason=f"{assignment.task_type} as {assignment.role} on {assignment.branch}, attempt {assignment.attempt}",
        assignment=assignment,
    )


def show_assigned(assignment: Assignment, subject: Subject, now: datetime) -> None:
    """One batch: state, index, caches, lock.

    The row is live already, so a Redis that is away just now does not take the task from the agent: its next
    heartbeat, the sweep or a rebuild writes this.
    """
    repository, number = assignment.repository, assignment.number
    keys = keys_of(repository)
    change = Change(assignment, now)
    record_assigned(change)
    change.batch.eval(PUT, *put_arguments(keys, [(number, make_entry(subject))], now))
    if subject.issue is not None and subject.fix is None:
        raw = relabelled(subject.issue.raw, subject.facts.labels)
        change.batch.set(keys.key(k.ISSUE, number=number), json.dumps(raw, ensure_ascii=False))
        queue_slots(change.batch, keys, {number: raw})
    queue_label_mark(change.batch, repository.pk, number)
    change.batch.eval(RELEASE, 1, keys.key(k.ISSUE_LOCK, number=number), assignment.agent.name)
    try:
        change.batch.execute()
    except RedisError as error:
        log.warning("Redis is behind", assignment=assignment.pk, error=str(error))


def make_answer(
    assignment: Assignment, subject: Subject, work: Work, labels: list[str], now: datetime
) -> dict[str, Any]:
    issue, pull = subject.issue, work.pull
    is_fix = subject.fix is not None
    source: Issue | PullRequest | None = pull if is_fix else issue
    assert source is not None
    comments = subject.fix.comments if subject.fix else work.comments
    prompt = build_prompt(
        task_type=TaskType(assignment.task_type),
        role=assignment.role,
        repository=assignment.repository.full_name,
        number=assignment.number,
        title=source.title,
        body=source.body,
        issue_url=source.html_url,
        branch=assignment.branch,
        base_branch=assignment.base_branch,
        pull_request_url=pull.html_url if pull and assignment.pull_number else "",
        comments=comments,
    )
    return {
        "issue_id": assignment.number,
        "issue_url": source.html_url,
        "title": source.title,
        "body": source.body,
        "labels": labels,
        "branch_name": assignment.branch,
        "prompt": prompt,
        "required_role": assignment.role,
        "task_type": str(assignment.task_type),
        "gemini_response": None,
        "assignment_id": assignment.pk,
        "repository": assignment.repository.full_name,
        "base_branch": assignment.base_branch,
        "pull_request_url": pull.html_url if pull and assignment.pull_number else None,
        "lease_expires_at": lease_expires_at(now).isoformat(),
        "heartbeat_seconds": min(HEARTBEAT_EVERY_SECONDS, max(1, lease_seconds() // 3)),
    }


def concerns_this_issue_alone(error: OutsideError) -> bool:
    return isinstance(error, Missing | Rejected)


def remember_refusal(assignment: Assignment, subject: Subject, error: OutsideError) -> None:
    """GitHub refused this very issue: it is left out until it changes, and says why."""
    reason = redact(f"GitHub refused: {error.message}", 500)
    if subject.fix is not None:  # its issue is the one that the pull request closes: not what was refused
        FixTask.objects.filter(pk=subject.fix.pk).update(state=FixTask.State.EXPIRED)
    elif subject.issue is not None:
        Issue.objects.filter(pk=subject.issue.pk).update(refused_reason=reason)
    refresh_issues(assignment.repository, [assignment.number], timezone.now())


def undo(assignment: Assignment, error: OutsideError, now: datetime) -> None:
    """Take back what may have been done: the row ends, labels come off (now or later), the lock goes."""
    owed = labels_owed(remove=[IN_PROGRESS, assignment.agent.name])
    reason = redact(str(error), 500)
    with transaction.atomic():
        ended = Assignment.objects.filter(pk=assignment.pk, state=AssignmentState.CLAIMING).update(
            state=AssignmentState.ABORTED, ended_at=now, reason=reason, request_id=None, labels_due=owed
        )
        if ended:
            event = make_event(
                assignment.repository,
                assignment.number,
                "not assigned",
                now=now,
                who=assignment.agent.name,
                from_status="open",
                to_status="open",
                reason=reason,
                assignment=assignment,
            )
            Event.objects.bulk_create([event])
    if ended:
        assignment.state, assignment.labels_due = AssignmentState.ABORTED, owed
        try:
            pay_labels(client_for(assignment.repository), assignment)
        except OutsideError as failure:
            log.warning("labels not taken back yet", issue=assignment.number, error=str(failure))
    give_back(Claim(assignment.repository, assignment.number), assignment.agent.name, now)


def give_back(claim: Claim, agent: str, now: datetime) -> None:
    """Release the lock if it is still ours and put the issue where its rows say it belongs."""
    keys = keys_of(claim.repository)
    release_lock(redis_client(), keys.key(k.ISSUE_LOCK, number=claim.number), agent)
    refresh_issues(claim.repository, [claim.number], now)
