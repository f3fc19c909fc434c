"""Where issues stand, for lists and pages: in sets, not one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from django.conf import settings
from django.db.models import Exists, Min, OuterRef, Q, QuerySet
from redis.exceptions import RedisError

from broker_project.lib.redis.client import redis_client
from tasks.lifecycle import LIVE_STATES, PARKED, Gate, NotOffered, why_not
from tasks.models import Assignment, Issue, Repository
from tasks.offers.candidates import subjects
from tasks.offers.index import keys_of, queue_keys
from tasks.offers.policy import decide
from tasks.reasons import Reason, ReasonCode


def best_priority() -> int | None:
    """The bucket that counts under the strict gate: the best of all open issues."""
    open_rows = Issue.objects.filter(is_open=True, repository__is_enabled=True, priority__isnull=False)
    found: int | None = open_rows.aggregate(best=Min("priority"))["best"]
    return found


def reasons(issues: Collection[Issue], now: datetime) -> dict[int, Reason]:
    """By primary key: why each is not on offer, or that it is, to an agent of a fitting role.

    A few queries a repository, however many issues.
    """
    found: dict[int, Reason] = {}
    best = best_priority() if settings.BROKER.priority_gate == Gate.OPEN else None
    for repository in {issue.repository for issue in issues}:
        own = {issue.number: issue for issue in issues if issue.repository_id == repository.pk}
        verdicts = {}
        for subject in subjects(repository, list(own)):
            verdict = decide(subject.facts)
            if isinstance(verdict, NotOffered):
                verdicts[subject.facts.number] = verdict.reason
            else:
                counted = best if settings.BROKER.priority_gate == Gate.OPEN else verdict.priority
                reason = why_not(verdict, (), counted, now)
                verdicts[subject.facts.number] = reason or Reason.of(ReasonCode.ON_OFFER)
        for number, issue in own.items():
            if not issue.is_open:
                found[issue.pk] = Reason.of(ReasonCode.CLOSED)
            elif not repository.is_enabled:
                found[issue.pk] = Reason.of(ReasonCode.REPOSITORY_OFF)
            elif number in verdicts:
                found[issue.pk] = verdicts[number]
    return found


def at_work(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    live = Assignment.objects.filter(
        repository=OuterRef("repository"), number=OuterRef("number"), state__in=LIVE_STATES
    )
    return rows.filter(Exists(live))


def parked(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    # JSON containment is not portable; the quotes make it the whole label.
    return rows.filter(is_open=True, labels__icontains=f'"{PARKED}"')


def edited(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    """What the approval gate keeps back. None while it is off: nothing is noted then."""
    return rows.filter(is_open=True, edit__isnull=False) if settings.BROKER.approval_gate else rows.none()


def in_review(rows: QuerySet[Issue]) -> QuerySet[Issue]:
    return rows.filter(is_open=True, review_detected_at__isnull=False)


def on_offer(rows: QuerySet[Issue]) -> QuerySet[Issue]:
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


def queue_lengths(repositories: Iterable[Repository]) -> int:
    """How many issues are on offer, by the queues. Raises redis-py's errors."""
    pipe = redis_client().pipeline(transaction=False)
    for repository in repositories:
        for queue in queue_keys(keys_of(repository)):
            pipe.zcard(queue)
    return sum(pipe.execute())
