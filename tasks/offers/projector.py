"""What Redis shows of issues, processes and tasks (seeds 000 and 002), one batch a change.

The rows of the database decide; these keys are for people and programs that watch. Losing them loses no work:
``restore_state`` writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import redis
from django.db.models import QuerySet
from django.utils import timezone

from broker_project.lib.config.dynamic import CLAUDE_TIMEOUT, value_of
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.batch import Batch
from broker_project.lib.redis.client import redis_client
from broker_project.lib.redis.keys import ISSUE_STATUS_EVENTS
from broker_project.lib.redis.keyspace import Keyspace
from broker_project.lib.redis.locks import RELEASE
from tasks.lifecycle import (
    LIVE_STATES,
    AssignmentState,
    IssueStatus,
    TaskType,
    status_after,
    status_word,
)
from tasks.models import Assignment, FixTask, Issue, PullRequest, Repository
from tasks.offers.candidates import fix_labels, labels_at_work
from tasks.offers.index import LUA, keys_of, refresh_issues
from tasks.offers.issue_keys import ENDED_STATE_SECONDS

log = get_logger(__name__)

AT_WORK = (LUA / "at_work.lua").read_text()
HEARTBEAT_SAVE_SECONDS = 60
ENDED_STATE = timedelta(seconds=ENDED_STATE_SECONDS)


def lease_seconds() -> int:
    return value_of(CLAUDE_TIMEOUT)


def lease_expires_at(last_heartbeat_at: datetime) -> datetime:
    return last_heartbeat_at + timedelta(seconds=lease_seconds())


def next_midnight(now: datetime) -> datetime:
    local = timezone.localtime(now)
    return (local + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


class Change:
    """Commands that go to Redis together, about one assignment."""

    def __init__(self, assignment: Assignment, now: datetime, batch: Batch | None = None) -> None:
        self.assignment = assignment
        self.now = now
        self.keys: Keyspace = keys_of(assignment.repository)
        self.batch = batch if batch is not None else Batch(redis_client())

    def labels(self, labels: list[str]) -> None:
        """The labels as they are after an ending."""
        key = self.keys.key(k.ISSUE_METADATA, number=self.assignment.number)
        self.batch.hset(key, {"labels": json.dumps(labels, ensure_ascii=False)})

    def candidate(self, status: str) -> None:
        a = self.assignment
        key = self.keys.key(k.TASK_CANDIDATE, number=a.number, agent=a.agent.name)
        self.batch.set(key, self.candidate_document(status), ex=self.keys.ttl_seconds(k.TASK_CANDIDATE))

    def candidate_document(self, status: str) -> str:
        a = self.assignment
        document = {
            "issue_id": a.number,
            "agent_id": a.agent.name,
            "task_type": a.task_type,
            "status": status,
            "assignment_id": a.pk,
            "updated_at": self.now.isoformat(),
        }
        return json.dumps(document)

    def info(self, **fields: str) -> None:
        key = self.keys.key(k.TASK_INFO, id=self.assignment.pk)
        self.batch.hset(key, fields)
        self.batch.expire(key, self.keys.ttl_seconds(k.TASK_INFO))

    def at_work(self, *, begins: bool = False) -> None:
        """Everything that says: this agent works on this issue. ``begins``: from now on, so others are told."""
        a, key = self.assignment, self.keys.key
        agent, process, beat = a.agent.name, a.process_id, a.last_heartbeat_at
        remaining = lease_expires_at(beat) - self.now
        names = [
            key(k.ISSUE_METADATA, number=a.number),
            key(k.ISSUES_PROCESSING),
            key(k.PROCESS_INFO, process=process),
            key(k.PROCESS_HEARTBEAT, process=process),
            key(k.PROCESSES_ACTIVE),
            key(k.PROCESSES_ZOMBIES),
            key(k.AGENT_CURRENT_TASK, agent=agent),
            key(k.TASK_INFO, id=a.pk),
        ]
        given: list[str | int | float] = [
            a.number,
            agent,
            a.pk,
            a.repository.full_name,
            a.task_type,
            a.branch,
            process,
            (a.started_at or a.created_at).isoformat(),
            str(a.answer.get("title", ""))[:500],
            str(a.answer.get("issue_url", "")),
            json.dumps(a.answer.get("labels", []), ensure_ascii=False),
            beat.isoformat(),
            beat.timestamp(),
            int(a.is_cancelled),
            max(1, int(remaining.total_seconds())),
            self.keys.ttl_seconds(k.AGENT_CURRENT_TASK),
            self.keys.ttl_seconds(k.TASK_INFO),
        ]
        if begins:
            names += [
                key(k.ISSUE_STATUS, number=a.number),
                key(k.TASK_CANDIDATE, number=a.number, agent=agent),
            ]
            given += [
                self.now.isoformat(),
                key(k.CHANNEL_EVENTS, type=ISSUE_STATUS_EVENTS),
                status_event(a.repository, a.number, IssueStatus.PROCESSING, self.now, a),
                self.candidate_document("assigned"),
                self.keys.ttl_seconds(k.TASK_CANDIDATE),
            ]
        self.batch.eval(AT_WORK, len(names), *names, *given)

    def no_longer_at_work(self, process_status: str, *, is_zombie: bool) -> None:
        a, keys, batch = self.assignment, self.keys, self.batch
        batch.srem(keys.key(k.ISSUES_PROCESSING), a.number)
        batch.srem(keys.key(k.PROCESSES_ACTIVE), a.process_id)
        batch.delete(keys.key(k.PROCESS_HEARTBEAT, process=a.process_id))
        info = keys.key(k.PROCESS_INFO, process=a.process_id)
        batch.hset(info, mapping={"status": process_status, "endedAt": self.now.isoformat()})
        batch.expire(info, ENDED_STATE_SECONDS)
        if is_zombie:
            batch.sadd(keys.key(k.PROCESSES_ZOMBIES), a.process_id)
        # It may have taken another one since.
        batch.eval(RELEASE, 1, keys.key(k.AGENT_CURRENT_TASK, agent=a.agent.name), a.number)
        self.info(state=process_status)

    def result(self, outcome: str) -> None:
        a = self.assignment
        key = self.keys.key(k.TASK_RESULT, id=a.pk)
        document = {
            "id": str(a.pk),
            "state": outcome,
            "result": json.dumps(a.result, ensure_ascii=False),
            "reason": a.reason,
            "endedAt": self.now.isoformat(),
        }
        self.batch.hset(key, mapping=document)
        self.batch.expire(key, self.keys.ttl_seconds(k.TASK_RESULT))


def publish_status(
    batch: Batch,
    keys: Keyspace,
    repository: Repository,
    number: int,
    word: IssueStatus,
    now: datetime,
    assignment: Assignment | None = None,
) -> None:
    channel = keys.key(k.CHANNEL_EVENTS, type=ISSUE_STATUS_EVENTS)
    batch.publish(channel, status_event(repository, number, word, now, assignment))


def status_event(
    repository: Repository, number: int, word: IssueStatus, now: datetime, assignment: Assignment | None
) -> str:
    event = {
        "issue": number,
        "status": str(word),
        "processId": assignment.process_id if assignment else None,
        "repository": repository.full_name,
        "timestamp": now.isoformat(),
    }
    return json.dumps(event)


def count_daily(batch: Batch, keys: Keyspace, field: str, now: datetime, number: int = 1) -> None:
    key = keys.key(k.STATS_ISSUES_DAILY, date=timezone.localtime(now).date().isoformat())
    batch.hincrby(key, field, number)
    batch.expire(key, keys.ttl_seconds(k.STATS_ISSUES_DAILY))


def completed_today(batch: Batch, keys: Keyspace, number: int, now: datetime) -> None:
    key = keys.key(k.ISSUES_COMPLETED_TODAY)
    batch.sadd(key, number)
    batch.expireat(key, int(next_midnight(now).timestamp()))


ENDING_COUNTERS = {
    AssignmentState.COMPLETED: "completed",
    AssignmentState.FAILED: "failed",
    AssignmentState.LOST: "failed",
    AssignmentState.RELEASED: "released",
}
TYPE_COUNTERS = {TaskType.REVIEW: "reviewed", TaskType.FIX: "fixed"}


def record_assigned(batch: Batch, assignments: Sequence[Assignment], now: datetime) -> None:
    """Queue what assignments of one repository show. The caller adds the index and runs the batch."""
    for assignment in assignments:
        Change(assignment, now, batch).at_work(begins=True)
    count_daily(batch, keys_of(assignments[0].repository), "assigned", now, len(assignments))


def project(
    repository: Repository,
    numbers: Collection[int],
    now: datetime,
    *,
    counts: Iterable[str] = (),
    unlock: Mapping[int, str] | None = None,
) -> int:
    """Bring every Redis key that shows these numbers in line with their rows; how many came on offer.

    Call it after the commit of whatever changed rows of issues, pull requests, fix tasks or assignments. It is safe
    at any time and from any process, and may be repeated. A Redis that does not answer is logged: the sweep or the
    next rebuild makes up for it.

    Two things no row tells, so the caller does: ``counts`` are the daily counters to raise by one, ``unlock`` names
    the agents whose claims on issues have come to their end.
    """
    try:
        return write_projection(repository, numbers, now, counts=counts, unlock=unlock)
    except redis.exceptions.RedisError as error:
        log.warning(
            "Redis is behind", repository=repository.full_name, numbers=list(numbers), error=str(error)
        )
        return 0


def write_projection(
    repository: Repository,
    numbers: Collection[int],
    now: datetime,
    *,
    counts: Iterable[str] = (),
    unlock: Mapping[int, str] | None = None,
) -> int:
    """As :func:`project`, but raises redis-py's errors."""
    keys = keys_of(repository)
    batch = Batch(redis_client())
    for number in numbers:
        _show_number(batch, repository, keys, number, now)
    for field in counts:
        count_daily(batch, keys, field, now)
    for number, agent in (unlock or {}).items():
        batch.eval(RELEASE, 1, keys.key(k.ISSUE_LOCK, number=number), agent)
    batch.execute()
    return refresh_issues(repository, numbers, now)


