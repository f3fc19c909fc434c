"""What Redis shows of issues, processes and tasks (seeds 000 and 002), one batch a change.

The rows of the database decide; these keys are for people and programs that watch. Losing them loses no work:
``restore_state`` writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from broker_project.lib.redis.keys import ISSUE_STATUS_EVENTS, Keyspace
from tasks.lifecycle import LIVE_STATES, AssignmentState, IssueStatus, TaskType
from tasks.models import Assignment, Repository
from tasks.offers.index import LUA, keys_of
from tasks.offers.issue_keys import ENDED_STATE_SECONDS

log = get_logger(__name__)

AT_WORK = (LUA / "at_work.lua").read_text()
HEARTBEAT_SAVE_SECONDS = 60


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

    def status(self, word: IssueStatus, **more: str) -> None:
        key = self.keys.key(k.ISSUE_STATUS, number=self.assignment.number)
        mapping = {
            "status": str(word),
            "agent": self.assignment.agent.name,
            "updatedAt": self.now.isoformat(),
        }
        mapping.update(more)
        self.batch.hdel(key, "reason")  # of what was before
        self.batch.hset(key, mapping=mapping)
        self.batch.persist(key)
        self.publish(word)

    def publish(self, word: IssueStatus) -> None:
        publish_status(
            self.batch,
            self.keys,
            self.assignment.repository,
            self.assignment.number,
            word,
            self.now,
            self.assignment,
        )

    def labels(self, labels: list[str]) -> None:
        """The labels as they are after an ending."""
        key = self.keys.key(k.ISSUE_METADATA, number=self.assignment.number)
        self.batch.hset(key, {"labels": json.dumps(labels, ensure_ascii=False)})

    def count(self, field: str) -> None:
        count_daily(self.batch, self.keys, field, self.now)

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
        batch.delete(keys.key(k.AGENT_CURRENT_TASK, agent=a.agent.name))
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


def record_ended(change: Change, word: IssueStatus, labels: list[str], *, is_open: bool) -> None:
    """Queue what the end of an assignment shows. Of an issue that was closed meanwhile it is the last word."""
    a = change.assignment
    state = AssignmentState(a.state)
    change.no_longer_at_work(str(state), is_zombie=state is AssignmentState.LOST)
    change.status(word, **({"reason": a.reason[:500]} if a.reason else {}))
    change.labels(labels)
    if not is_open:
        for spec in (k.ISSUE_STATUS, k.ISSUE_METADATA):
            change.batch.expire(change.keys.key(spec, number=a.number), ENDED_STATE_SECONDS)
    change.result(str(state))
    if counter := ENDING_COUNTERS.get(state):
        change.count(counter)
    if state is AssignmentState.COMPLETED:
        if counter := TYPE_COUNTERS.get(TaskType(a.task_type)):
            change.count(counter)
        change.candidate("needs_review" if a.task_type == TaskType.DEVELOPMENT else "completed")
        completed_today(change.batch, change.keys, a.number, change.now)
    else:
        change.candidate("pending")


def show_cancelled(assignment: Assignment, now: datetime) -> None:
    """Heartbeats that Redis answers say so at once; while it is away, the row is asked."""
    try:
        change = Change(assignment, now)
        change.info(cancelled="1")
        change.batch.execute()
    except redis.exceptions.RedisError as error:
        log.warning("Redis is behind", assignment=assignment.pk, error=str(error))


def show_statuses(repository: Repository, words: Mapping[int, IssueStatus], now: datetime) -> None:
    """What people changed on GitHub. What an agent works on keeps its word until that ends."""
    taken = set(live_assignments(repository).filter(number__in=list(words)).values_list("number", flat=True))
    keys = keys_of(repository)
    batch = Batch(redis_client())
    for number, word in words.items():
        if number in taken:
            continue
        shown = [keys.key(spec, number=number) for spec in (k.ISSUE_STATUS, k.ISSUE_METADATA)]
        batch.hdel(shown[0], "reason")
        batch.hset(shown[0], mapping={"status": str(word), "updatedAt": now.isoformat()})
        for key in shown:
            if word is IssueStatus.COMPLETED:
                batch.expire(key, ENDED_STATE_SECONDS)
            else:
                batch.persist(key)
        publish_status(batch, keys, repository, number, word, now)
    try:
        batch.execute()
    except redis.exceptions.RedisError as error:
        log.warning("Redis is behind", repository=repository.full_name, error=str(error))


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
