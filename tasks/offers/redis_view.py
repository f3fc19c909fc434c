"""What Redis is to show of one issue or pull request (seeds 000 and 002), worked out from its rows.

Nothing here talks to Redis: the rows of a number become the instructions of ``lua/project.lua``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.keys import KeySpec
from broker_project.lib.redis.keyspace import Keyspace
from tasks.github.answers import label_names, relabelled
from tasks.lifecycle import (
    NEEDS_REVIEW,
    AssignmentState,
    IssueStatus,
    TaskType,
    labels_at_work,
    status_after,
    status_word,
)
from tasks.models import Assignment, FixTask, Issue, PullRequest
from tasks.offers.candidates import Candidate
from tasks.offers.heartbeat import lease_expires_at
from tasks.offers.index import make_entry

ENDED_SECONDS = 7 * 86400  # how long a closed issue and an ended process still show how they ended
REASON_CHARACTERS = TITLE_CHARACTERS = 500


@dataclass(frozen=True)
class NumberRows:
    """All rows of one number. GitHub counts issues and pull requests together: it has one of them at most."""

    number: int
    issue: Issue | None = None
    pull: PullRequest | None = None
    fix: FixTask | None = None  # that waits or is at work
    live: Assignment | None = None  # with an agent; one that is just being made is not meant
    ended: Assignment | None = None  # the last one that an agent had
    is_completed_today: bool = False  # by whichever attempt
    candidate: Candidate | None = None  # None: closed, or never to be handed out

    @property
    def is_open(self) -> bool:
        source = self.issue or self.pull
        return source is not None and source.is_open

    @property
    def labels(self) -> list[str]:
        """As GitHub has them: with both of ours while an agent works on it."""
        source = self.issue or self.pull
        known: list[str] = source.labels if source is not None else []
        return labels_at_work(known, self.live.agent.name) if self.live is not None else list(known)


class Instructions:
    """The instructions of one call of ``lua/project.lua``, in its own words."""

    def __init__(self, keys: Keyspace, now: datetime) -> None:
        self.keys, self.now = keys, now
        self.words: list[str | int | float] = []

    def add(self, instruction: str, *arguments: str | int | float) -> None:
        self.words += [instruction, len(arguments), *arguments]

    def text(self, spec: KeySpec, value: str, seconds: int | None = None, **fields: str | int) -> None:
        """An empty value means that there is none."""
        self.add("text", self.keys.key(spec, **fields), value, "" if seconds is None else seconds)

    def hash(
        self,
        key: str,
        values: Mapping[str, str | int],
        seconds: int | None = None,
        *,
        may_make: bool = True,
        without: Sequence[str] = (),
    ) -> None:
        pairs = [word for pair in values.items() for word in pair]
        lives = "" if seconds is None else seconds
        self.add("hash", key, lives, int(may_make), len(without), *without, *pairs)

    def entry(self, number: int, entry: Mapping[str, Any] | None) -> None:
        """An entry of the offer index; none takes the number out."""
        text = "" if entry is None else json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        self.add("entry", number, text)

    def slot(self, number: int, text: str) -> None:
        """An issue inside ``open_issues``; an empty text takes it out."""
        self.add("slot", number, text)

    def member(self, spec: KeySpec, member: str | int, *, is_in: bool) -> None:
        self.add("member", self.keys.key(spec), member, int(is_in))

    def count(self, field: str) -> None:
        """One more in a counter of the local day."""
        date = timezone.localtime(self.now).date().isoformat()
        key = self.keys.key(k.STATS_ISSUES_DAILY, date=date)
        self.add("count", key, field, self.keys.ttl_seconds(k.STATS_ISSUES_DAILY))

    def unlock(self, number: int, agent: str) -> None:
        self.add("unlock", self.keys.key(k.ISSUE_LOCK, number=number), agent)

    def seconds_left(self, spec: KeySpec, since: datetime) -> int:
        """Of a key that began to live then; none or less if it has ended."""
        return self.keys.ttl_seconds(spec) - int((self.now - since).total_seconds())


def show(rows: NumberRows, repository: str, out: Instructions) -> None:
    """Everything that Redis shows of one number."""
    show_offer(rows, out)
    show_issue(rows, out)
    show_fix(rows, out)
    show_status(rows, out)
    show_metadata(rows, repository, out)
    out.member(k.ISSUES_PROCESSING, rows.number, is_in=rows.live is not None)
    if rows.ended is not None:
        show_ended(rows, rows.ended, repository, out)
    if rows.live is not None:
        show_live(rows.live, repository, out)
    if rows.is_completed_today:
        key, ends_at = out.keys.key(k.ISSUES_COMPLETED_TODAY), next_midnight(out.now)
        out.add("until_moment", key, rows.number, int(ends_at.timestamp()))


def next_midnight(now: datetime) -> datetime:
    local = timezone.localtime(now)
    return (local + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


def show_offer(rows: NumberRows, out: Instructions) -> None:
    found = rows.candidate
    entry = make_entry(found.facts, counts_as_open=found.counts_as_open) if found is not None else None
    out.entry(rows.number, entry)


def show_issue(rows: NumberRows, out: Instructions) -> None:
    """Seed 000's copy of GitHub's JSON, and when a review was asked for."""
    raw: dict[str, Any] | None = None
    detected_at = None
    if rows.issue is not None and rows.issue.is_open:
        raw = rows.issue.raw if rows.live is None else relabelled(rows.issue.raw, rows.labels)
        detected_at = rows.issue.review_detected_at if NEEDS_REVIEW in rows.labels else None
    out.text(k.ISSUE, json.dumps(raw, ensure_ascii=False) if raw is not None else "", number=rows.number)
    for spec in (k.REVIEW_DETECTED, k.REVIEW_DELAY):
        out.text(spec, detected_at.isoformat() if detected_at else "", number=rows.number)
    out.slot(rows.number, short_form(raw) if raw is not None else "")


def short_form(raw: dict[str, Any]) -> str:
    """GitHub's own fields, without the body (that is in ``issue:{n}``)."""
    kept = ("id", "number", "title", "html_url", "state", "created_at", "updated_at")
    short = {name: raw[name] for name in kept if name in raw}
    short["labels"] = [{"name": name} for name in label_names(raw.get("labels"))]
    return json.dumps(short, ensure_ascii=False, separators=(",", ":"))