def _show_number(batch: Batch, repository: Repository, keys: Keyspace, number: int, now: datetime) -> None:
    rows = Assignment.objects.filter(repository=repository, number=number).select_related(
        "agent", "repository"
    )
    live = rows.filter(state=AssignmentState.LIVE).first()
    last = live or rows.exclude(state__in=LIVE_STATES).order_by("-id").first()
    row: Issue | PullRequest | None = (
        Issue.objects.filter(repository=repository, number=number).defer("raw", "body").first()
        or PullRequest.objects.filter(repository=repository, number=number).first()
    )
    _show_fix(batch, repository, keys, number)
    if live is not None:
        change = Change(live, now, batch)
        change.at_work()
        if row is not None:
            change.labels(labels_at_work(row.labels, live.agent.name))
        change.candidate("assigned")
    elif last is not None and last.ended_at is not None and now - last.ended_at < ENDED_STATE:
        state = AssignmentState(last.state)
        change = Change(last, now, batch)
        change.no_longer_at_work(str(state), is_zombie=state is AssignmentState.LOST)
        change.result(str(state))
        change.candidate(candidate_status(last))
        if row is not None:
            change.labels(row.labels)
        if state is AssignmentState.COMPLETED and last.ended_at >= next_midnight(now) - timedelta(days=1):
            completed_today(batch, keys, number, now)
    word, reason = shown_status(row, live, last)
    _show_status(batch, repository, keys, number, word, reason, live or last, now)
    if row is None or (not row.is_open and live is None):
        for spec in (k.ISSUE_STATUS, k.ISSUE_METADATA):
            batch.expire(keys.key(spec, number=number), ENDED_STATE_SECONDS)


