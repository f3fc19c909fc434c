"""What pages, metrics and ``explain`` show of tasks. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count, Exists, F, Min, OuterRef, Q, QuerySet, prefetch_related_objects
from redis.exceptions import RedisError

from broker_project.lib.kept import figure
from broker_project.lib.redis.client import redis_client
from tasks.lifecycle import LIVE_STATES, PARKED, Gate, NotOffered, Offer, best_bucket, why_not
from tasks.models import (
    Agent,
    Assignment,
    EditedIssue,
    Event,
    FixTask,
    Issue,
    PromptTemplate,
    PullRequest,
    Repository,
)
from tasks.offers.candidates import candidates
from tasks.offers.index import keys_of, queue_keys
from tasks.reasons import Reason, ReasonCode

HISTORY = 100


@dataclass(frozen=True)
class Explained:
    repository: str
    number: int
    title: str
    priority: int | None
    offered: bool
    reason: Reason


def explanation(
    repositories: Iterable[Repository], agent_roles: Collection[str], now: datetime
) -> list[Explained]:
    """Every open issue and fix task with why it is, or is not, on offer to an agent with these roles.

    The same rules as the index in Redis, worked out from the rows.
    """
    rows = [
        (repository, candidate, candidate.verdict)
        for repository in repositories
        for candidate in candidates(repository)
    ]
    offers = [verdict for _, _, verdict in rows if isinstance(verdict, Offer)]
    open_priorities = [
        candidate.facts.priority
        for _, candidate, _ in rows
        if candidate.counts_as_open and candidate.facts.priority is not None
    ]
    best = best_bucket(Gate(settings.BROKER.priority_gate), offers, open_priorities, agent_roles, now)
    found = []
    for repository, candidate, verdict in rows:
        reason = (
            verdict.reason if isinstance(verdict, NotOffered) else why_not(verdict, agent_roles, best, now)
        )
        facts = candidate.facts
        found.append(
            Explained(
                repository.full_name,
                facts.number,
                facts.title,
                facts.priority,
                offered=reason is None,
                reason=reason or Reason.of(ReasonCode.ON_OFFER),
            )
        )
    return sorted(found, key=lambda row: (not row.offered, row.number))


def best_priority() -> int | None:
    """The bucket that counts under the strict gate: the best of all open issues."""
    open_rows = Issue.objects.filter(is_open=True, repository__is_enabled=True, priority__isnull=False)
    found: int | None = open_rows.aggregate(best=Min("priority"))["best"]
    return found


def offer_reasons(issues: Collection[Issue], now: datetime) -> dict[int, Reason]:
    """By primary key: why each is not on offer, or that it is, to an agent of a fitting role.

    A few queries a repository, however many issues.
    """
    found: dict[int, Reason] = {}
    best = best_priority() if settings.BROKER.priority_gate == Gate.OPEN else None
    for repository in {issue.repository for issue in issues}:
        own = {issue.number: issue for issue in issues if issue.repository_id == repository.pk}
        verdicts = {}
        for candidate in candidates(repository, list(own)):
            verdict = candidate.verdict
            if isinstance(verdict, NotOffered):
                verdicts[candidate.facts.number] = verdict.reason
            else:
                counted = best if settings.BROKER.priority_gate == Gate.OPEN else verdict.priority
                reason = why_not(verdict, (), counted, now)
                verdicts[candidate.facts.number] = reason or Reason.of(ReasonCode.ON_OFFER)
        for number, issue in own.items():
            if not issue.is_open:
                found[issue.pk] = Reason.of(ReasonCode.CLOSED)
            elif not repository.is_enabled:
                found[issue.pk] = Reason.of(ReasonCode.REPOSITORY_OFF)
            elif number in verdicts:
                found[issue.pk] = verdicts[number]
    return found


def issues_at_work(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    live = Assignment.objects.filter(
        repository=OuterRef("repository"), number=OuterRef("number"), state__in=LIVE_STATES
    )
    return rows.filter(Exists(live))


def parked_issues(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    # JSON containment is not portable; the quotes make it the whole label.
    return rows.filter(is_open=True, labels__icontains=f'"{PARKED}"')


def edited_issues(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    """What the approval gate keeps back. None while it is off: nothing is noted then."""
    return rows.filter(is_open=True, edit__isnull=False) if settings.BROKER.approval_gate else rows.none()


def issues_in_review(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    return rows.filter(is_open=True, review_detected_at__isnull=False)


def issues_on_offer(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    """What the queues hold now. None while Redis is away."""
    wanted = Q(pk__in=[])
    for repository in Repository.objects.filter(is_enabled=True):
        if numbers := queued_numbers(repository):
            wanted |= Q(repository=repository, number__in=numbers)
    return rows.filter(wanted)


def queued_numbers(repository: Repository) -> list[int]:
    try:
        pipe = redis_client().pipeline(transaction=False)
        for queue in queue_keys(keys_of(repository)):
            pipe.zrange(queue, 0, 9999)
        answers: Iterable[list[str]] = pipe.execute()
    except RedisError:
        return []
    return [int(number) for numbers in answers for number in numbers]


def assignment_counts() -> dict[str, int]:
    """Assignments by state; read from the index alone."""
    rows = Assignment.objects.values_list("state").annotate(Count("pk")).order_by()
    return figure("assignments", lambda _: dict(rows))


def by_switch(rows: QuerySet[Any], field: str) -> dict[bool, int]:
    """Rows with a switch on and off; for tables that stay small."""
    found = dict(rows.order_by().values_list(field).annotate(Count("pk")))
    return {True: found.get(True, 0), False: found.get(False, 0)}


def agent_counts() -> dict[bool, int]:
    return by_switch(Agent.objects.all(), "is_enabled")


def repository_counts() -> dict[bool, int]:
    return by_switch(Repository.objects.all(), "is_enabled")


def prompt_counts() -> dict[bool, int]:
    return by_switch(PromptTemplate.objects.all(), "is_enabled")


def pull_counts() -> dict[bool, int]:
    return figure("pulls", lambda _: by_switch(PullRequest.objects.all(), "is_open"))


def fix_counts() -> dict[str, int]:
    rows = FixTask.objects.values_list("state").annotate(Count("pk")).order_by()
    return figure("fixes", lambda _: dict(rows))


def open_issue_count() -> int:
    return Issue.objects.filter(is_open=True).count()


def issue_counts() -> dict[str, int]:
    """Issues by the states of their list."""
    rows = Issue.objects.order_by()

    def count(last: dict[str, int] | None) -> dict[str, int]:
        by_open = dict(rows.values_list("is_open").annotate(Count("pk")))
        return {
            "open": by_open.get(True, 0),
            "closed": by_open.get(False, 0),
            "on_offer": issues_on_offer(rows).count(),
            "at_work": Assignment.objects.filter(state__in=LIVE_STATES).count(),
            "in_review": issues_in_review(rows).count(),
            "parked": parked_issues(rows).count(),
            "edited": edited_issues(rows).count(),
        }

    return figure("issues", count)


def pulls_numbered(repository_id: int, number: int) -> QuerySet[PullRequest]:
    return PullRequest.objects.filter(repository_id=repository_id, number=number)


def linked_pulls(issue: Issue) -> list[PullRequest]:
    """Pull requests that say they close it, newest first."""
    # Digits inside other numbers match, too; the few that do are looked at here.
    rows = PullRequest.objects.filter(repository_id=issue.repository_id, closes__icontains=str(issue.number))
    return [pull for pull in rows.order_by("-number")[:HISTORY] if issue.number in pull.closes]


def waiting_edit(issue: Issue) -> EditedIssue | None:
    """The words as approved, if others stand there now and wait for a look."""
    return EditedIssue.objects.filter(issue=issue).first()


def attempts(repository_id: int, number: int) -> list[Assignment]:
    rows = Assignment.objects.filter(repository_id=repository_id, number=number).select_related("agent")
    return list(rows.defer("answer", "result").order_by("-id")[:HISTORY])


def timeline(repository_id: int, number: int) -> list[Event]:
    return list(Event.objects.filter(repository_id=repository_id, number=number).order_by("-id")[:HISTORY])


def assignment_timeline(assignment_id: int) -> list[Event]:
    return list(Event.objects.filter(assignment_id=assignment_id).order_by("-id")[:HISTORY])


def agent_history(agent_id: int) -> list[Assignment]:
    rows = Assignment.objects.filter(agent_id=agent_id).select_related("agent", "repository")
    return list(rows.defer("answer", "result").order_by("-id")[:50])


def live_assignments() -> list[Assignment]:
    """What agents have in hand, the longest silent first."""
    # State by state, not joined, not sorted there: SQLite would walk all rows instead of the few that are live.
    rows = Assignment.objects.defer("result").order_by()
    found = [row for state in LIVE_STATES for row in rows.filter(state=state)[:500]]
    prefetch_related_objects(found, "agent", "repository")
    return sorted(found, key=lambda row: row.last_heartbeat_at)


def agents_seen(limit: int = 100) -> list[Agent]:
    """Enabled agents, the most lately seen first."""
    rows = Agent.objects.filter(is_enabled=True)
    return list(rows.order_by(F("last_seen_at").desc(nulls_last=True), "name")[:limit])


def recent_events(limit: int = 20) -> list[Event]:
    return list(Event.objects.select_related("repository").order_by("-id")[:limit])


class LiveByAgent:
    """The work in hand by agent: one query for a whole list, none if nothing asks."""

    def __init__(self) -> None:
        self._rows: dict[int, Assignment] | None = None

    def get(self, agent_id: int) -> Assignment | None:
        if self._rows is None:
            self._rows = {row.agent_id: row for row in live_assignments()}
        return self._rows.get(agent_id)