def show_fix(rows: NumberRows, out: Instructions) -> None:
    """A fix whose pull request was closed stays until its time is over."""
    if rows.fix is None:
        if rows.issue is None:
            out.text(k.TASK_FIX, "", pull=rows.number)
        return
    seconds = int((rows.fix.expires_at - out.now).total_seconds())
    if rows.pull is None or rows.candidate is None or seconds <= 0:
        return
    document = {
        "issue_id": rows.number,
        "title": rows.pull.title,
        "body": "\n".join(f"- {comment}" for comment in rows.fix.comments),
        "html_url": rows.pull.html_url,
        "labels": list(rows.candidate.facts.labels),
        "task_type": str(TaskType.FIX),
    }
    out.text(k.TASK_FIX, json.dumps(document, ensure_ascii=False), seconds, pull=rows.number)


def status_of(rows: NumberRows) -> tuple[IssueStatus, str]:
    """The word, and the reason beside it."""
    if rows.live is not None:
        return IssueStatus.PROCESSING, ""
    by_labels = status_word(rows.labels, is_open=rows.is_open)
    ended = rows.ended
    if ended is None or ended.ended_at is None:
        return by_labels, ""
    review_at = rows.issue.review_detected_at if rows.issue is not None else None
    word, is_by_attempt = status_after(
        by_labels,
        AssignmentState(ended.state),
        TaskType(ended.task_type),
        is_outdated=review_at is not None and review_at > ended.ended_at,
    )
    return word, ended.reason[:REASON_CHARACTERS] if is_by_attempt else ""


def seconds_shown(rows: NumberRows) -> int | None:
    """For how long status and metadata are shown; None: as long as it is open, or an agent has it."""
    return None if rows.is_open or rows.live is not None else ENDED_SECONDS


def is_pull_without_work(rows: NumberRows) -> bool:
    """A pull request has a status once an agent worked on it, and not before."""
    return rows.issue is None and rows.live is None and rows.ended is None


def show_status(rows: NumberRows, out: Instructions) -> None:
    seconds = seconds_shown(rows)
    if seconds is None and is_pull_without_work(rows):
        return
    word, reason = status_of(rows)
    worker = rows.live or rows.ended
    out.add(
        "status",
        out.keys.key(k.ISSUE_STATUS, number=rows.number),
        rows.number,
        str(word),
        worker.agent.name if worker is not None else "",
        reason,
        worker.process_id if worker is not None else "",
        "" if seconds is None else seconds,
    )


def show_metadata(rows: NumberRows, repository: str, out: Instructions) -> None:
    seconds = seconds_shown(rows)
    if seconds is None and is_pull_without_work(rows):
        return
    values: dict[str, str | int] = {
        "labels": json.dumps(rows.labels, ensure_ascii=False),
        "repository": repository,
    }
    if (source := rows.issue or rows.pull) is not None:
        values |= {"title": source.title[:TITLE_CHARACTERS], "url": source.html_url}
    if (worker := rows.live or rows.ended) is not None:
        values |= {"branch": worker.branch, "taskType": worker.task_type}
    key = out.keys.key(k.ISSUE_METADATA, number=rows.number)
    out.hash(key, values, seconds, may_make=seconds is None)