def candidate_status(ended: Assignment) -> str:
    if ended.state != AssignmentState.COMPLETED:
        return "pending"
    return "needs_review" if ended.task_type == TaskType.DEVELOPMENT else "completed"


def shown_status(
    row: Issue | PullRequest | None, live: Assignment | None, last: Assignment | None
) -> tuple[IssueStatus, str]:
    """The word, and the reason beside it."""
    if live is not None:
        return IssueStatus.PROCESSING, ""
    by_labels = status_word(row.labels if row else (), is_open=row is not None and row.is_open)
    if last is None or last.ended_at is None:
        return by_labels, ""
    review_at = row.review_detected_at if isinstance(row, Issue) else None
    word, is_by_attempt = status_after(
        by_labels,
        AssignmentState(last.state),
        TaskType(last.task_type),
        is_outdated=review_at is not None and review_at > last.ended_at,
    )
    return word, last.reason[:500] if is_by_attempt else ""


def _show_status(
    batch: Batch,
    repository: Repository,
    keys: Keyspace,
    number: int,
    word: IssueStatus,
    reason: str,
    assignment: Assignment | None,
    now: datetime,
) -> None:
    key = keys.key(k.ISSUE_STATUS, number=number)
    before = redis_client().hget(key, "status")
    if before == word:
        return
    if before is None and assignment is None:
        return  # the refresh writes the first one
    mapping = {"status": str(word), "updatedAt": now.isoformat()}
    batch.hdel(key, "reason")
    if assignment is not None:
        mapping["agent"] = assignment.agent.name
    if reason:
        mapping["reason"] = reason
    batch.hset(key, mapping=mapping)
    batch.persist(key)
    is_of_work = IssueStatus.PROCESSING in (before, word)
    publish_status(batch, keys, repository, number, word, now, assignment if is_of_work else None)


