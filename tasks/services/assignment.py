"""Turn a claim into an assignment: row, branch, labels, prompt, answer. If a step fails, undo all of it.

``begin`` writes the row in state ``claiming``, then GitHub is asked, then ``finish`` makes the row live. If the
process dies in between, the row tells the sweep what may have been done.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, OperationalError, transaction
from django.utils import timezone

from broker_project.lib.errors import Missing, OutsideError, Rejected
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from tasks.github.branches import BranchPlan
from tasks.github.client import GitHubClient, client_for
from tasks.github.label_marks import mark_labels_changed
from tasks.lifecycle import IN_PROGRESS, AssignmentState, NotOffered, TaskType, role_for
from tasks.models import Agent, Assignment, FixTask, Issue, PullRequest, Repository
from tasks.offers.candidates import Candidate, find_claimed
from tasks.offers.heartbeat import lease_expires_at, lease_seconds
from tasks.offers.projector import project
from tasks.prompts import build_prompt
from tasks.reasons import Reason, ReasonCode
from tasks.services.agents import agent_named
from tasks.services.events import make_event
from tasks.services.labels import label_changes, try_label_changes
from tasks.services.refusals import remember_refused

log = get_logger(__name__)

HEARTBEAT_EVERY_SECONDS = 60


@dataclass(frozen=True)
class Claim:
    """An issue whose lock is held for an agent."""

    repository: Repository
    number: int
    task_type: TaskType  # as the index has it
    agent_name: str
    roles: tuple[str, ...] = ()
    request_id: str | None = None


@dataclass(frozen=True)
class PendingAssignment:
    """An assignment whose row is ``claiming``, with the rows it is made from."""

    assignment: Assignment
    candidate: Candidate


@dataclass(frozen=True)
class Assigned:
    assignment: Assignment
    answer: dict[str, Any]


@dataclass(frozen=True)
class Skipped:
    """This issue cannot be handed out, for a reason on record. The next one may."""

    reason: Reason


@dataclass(frozen=True)
class AgentBusy:
    """Another request of the same agent was faster: it has an assignment, or is getting one."""


def assign_claim(claim: Claim, agent: Agent | None = None) -> Assigned | Skipped | AgentBusy:
    """Turn a claim into an assignment. ``agent`` is the agent's row, if the caller has it.

    Raises the shared errors if GitHub fails, and OperationalError if the database does. Everything is undone then, or
    the row says what is still to be undone.
    """
    try:
        pending = begin(claim, agent)
        if not isinstance(pending, PendingAssignment):
            give_back(claim.repository, claim.number, claim.agent_name, timezone.now())
            return pending
        try:
            labels, comments = prepare_on_github(pending)
        except OutsideError as error:
            undo(pending.assignment, error, timezone.now())
            if not isinstance(error, Missing | Rejected):
                raise
            # GitHub refused this one issue. The others may be fine.
            remember_refusal(pending, error)
            return Skipped(Reason.as_written(error.message))
        return finish(pending, labels, comments)
    except OperationalError:
        # There may be no row that tells the sweep, so nobody else would release the lock before it expires.
        try:
            give_back(claim.repository, claim.number, claim.agent_name, timezone.now())
        except OperationalError as error:
            log.warning("claim not given back", issue=claim.number, error=str(error))
        raise


# 1. The row


def begin(claim: Claim, agent: Agent | None) -> PendingAssignment | Skipped | AgentBusy:
    """Write the row that says what may be done on GitHub from now on."""
    now = timezone.now()
    candidate = find_claimed(claim.repository, claim.number, claim.task_type)
    if candidate is None:
        return Skipped(Reason.of(ReasonCode.GONE))
    verdict = candidate.verdict
    if isinstance(verdict, NotOffered):  # the index was behind the rows
        return Skipped(verdict.reason)
    branch, base_branch = branches_of(candidate, verdict.task_type, claim.repository)
    is_development = verdict.task_type is TaskType.DEVELOPMENT
    assignment = Assignment(
        agent=agent or agent_named(claim.agent_name),
        repository=claim.repository,
        number=claim.number,
        pull_number=candidate.pull.number if candidate.pull and not is_development else None,
        task_type=verdict.task_type,
        role=role_for(verdict.roles, claim.roles),
        branch=branch,
        base_branch=base_branch,
        state=AssignmentState.CLAIMING,
        attempt=attempts_so_far(candidate) + 1,
        created_at=now,
        last_heartbeat_at=now,
        request_id=claim.request_id,
    )
    try:
        with transaction.atomic():
            assignment.save(force_insert=True)
    except IntegrityError:
        return AgentBusy() if is_agent_busy(assignment) else Skipped(Reason.of(ReasonCode.TAKEN))
    return PendingAssignment(assignment, candidate)


def branches_of(candidate: Candidate, task_type: TaskType, repository: Repository) -> tuple[str, str]:
    """The branch to work on and its base. A review or fix works on its pull request's branch."""
    if task_type is TaskType.DEVELOPMENT:
        assert isinstance(candidate.plan, BranchPlan)  # classify refused the others
        return candidate.plan.name, candidate.plan.base or repository.default_branch
    assert candidate.pull is not None
    return candidate.pull.head_ref, candidate.pull.base_ref


def attempts_so_far(candidate: Candidate) -> int:
    if candidate.fix is not None:
        return candidate.fix.lost_attempts
    return candidate.issue.lost_attempts if candidate.issue is not None else 0


def is_agent_busy(refused: Assignment) -> bool:
    others = Assignment.objects.filter(agent=refused.agent)
    if refused.request_id is not None and others.filter(request_id=refused.request_id).exists():
        return True
    return others.filter(state__in=[AssignmentState.CLAIMING, AssignmentState.LIVE]).exists()