def show_live(live: Assignment, repository: str, out: Instructions) -> None:
    """This agent works on this issue."""
    keys, agent, process, beat = out.keys, live.agent.name, live.process_id, live.last_heartbeat_at
    started_at = live.started_at or live.created_at
    info = keys.key(k.PROCESS_INFO, process=process)
    out.hash(info, process_fields(live, repository) | {"status": "running"}, without=["endedAt"])
    task = keys.key(k.TASK_INFO, id=live.pk)
    out.hash(task, task_fields(live, repository), keys.ttl_seconds(k.TASK_INFO))
    out.member(k.PROCESSES_ACTIVE, process, is_in=True)
    out.member(k.PROCESSES_ZOMBIES, process, is_in=False)
    lease_left = int((lease_expires_at(beat) - out.now).total_seconds())
    out.add(
        "alive",
        keys.key(k.PROCESS_HEARTBEAT, process=process),
        keys.key(k.AGENT_CURRENT_TASK, agent=agent),
        task,
        beat.isoformat(),
        beat.timestamp(),
        max(1, lease_left),
        live.number,
        keys.ttl_seconds(k.AGENT_CURRENT_TASK),
        keys.ttl_seconds(k.TASK_INFO),
    )
    show_task_candidate(live, "assigned", started_at, out)


def show_ended(rows: NumberRows, ended: Assignment, repository: str, out: Instructions) -> None:
    """How the last attempt ended, for as long as that is shown."""
    ended_at = ended.ended_at or ended.created_at
    seconds = ENDED_SECONDS - int((out.now - ended_at).total_seconds())
    if seconds <= 0:
        return
    keys, process, state = out.keys, ended.process_id, str(ended.state)
    if rows.live is None or rows.live.process_id != process:
        out.member(k.PROCESSES_ACTIVE, process, is_in=False)
        out.text(k.PROCESS_HEARTBEAT, "", process=process)
        fields = process_fields(ended, repository) | {"status": state, "endedAt": ended_at.isoformat()}
        info = keys.key(k.PROCESS_INFO, process=process)
        if ended.state == AssignmentState.LOST:
            out.add("zombie", keys.key(k.PROCESSES_ZOMBIES), process, info)
        out.hash(info, fields, seconds)
        out.add("idle", keys.key(k.AGENT_CURRENT_TASK, agent=ended.agent.name), ended.number)
        show_task_candidate(ended, candidate_status(ended), ended_at, out)
    left = out.seconds_left(k.TASK_INFO, ended_at)
    if left > 0:
        out.hash(keys.key(k.TASK_INFO, id=ended.pk), task_fields(ended, repository), left)
        result = {
            "id": str(ended.pk),
            "state": state,
            "result": json.dumps(ended.result, ensure_ascii=False),
            "reason": ended.reason,
            "endedAt": ended_at.isoformat(),
        }
        out.hash(keys.key(k.TASK_RESULT, id=ended.pk), result, left)


def process_fields(assignment: Assignment, repository: str) -> dict[str, str | int]:
    return {
        "processId": assignment.process_id,
        "issue": assignment.number,
        "agent": assignment.agent.name,
        "assignment": assignment.pk,
        "repository": repository,
        "taskType": assignment.task_type,
        "branch": assignment.branch,
        "startedAt": (assignment.started_at or assignment.created_at).isoformat(),
    }


def task_fields(assignment: Assignment, repository: str) -> dict[str, str | int]:
    return {
        "id": assignment.pk,
        "agent": assignment.agent.name,
        "number": assignment.number,
        "repository": repository,
        "taskType": assignment.task_type,
        "branch": assignment.branch,
        "processId": assignment.process_id,
        "state": str(assignment.state),
        "cancelled": int(assignment.is_cancelled),
        "startedAt": (assignment.started_at or assignment.created_at).isoformat(),
    }


def candidate_status(ended: Assignment) -> str:
    if ended.state != AssignmentState.COMPLETED:
        return "pending"
    return "needs_review" if ended.task_type == TaskType.DEVELOPMENT else "completed"


def show_task_candidate(assignment: Assignment, status: str, changed_at: datetime, out: Instructions) -> None:
    seconds = out.seconds_left(k.TASK_CANDIDATE, changed_at)
    if seconds <= 0:
        return
    document = {
        "issue_id": assignment.number,
        "agent_id": assignment.agent.name,
        "task_type": assignment.task_type,
        "status": status,
        "assignment_id": assignment.pk,
        "updated_at": changed_at.isoformat(),
    }
    agent = assignment.agent.name
    out.text(k.TASK_CANDIDATE, json.dumps(document), seconds, number=assignment.number, agent=agent)
