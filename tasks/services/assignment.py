"""From a claim in Redis to an assignment: row, branch, labels, prompt, answer; or all of it undone.

The row comes first (state ``claiming``), then GitHub, then the row goes live. Whoever dies in between is found by
the sweep: the row says what may have been done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, OperationalError, transaction
from django.utils import timezone
from redis.exceptions import RedisError

from broker_project.lib.errors import Missing, OutsideError, Rejected
from broker_project.lib.logs import get_logger
from broker_project.lib.quick_rows import insert_rows, update_rows
from broker_project.lib.redaction import redact
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.batch import Batch
from broker_project.lib.redis.client import redis_client
from broker_project.lib.redis.locks import RELEASE, release_lock
from broker_project.lib.side_by_side import Once
from tasks.agents_api.agent_cache import directory
from tasks.github.branches import BranchPlan
from tasks.github.client import GitHubClient, client_for
from tasks.github.label_marks import queue_label_marks
from tasks.lifecycle import IN_PROGRESS, AssignmentState, NotOffered, TaskType, classify, role_for
from tasks.models import Assignment, Event, FixTask, Issue, PullRequest, Repository
from tasks.offers.candidates import Subject, relabelled, subjects_of
from tasks.offers.index import (
    PUT,
    keys_of,
    make_entry,
    put_arguments,
    queue_slots,
    refresh_issues,
    review_delay,
)
from tasks.offers.projector import lease_expires_at, lease_seconds, record_assigned
from tasks.prompts import build_prompt
from tasks.reasons import Reason, ReasonCode
from tasks.services.agents import agent_named
from tasks.services.events import make_event
from tasks.services.labels import labels_owed, pay_labels
from tasks.services.refusals import remember_refused

log = get_logger(__name__)

HEARTBEAT_EVERY_SECONDS = 60


@dataclass(frozen=True)
class Claim:
    """An issue that the index gave us; its lock is ours."""

    repository: Repository
    number: int
    task_type: TaskType = TaskType.DEVELOPMENT  # as the index knew it


@dataclass(frozen=True)
class Order:
    """A claim, and for whom."""

    claim: Claim
    agent: str
    roles: tuple[str, ...]
    request_id: str | None


@dataclass(frozen=True)
class Assigned:
    assignment: Assignment
    answer: dict[str, Any]


@dataclass(frozen=True)
class Skipped:
    """This one cannot be handed out, for a reason on record; the next may."""

    reason: Reason


@dataclass(frozen=True)
class AgentBusy:
    """Another request of the same agent was faster: it has a live assignment, or is getting one."""


Outcome = Assigned | Skipped | AgentBusy


@dataclass(frozen=True)
class Work:
    """What GitHub said, for the answer."""

    labels: list[str]
    pull: PullRequest | None
    comments: list[dict[str, Any]]


@dataclass(eq=False)
class Making:
    """An order on its way to an assignment. It has come to its end once there is an outcome."""

    order: Order
    subject: Subject | None = None
    assignment: Assignment | None = None
    work: Work | None = None
    refusal: Skipped | AgentBusy | None = None
    outcome: Outcome | Exception | None = None

    @property
    def begun(self) -> tuple[Assignment, Subject]:
        assert self.assignment is not None
        assert self.subject is not None
        return self.assignment, self.subject

    def refuse(self) -> None:
        try:
            give_back([self], timezone.now())
            self.outcome = self.refusal
        except Exception as error:  # noqa: BLE001 - whoever ordered it hears of it
            self.outcome = error


def assign_claim(order: Order) -> Outcome:
    """Turn a claim into an assignment. Raises the shared errors on an outage; everything is undone then."""
    making = Making(order)
    begin([making])
    if making.outcome is None:
        prepare(making, Heads())
    if making.outcome is None:
        finish([making])
    if isinstance(making.outcome, Exception):
        raise making.outcome
    assert making.outcome is not None
    return making.outcome


# The three steps. The first and the last take as many as there are; none of them raises.


def begin(makings: Sequence[Making]) -> None:
    """The rows that say what may be done on GitHub from now on."""
    all_or_each(insert_claiming, makings)
    for making in makings:
        if making.refusal is not None:
            making.refuse()


def prepare(making: Making, heads: Heads) -> None:
    """What has to be on GitHub; or all of it undone."""
    try:
        prepare_or_undo(making, heads)
    except Exception as error:  # noqa: BLE001 - whoever ordered it hears of it
        fail([making], error)


def finish(makings: Sequence[Making]) -> None:
    """The rows go live, Redis follows, the locks are released."""
    all_or_each(go_live, makings)
    if live := [making for making in makings if isinstance(making.outcome, Assigned)]:
        all_or_each(show_assigned, live)


def all_or_each(step: Callable[[Sequence[Making]], None], makings: Sequence[Making]) -> None:
    """What fails for several is done again for each alone, so that whoever it fails for is alone with it.

    A step changes all or nothing: what it has done is rolled back when it raises. A database that is locked, full or
    away concerns all of them, and each alone would wait for it again.
    """
    try:
        step(makings)
    except OperationalError as error:
        fail(makings, error)
    except Exception as error:  # noqa: BLE001 - whoever ordered it hears of it
        if len(makings) == 1:
            fail(makings, error)
            return
        for making in makings:
            all_or_each(step, [making])


def fail(makings: Sequence[Making], error: Exception) -> None:
    for making in makings:
        making.outcome = error
    if isinstance(error, OperationalError):
        # Without a row nobody else would give the issues back before their locks end.
        try:
            give_back(makings, timezone.now())
        except (OperationalError, RedisError) as another:
            log.warning("claims not given back", number=len(makings), error=str(another))


# Beginning


def insert_claiming(makings: Sequence[Making]) -> None:
    now = timezone.now()
    find_subjects(makings)
    for making in makings:
        plan(making, now)
    chosen = [making.assignment for making in makings if making.assignment is not None]
    if not chosen:
        return
    try:
        with transaction.atomic():
            insert_rows(chosen)
    except IntegrityError:
        if len(makings) > 1:
            raise
        making = makings[0]
        making.refusal = AgentBusy() if is_agent_busy(making) else Skipped(Reason.of(ReasonCode.TAKEN))


def find_subjects(makings: Sequence[Making]) -> None:
    """One query for those of one kind; the rows decide, not the index."""
    alike: dict[tuple[int, TaskType], list[Making]] = {}
    for making in makings:
        claim = making.order.claim
        alike.setdefault((claim.repository.pk, claim.task_type), []).append(making)
    for (_, task_type), group in alike.items():
        numbers = [making.order.claim.number for making in group]
        found = subjects_of(group[0].order.claim.repository, numbers, task_type)
        for making in group:
            making.subject = found.get(making.order.claim.number)


def plan(making: Making, now: datetime) -> None:
    """Make the row, or say why there is none."""
    order, subject = making.order, making.subject
    making.assignment, making.refusal = None, None
    if subject is None:
        making.refusal = Skipped(Reason.of(ReasonCode.GONE))
        return
    verdict = classify(subject.facts, settings.BROKER.role_names, review_delay())
    if isinstance(verdict, NotOffered):  # the index was behind the rows
        making.refusal = Skipped(verdict.reason)
        return
    pull = None if verdict.task_type is TaskType.DEVELOPMENT else subject.pull
    making.assignment = Assignment(
        agent=directory.known(order.agent) or agent_named(order.agent),
        repository=order.claim.repository,
        number=order.claim.number,
        pull_number=pull.number if pull else None,
        task_type=verdict.task_type,
        role=role_for(verdict.roles, order.roles),
        state=AssignmentState.CLAIMING,
        attempt=attempts_so_far(subject) + 1,
        created_at=now,
        last_heartbeat_at=now,
        request_id=order.request_id,
    )
    plan_work(making.assignment, subject)


def attempts_so_far(subject: Subject) -> int:
    if subject.fix is not None:
        return subject.fix.lost_attempts
    return subject.issue.lost_attempts if subject.issue is not None else 0


def is_agent_busy(making: Making) -> bool:
    request_id = making.order.request_id
    live = Assignment.objects.filter(agent=making.begun[0].agent)
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


# GitHub


class Heads:
    """Where base branches stand, asked once for all that begin together."""

    def __init__(self) -> None:
        self._found: dict[tuple[GitHubClient, str], Once[str]] = {}

    def of(self, client: GitHubClient, branch: str) -> str:
        if (client, branch) not in self._found:
            self._found[client, branch] = Once(lambda: client.head_of(branch))
        return self._found[client, branch]()


def prepare_or_undo(making: Making, heads: Heads) -> None:
    assignment, subject = making.begun
    try:
        making.work = prepare_on_github(client_for(assignment.repository), assignment, subject, heads)
    except OutsideError as error:
        undo(assignment, error, timezone.now())
        if not concerns_this_issue_alone(error):
            making.outcome = error
            return
        remember_refusal(assignment, subject, error)
        making.outcome = Skipped(Reason.as_written(error.message))


def prepare_on_github(client: GitHubClient, assignment: Assignment, subject: Subject, heads: Heads) -> Work:
    """At most three requests: base and branch, or the comments; then both labels in one."""
    comments: list[dict[str, Any]] = []
    if assignment.task_type == TaskType.DEVELOPMENT:
        if not assignment.base_branch:
            assignment.base_branch = client.default_branch()
        client.create_branch(assignment.branch, heads.of(client, assignment.base_branch))
    elif assignment.task_type == TaskType.REVIEW and subject.pull is not None:
        with suppress(Missing):  # they are a help, no condition
            comments = client.pull_comments(subject.pull.number)
    labels = client.add_labels(assignment.number, [IN_PROGRESS, assignment.agent.name])
    # GitHub answers with all labels; ours are on, in whatever case an older label of that name was written.
    ours = [name for name in (IN_PROGRESS, assignment.agent.name) if name not in labels]
    return Work([*(labels or subject.facts.labels), *ours], subject.pull, comments)


# Going live


def go_live(makings: Sequence[Making]) -> None:
    """The issue's row is left as GitHub last told it: that it is in progress follows from the live assignment, and the
    next poll or webhook says so, too. Rewriting it here would cost two queries and fight with whoever syncs.
    """
    now = timezone.now()
    for making in makings:
        assignment, subject = making.begun
        assert making.work is not None
        assignment.started_at = assignment.last_heartbeat_at = now
        assignment.answer = make_answer(assignment, subject, making.work, now)
    with transaction.atomic():
        live = [making for making in makings if update_live(making, now)]
        if live:
            insert_rows([assigned_event(making.begun[0], now) for making in live])
    for making in makings:
        # The sweep took it for dead while GitHub kept us waiting, and has undone the rest.
        making.outcome = Skipped(Reason.of(ReasonCode.LOST_ASSIGNING))
    for making in live:
        assignment, _ = making.begun
        assignment.state = AssignmentState.LIVE
        making.outcome = Assigned(assignment, assignment.answer)


def update_live(making: Making, now: datetime) -> bool:
    assignment, subject = making.begun
    changes = {
        "state": AssignmentState.LIVE,
        "started_at": now,
        "last_heartbeat_at": now,
        "branch": assignment.branch,
        "base_branch": assignment.base_branch,
        "answer": assignment.answer,
    }
    went_live = update_rows(Assignment, changes, id=assignment.pk, state=AssignmentState.CLAIMING)
    if went_live and subject.fix is not None:
        FixTask.objects.filter(pk=subject.fix.pk).update(state=FixTask.State.ASSIGNED)
    return bool(went_live)


def assigned_event(assignment: Assignment, now: datetime) -> Event:
    return make_event(
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


def show_assigned(makings: Sequence[Making]) -> None:
    """One batch: state, index, caches, locks.

    The rows are live already, so a Redis that is away just now does not take a task from its agent: its next
    heartbeat, the sweep or a rebuild writes this.
    """
    now = timezone.now()
    batch = Batch(redis_client())
    for group in by_repository(makings):
        queue_assigned(batch, group, now)
    try:
        batch.execute()
    except RedisError as error:
        keys = [making.begun[0].pk for making in makings]
        log.warning("Redis is behind", assignments=keys, error=str(error))


def queue_assigned(batch: Batch, makings: Sequence[Making], now: datetime) -> None:
    """All of one repository."""
    repository = makings[0].order.claim.repository
    keys = keys_of(repository)
    entries: list[tuple[int, dict[str, Any] | None]] = []
    raws: dict[int, dict[str, Any] | None] = {}
    for making in makings:
        assignment, subject = making.begun
        labels = tuple(assignment.answer["labels"])
        facts = replace(subject.facts, labels=labels, is_taken=True)
        entries.append((assignment.number, make_entry(facts, counts_as_open=subject.counts_as_open)))
        if subject.issue is not None and subject.fix is None:
            raws[assignment.number] = relabelled(subject.issue.raw, labels)
    numbers = [number for number, _ in entries]
    record_assigned(batch, [making.begun[0] for making in makings], now)
    batch.eval(PUT, *put_arguments(keys, entries, now))
    for number, raw in raws.items():
        batch.set(keys.key(k.ISSUE, number=number), json.dumps(raw, ensure_ascii=False))
    if raws:
        queue_slots(batch, keys, raws)
    queue_label_marks(batch, repository.pk, numbers)
    # Once all the rest is there.
    locks = [keys.key(k.ISSUE_LOCK, number=number) for number in numbers]
    batch.eval(RELEASE, len(locks), *locks, *(making.order.agent for making in makings))


def by_repository(makings: Iterable[Making]) -> list[list[Making]]:
    groups: dict[int, list[Making]] = {}
    for making in makings:
        groups.setdefault(making.order.claim.repository.pk, []).append(making)
    return list(groups.values())


def make_answer(assignment: Assignment, subject: Subject, work: Work, now: datetime) -> dict[str, Any]:
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
        "labels": work.labels,
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


# Undoing


def concerns_this_issue_alone(error: OutsideError) -> bool:
    return isinstance(error, Missing | Rejected)


def remember_refusal(assignment: Assignment, subject: Subject, error: OutsideError) -> None:
    """GitHub refused this very issue: it is left out until it changes, and says why."""
    if subject.fix is not None:  # its issue is the one that the pull request closes: not what was refused
        FixTask.objects.filter(pk=subject.fix.pk).update(state=FixTask.State.EXPIRED)
    elif subject.issue is not None:
        remember_refused(subject.issue, error)
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
    release_claims(assignment.repository, {assignment.number: assignment.agent.name}, now)


def give_back(makings: Sequence[Making], now: datetime) -> None:
    """Release the locks that are still ours and put the issues where their rows say they belong."""
    for group in by_repository(makings):
        release_claims(
            group[0].order.claim.repository, {m.order.claim.number: m.order.agent for m in group}, now
        )


def release_claims(repository: Repository, agents: Mapping[int, str], now: datetime) -> None:
    keys = keys_of(repository)
    for number, agent in agents.items():
        release_lock(redis_client(), keys.key(k.ISSUE_LOCK, number=number), agent)
    refresh_issues(repository, list(agents), now)