# 2. GitHub


def prepare_on_github(pending: PendingAssignment) -> tuple[list[str], list[dict[str, Any]]]:
    """Branch and labels, in at most three requests. Returns the issue's labels and a review's comments."""
    assignment, candidate = pending.assignment, pending.candidate
    client: GitHubClient = client_for(assignment.repository)
    comments: list[dict[str, Any]] = []
    if assignment.task_type == TaskType.DEVELOPMENT:
        if not assignment.base_branch:
            assignment.base_branch = client.default_branch()
        client.create_branch(assignment.branch, client.head_of(assignment.base_branch))
    elif assignment.task_type == TaskType.REVIEW and candidate.pull is not None:
        with suppress(Missing):  # a review can do without them
            comments = client.pull_comments(candidate.pull.number)
    ours = (IN_PROGRESS, assignment.agent.name)
    labels = client.add_labels(assignment.number, ours) or list(candidate.facts.labels)
    # GitHub may have our labels in another letter case, if somebody made them before us.
    return [*labels, *(name for name in ours if name not in labels)], comments


# 3. Going live


def finish(
    pending: PendingAssignment, labels: list[str], comments: list[dict[str, Any]]
) -> Assigned | Skipped:
    """Make the row live, show it in Redis, release the lock.

    The issue's row keeps the labels that GitHub last reported. That it is in progress follows from the live assignment,
    and the next poll or webhook brings the labels.
    """
    assignment, fix = pending.assignment, pending.candidate.fix
    now = timezone.now()
    assignment.started_at = assignment.last_heartbeat_at = now
    assignment.answer = make_answer(pending, labels, comments, now)
    with transaction.atomic():
        is_live = Assignment.objects.filter(pk=assignment.pk, state=AssignmentState.CLAIMING).update(
            state=AssignmentState.LIVE,
            started_at=now,
            last_heartbeat_at=now,
            base_branch=assignment.base_branch,
            answer=assignment.answer,
        )
        if not is_live:
            # GitHub was so slow that the sweep took the assignment for lost and undid it.
            return Skipped(Reason.of(ReasonCode.LOST_ASSIGNING))
        if fix is not None:
            FixTask.objects.filter(pk=fix.pk).update(state=FixTask.State.ASSIGNED)
        event = make_event(
            assignment.repository,
            assignment.number,
            "assigned",
            now=now,
            who=assignment.agent.name,
            from_status="open",
            to_status="processing",
            reason=Reason.of(
                ReasonCode.ASSIGNED,
                task_type=assignment.task_type,
                role=assignment.role,
                branch=assignment.branch,
                attempt=assignment.attempt,
            ),
            assignment=assignment,
        )
        event.save(force_insert=True)
    assignment.state = AssignmentState.LIVE
    mark_labels_changed(assignment.repository_id, assignment.number)
    unlock = {assignment.number: assignment.agent.name}
    project(assignment.repository, [assignment.number], now, counts=["assigned"], unlock=unlock)
    return Assigned(assignment, assignment.answer)


def make_answer(
    pending: PendingAssignment, labels: list[str], comments: list[dict[str, Any]], now: datetime
) -> dict[str, Any]:
    """The task as the agent gets it (DESIGN: agent API)."""
    assignment, candidate = pending.assignment, pending.candidate
    source: Issue | PullRequest | None = candidate.pull if candidate.fix else candidate.issue
    assert source is not None
    pull_url = candidate.pull.html_url if candidate.pull and assignment.pull_number else None
    repository = assignment.repository.full_name
    prompt = build_prompt(
        task_type=TaskType(assignment.task_type),
        role=assignment.role,
        repository=repository,
        number=assignment.number,
        title=source.title,
        body=source.body,
        issue_url=source.html_url,
        branch=assignment.branch,
        base_branch=assignment.base_branch,
        pull_request_url=pull_url or "",
        comments=candidate.fix.comments if candidate.fix else comments,
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
        "repository": repository,
        "base_branch": assignment.base_branch,
        "pull_request_url": pull_url,
        "lease_expires_at": lease_expires_at(now).isoformat(),
        "heartbeat_seconds": min(HEARTBEAT_EVERY_SECONDS, max(1, lease_seconds() // 3)),
    }


# Undoing


def undo(assignment: Assignment, error: OutsideError, now: datetime) -> None:
    """End the row, take the labels off (now or later), release the lock."""
    changes = label_changes(remove=[IN_PROGRESS, assignment.agent.name])
    reason = redact(str(error), 500)
    with transaction.atomic():
        is_ended = Assignment.objects.filter(pk=assignment.pk, state=AssignmentState.CLAIMING).update(
            state=AssignmentState.ABORTED, ended_at=now, reason=reason, request_id=None, labels_due=changes
        )
        if is_ended:
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
            event.save(force_insert=True)
    if is_ended:
        assignment.state, assignment.labels_due = AssignmentState.ABORTED, changes
        try_label_changes(assignment)
    give_back(assignment.repository, assignment.number, assignment.agent.name, now)


def give_back(repository: Repository, number: int, agent_name: str, now: datetime) -> None:
    """Release the lock if it is still ours, and put the issue where its rows say it belongs."""
    project(repository, [number], now, unlock={number: agent_name})


def remember_refusal(pending: PendingAssignment, error: OutsideError) -> None:
    """Leave out what GitHub refused until it changes, and say why."""
    assignment, candidate = pending.assignment, pending.candidate
    if candidate.fix is not None:  # its issue is the one that the pull request closes: GitHub refused another
        FixTask.objects.filter(pk=candidate.fix.pk).update(state=FixTask.State.EXPIRED)
    elif candidate.issue is not None:
        remember_refused(candidate.issue, error)
    project(assignment.repository, [assignment.number], timezone.now())