def _show_fix(batch: Batch, repository: Repository, keys: Keyspace, number: int) -> None:
    key = keys.key(k.TASK_FIX, pull=number)
    fix = FixTask.pending(repository).filter(pull_number=number).first()
    pull = PullRequest.objects.filter(repository=repository, number=number).first() if fix else None
    if fix is None or pull is None:
        batch.delete(key)
        return
    issue = Issue.objects.filter(repository=repository, number__in=pull.closes).first()
    document = {
        "issue_id": fix.pull_number,
        "title": pull.title,
        "body": "\n".join(f"- {comment}" for comment in fix.comments),
        "html_url": pull.html_url,
        "labels": list(fix_labels(pull, issue)),
        "task_type": str(TaskType.FIX),
    }
    batch.set(key, json.dumps(document, ensure_ascii=False), ex=keys.ttl_seconds(k.TASK_FIX))


def ending_counts(assignment: Assignment) -> list[str]:
    """The daily counters that the end of this assignment raises."""
    found = [ENDING_COUNTERS.get(AssignmentState(assignment.state))]
    if assignment.state == AssignmentState.COMPLETED:
        found.append(TYPE_COUNTERS.get(TaskType(assignment.task_type)))
    return [name for name in found if name]


def live_assignments(repository: Repository) -> QuerySet[Assignment]:
    return Assignment.objects.filter(repository=repository, state__in=LIVE_STATES).select_related(
        "agent", "repository"
    )


def restore_state(repository: Repository, now: datetime) -> int:
    """Write again what Redis may have forgotten of the work in hand."""
    keys = keys_of(repository)
    batch = Batch(redis_client())
    live = list(live_assignments(repository).filter(state=AssignmentState.LIVE))
    batch.delete(keys.key(k.ISSUES_PROCESSING), keys.key(k.PROCESSES_ACTIVE))
    for assignment in live:
        change = Change(assignment, now, batch)
        change.at_work()
        batch.hset(
            keys.key(k.ISSUE_STATUS, number=assignment.number),
            mapping={
                "status": str(IssueStatus.PROCESSING),
                "agent": assignment.agent.name,
                "updatedAt": now.isoformat(),
            },
        )
    since = next_midnight(now) - timedelta(days=1)
    done = Assignment.objects.filter(
        repository=repository, state=AssignmentState.COMPLETED, ended_at__gte=since
    )
    for number in done.values_list("number", flat=True).distinct():
        completed_today(batch, keys, number, now)
    batch.execute()
    return len(live)


def heartbeat_arguments(
    keys: Keyspace, assignment_id: int, agent: str, number: int, progress: str, now: datetime
) -> list[Any]:
    process = f"issue-{number}-{agent}"
    return [
        3,
        keys.key(k.TASK_INFO, id=assignment_id),
        keys.key(k.PROCESS_HEARTBEAT, process=process),
        keys.key(k.AGENT_CURRENT_TASK, agent=agent),
        agent,
        now.isoformat(),
        now.timestamp(),
        lease_seconds(),
        keys.ttl_seconds(k.AGENT_CURRENT_TASK),
        redact(progress) if progress else "",
        # The row decides who is lost, so it hears of a heartbeat well within a lease, however short that is.
        min(HEARTBEAT_SAVE_SECONDS, lease_seconds() // 3),
    ]
