"""Redis shows what the rows say. The rows decide; losing Redis loses no work.

:func:`project` brings every key that shows some numbers in line with their rows: seed 000's caches, ``open_issues``,
seed 002's status, processes and tasks, the offer index and its queues. Whoever changes rows calls it after the commit,
and nothing else. :func:`rebuild` is the same for all numbers of a repository.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast

import redis
from django.db.models import OuterRef, Q, Subquery
from django.utils import timezone

from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client, run_script
from broker_project.lib.redis.locks import LockHeld, held_lock, new_owner
from tasks.lifecycle import LIVE_STATES, AssignmentState
from tasks.models import Assignment, FixTask, Issue, PullRequest, Repository
from tasks.offers.candidates import make_candidates
from tasks.offers.index import keys_of, load_script, queue_keys
from tasks.offers.open_issues import CHUNK, SPARE_BYTES, write_open_issues
from tasks.offers.policy import index_mark
from tasks.offers.redis_view import Instructions, NumberRows, show
from tasks.offers.wake_ups import wake_for_best_bucket, wake_for_offers

log = get_logger(__name__)

PROJECT = load_script("project")
STEP = 12  # numbers a call: about a millisecond for which no other reader is served

T = TypeVar("T")


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
    at any time and from any process, and may be repeated. Only what differs is written. A Redis that does not answer
    is logged: the sweep or the next rebuild makes up for it.

    Two things no row tells, so the caller does: ``counts`` are the daily counters to raise by one, ``unlock`` names
    the agents whose claims on issues have come to their end.
    """
    try:
        return write_projection(repository, numbers, now, counts=counts, unlock=unlock)
    except redis.exceptions.RedisError as error:
        known = sorted(numbers)[:20]
        log.warning("Redis is behind", repository=repository.full_name, numbers=known, error=str(error))
        return 0


def write_projection(
    repository: Repository,
    numbers: Collection[int],
    now: datetime,
    *,
    counts: Iterable[str] = (),
    unlock: Mapping[int, str] | None = None,
    is_forced: bool = False,
) -> int:
    """As :func:`project`, but raises redis-py's errors.

    ``is_forced`` also mends what is lost or wrong beside an entry of the index that is right.
    """
    writer = ProjectionWriter(repository, now, is_forced=is_forced)
    for field in counts:
        writer.out.count(field)
    for number, agent in (unlock or {}).items():
        writer.out.unlock(number, agent)
    for chunk in parts_of(sorted(set(numbers)), CHUNK):
        for step in parts_of(read_rows(repository, chunk, now), STEP):
            for rows in step:
                show(rows, repository.full_name, writer.out)
            writer.send()
    writer.send()
    return writer.finish()


def parts_of(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (things[start : start + size] for start in range(0, len(things), size))


class ProjectionWriter:
    """Sends instructions to Redis, one script call a step, and adds up what they changed."""

    def __init__(self, repository: Repository, now: datetime, *, is_forced: bool) -> None:
        keys = keys_of(repository)
        self.repository, self.now = repository, now
        self.out = Instructions(keys, now)
        self.new_offers: list[list[str]] = []
        self.is_best_changed = self.is_array_full = False
        self.failure = ""
        index = (k.INDEX_ENTRIES, k.INDEX_OPEN, k.INDEX_WAITING, k.INDEX_CLAIMED)
        self.names = [
            keyspace().key(k.TEMP, name="nothing"),
            *(keys.key(spec) for spec in index),
            *queue_keys(keys),
            keys.key(k.OPEN_ISSUES),
            keys.key(k.INDEX_SLOTS),
        ]
        self.head: list[str | int | float] = [
            *(keys.stem(spec) for spec in (k.INDEX_OFFER, k.INDEX_FLOAT, k.INDEX_WORKING)),
            now.timestamp(),
            now.isoformat(),
            repository.full_name,
            keys.key(k.CHANNEL_EVENTS, type=k.ISSUE_STATUS_EVENTS),
            int(is_forced),
            SPARE_BYTES,
        ]

    def send(self) -> None:
        if not self.out.words:
            return
        words, self.out.words = self.out.words, []
        answer = run_script(redis_client(), PROJECT, len(self.names), *self.names, *self.head, *words)
        self.new_offers += json.loads(answer[0])
        self.is_best_changed |= bool(answer[1])
        self.is_array_full |= bool(answer[2])
        self.failure = self.failure or answer[3]

    def finish(self) -> int:
        """How many came on offer. Raises ResponseError if Redis refused some of it; the rest was done."""
        if self.is_array_full:
            write_open_issues(self.repository)
        if self.is_best_changed:
            wake_for_best_bucket(self.repository)
        elif self.new_offers:
            wake_for_offers(self.new_offers)
        if self.failure:
            raise redis.exceptions.ResponseError(self.failure)
        return len(self.new_offers)


# The rows


def midnight_before(now: datetime) -> datetime:
    return timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)


def numbers_to_show(repository: Repository, now: datetime) -> set[int]:
    """All that is open, at work, or was completed today."""
    attempts = Assignment.objects.filter(repository=repository)
    shown = attempts.filter(Q(state__in=LIVE_STATES) | completed_since(midnight_before(now)))
    numbers = set(shown.values_list("number", flat=True))
    numbers |= set(Issue.objects.filter(repository=repository, is_open=True).values_list("number", flat=True))
    return numbers | set(FixTask.pending(repository).values_list("pull_number", flat=True))


def completed_since(moment: datetime) -> Q:
    return Q(state=AssignmentState.COMPLETED, ended_at__gte=moment)


def read_rows(repository: Repository, numbers: Sequence[int], now: datetime) -> list[NumberRows]:
    """Two queries while all numbers are issues that nobody is to review."""
    issues = {row.number: row for row in Issue.objects.filter(repository=repository, number__in=numbers)}
    others = [number for number in numbers if number not in issues]
    pulls = PullRequest.objects.filter(repository=repository, number__in=others) if others else ()
    fixes = FixTask.pending(repository).filter(pull_number__in=others) if others else ()
    pulls_by_number = {pull.number: pull for pull in pulls}
    fixes_by_number = {fix.pull_number: fix for fix in fixes}
    midnight = midnight_before(now)
    live, ended, completed = {}, {}, set()
    for row in read_attempts(repository, numbers, midnight):
        if row.state in LIVE_STATES:
            live[row.number] = row
            continue
        ended[row.number] = row
        if row.state == AssignmentState.COMPLETED and row.ended_at is not None and row.ended_at >= midnight:
            completed.add(row.number)
    agents = {n: row.agent.name if row.state == AssignmentState.LIVE else "" for n, row in live.items()}
    open_issues = [issue for issue in issues.values() if issue.is_open]
    candidates = {
        candidate.facts.number: candidate
        for candidate in make_candidates(repository, open_issues, fixes_by_number, agents)
    }
    return [
        NumberRows(
            number,
            issue=issues.get(number),
            pull=pulls_by_number.get(number),
            fix=fixes_by_number.get(number),
            live=live[number] if agents.get(number) else None,
            ended=ended.get(number),
            is_completed_today=number in completed,
            candidate=candidates.get(number),
        )
        for number in numbers
    ]


def read_attempts(repository: Repository, numbers: Sequence[int], midnight: datetime) -> Iterable[Assignment]:
    """The one at work, the last that ended, and those completed today; the oldest first.

    An aborted one never reached an agent: there is nothing to show of it.
    """
    rows = Assignment.objects.filter(repository=repository)
    ended = rows.filter(number=OuterRef("number"), ended_at__isnull=False)
    last = ended.exclude(state=AssignmentState.ABORTED).order_by("-pk").values("pk")[:1]
    wanted = Q(state__in=LIVE_STATES) | Q(pk=Subquery(last)) | completed_since(midnight)
    return rows.filter(wanted, number__in=numbers).select_related("agent").defer("answer").order_by("pk")


# All of a repository


def rebuild(repository: Repository, now: datetime) -> int:
    """Project all numbers of a repository, without a moment in which Redis shows nothing; how many came on offer."""
    client, keys = redis_client(), keys_of(repository)
    known = client.hscan_iter(keys.key(k.INDEX_ENTRIES), count=CHUNK)
    numbers = {int(number) for number, _entry in known} | numbers_to_show(repository, now)
    numbers |= remove_stale_members(repository)
    write_open_issues(repository)
    count = write_projection(repository, numbers, now, is_forced=True)
    client.set(keys.key(k.INDEX_READY), index_mark(repository.full_name))
    return count


def remove_stale_members(repository: Repository) -> set[int]:
    """Take out of the sets of work in hand whatever is not; the numbers of these issues.

    The sets are read before the rows: whoever joins them in between is not touched.
    """
    client, keys = redis_client(), keys_of(repository)
    processing, active = keys.key(k.ISSUES_PROCESSING), keys.key(k.PROCESSES_ACTIVE)
    shown, shown_active = (cast("set[str]", client.smembers(key)) for key in (processing, active))
    live = Assignment.objects.filter(repository=repository, state=AssignmentState.LIVE).select_related(
        "agent"
    )
    rows = list(live.defer("answer"))
    stale = shown - {str(row.number) for row in rows}
    for key, members in ((processing, stale), (active, shown_active - {row.process_id for row in rows})):
        if members:
            client.srem(key, *members)
    return {int(member) for member in stale if member.isdecimal()}


def rebuild_if_needed(repository: Repository, now: datetime) -> bool:
    """Rebuild if Redis does not have this repository's index, or another's. One process does it at a time."""
    client, keys = redis_client(), keys_of(repository)
    ready, mark = keys.key(k.INDEX_READY), index_mark(repository.full_name)
    if client.get(ready) == mark:
        return False
    try:
        with held_lock(client, keys.key(k.LOCK_PROCESS, name="index"), new_owner("index"), 30):
            if client.get(ready) != mark:
                log.info("building the offer index", repository=repository.full_name)
                rebuild(repository, now)
    except LockHeld:
        return False
    return True
