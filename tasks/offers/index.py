"""The offer index in Redis: what a claim looks at instead of reading issues.

Everything here is derived from the database and can be built again at any time. ``refresh_issues`` brings the
caches and the index in line with the rows of some numbers; ``rebuild`` does it for a whole repository.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import redis
from django.conf import settings

from broker_project.lib.config.dynamic import REVIEW_DELAY_MINUTES, value_of
from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.batch import Batch
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.lib.redis.keyspace import Keyspace
from broker_project.lib.redis.locks import LockHeld, held_lock, new_owner
from tasks.github.answers import label_names
from tasks.lifecycle import (
    IN_PROGRESS,
    AssignmentState,
    IssueFacts,
    NotOffered,
    Offer,
    TaskType,
    classify,
)
from tasks.models import Assignment, FixTask, Issue, Repository
from tasks.offers.candidates import Subject, labels_at_work, relabelled, subjects
from tasks.offers.issue_keys import queue_issues, short_form
from tasks.offers.policy import index_mark
from tasks.reasons import Reason

log = get_logger(__name__)

LUA = Path(__file__).parent / "lua"
PUT = (LUA / "index_put.lua").read_text()
CLAIM = (LUA / "claim.lua").read_text()
OPEN_ISSUES = (LUA / "open_issues.lua").read_text()
HEARTBEAT = (LUA / "heartbeat.lua").read_text()

QUEUES = ("high", "normal", "low")
ANY_ROLE = "*"
CHUNK = 500  # issues read from the database at a time
STEP = 12  # issues a batch: about a millisecond for which no other reader is served
REWRITES = 3  # of open_issues, should others change it meanwhile; the last one stands
SPARE_BYTES = 160  # room for a few more labels in a slot of open_issues
CLAIM_MEMORY_SECONDS = 60

# The order inside a bucket as one number: fix first (1 bit), seconds since 2008 (30), issue number (15).
EPOCH_2008 = 1_199_145_600
NUMBER_BITS, SECOND_BITS = 15, 30
BUCKET, LAST_BUCKET = 1 << 46, 127  # the priority stands above the order; what is worse shares the last one


def order_score(offer: Offer) -> int:
    seconds = min(max(int(offer.updated_at.timestamp()) - EPOCH_2008, 0), (1 << SECOND_BITS) - 1)
    late = 0 if offer.task_type is TaskType.FIX else 1
    number = min(offer.number, (1 << NUMBER_BITS) - 1)
    return (late << (SECOND_BITS + NUMBER_BITS)) | (seconds << NUMBER_BITS) | number


def keys_of(repository: Repository) -> Keyspace:
    own = keyspace()
    return own if repository.namespace == own.names.namespace else own.sibling(repository.namespace)


def review_delay() -> timedelta:
    return timedelta(minutes=value_of(REVIEW_DELAY_MINUTES))


def make_entry(facts: IssueFacts, *, counts_as_open: bool) -> dict[str, Any]:
    """What the scripts need to know of an issue; see ``lua/index_put.lua``."""
    verdict = classify(facts, settings.BROKER.role_names, review_delay())
    counted = facts.priority if counts_as_open and facts.priority is not None else -1
    entry: dict[str, Any] = {
        "k": counted,
        "p": -1,
        "s": 0,
        "r": [],
        "d": 0,
        "o": 0,
        "w": [],
        "t": facts.task_type,
    }
    if IN_PROGRESS in facts.labels:
        entry["w"] = [label for label in facts.labels if label != IN_PROGRESS]
    if isinstance(verdict, Offer):
        entry |= {
            "p": -1 if verdict.priority is None else verdict.priority,
            "s": order_score(verdict),
            "r": list(verdict.roles),
            "d": verdict.due_at.timestamp() if verdict.due_at else 0,
            "o": 1,
        }
    return entry


def entry_of(subject: Subject) -> dict[str, Any]:
    return make_entry(subject.facts, counts_as_open=subject.counts_as_open)


@dataclass(frozen=True)
class PutResult:
    new_offers: list[list[str]]
    is_best_changed: bool


def put_arguments(
    keys: Keyspace,
    entries: Iterable[tuple[int, dict[str, Any] | None]],
    now: datetime,
    *,
    is_forced: bool = False,
) -> list[Any]:
    """Number of keys, keys and arguments of ``index_put.lua``. An entry of None takes the number out.

    An entry that is there already costs next to nothing, unless where it stands is to be looked after all the same.
    """
    names = [keys.key(spec) for spec in (k.INDEX_ENTRIES, k.INDEX_OPEN, k.INDEX_WAITING, k.INDEX_CLAIMED)]
    names += [keys.key(k.QUEUE, priority=queue) for queue in QUEUES]
    stems = [keys.stem(spec) for spec in (k.INDEX_OFFER, k.INDEX_FLOAT, k.INDEX_WORKING)]
    pairs: list[Any] = []
    for number, entry in entries:
        pairs += [
            number,
            "" if entry is None else json.dumps(entry, separators=(",", ":"), ensure_ascii=False),
        ]
    return [len(names), *names, *stems, now.timestamp(), int(is_forced), *pairs]


def parse_put(answer: Sequence[Any]) -> PutResult:
    return PutResult(json.loads(answer[2]) if answer[0] else [], bool(answer[1]))


def refresh_issues(
    repository: Repository, numbers: Collection[int], now: datetime, *, is_forced: bool = False
) -> int:
    """Bring Redis in line with the rows of these numbers, and wake as many waiters as work came on offer.

    Returns how many came on offer. Closed issues leave. Safe to call at any time, from any process. Redis compares and
    writes only what differs; with ``is_forced`` it also mends what is lost or wrong beside an entry that is right.
    """
    wanted = sorted(set(numbers))
    new_offers: list[list[str]] = []
    is_best_changed = are_slots_full = False
    for chunk in batches(wanted, CHUNK):
        found = {subject.facts.number: subject for subject in subjects(repository, chunk)}
        raws = shown_raws(repository, chunk, found)
        for step in batches(chunk, STEP):
            result, slots_fit = _write_step(repository, step, found, raws, now, is_forced)
            new_offers += result.new_offers
            is_best_changed |= result.is_best_changed
            are_slots_full |= not slots_fit
    if are_slots_full:
        write_open_issues(repository)
    if is_best_changed:
        wake_for_bucket(repository)
    elif new_offers:
        publish_wake(new_offers)
    return len(new_offers)


def batches(numbers: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (numbers[start : start + size] for start in range(0, len(numbers), size))


def shown_raws(
    repository: Repository, numbers: Sequence[int], found: dict[int, Subject]
) -> dict[int, dict[str, Any]]:
    """GitHub's JSON of the open ones, with the labels that follow from a live assignment."""
    rows = Issue.objects.filter(repository=repository, is_open=True, number__in=numbers)
    raws = dict(rows.values_list("number", "raw"))
    for number, subject in found.items():
        if subject.facts.is_taken and number in raws:
            raws[number] = relabelled(raws[number], subject.facts.labels)
    return raws


def _write_step(
    repository: Repository,
    numbers: Sequence[int],
    found: dict[int, Subject],
    raws: dict[int, dict[str, Any]],
    now: datetime,
    is_forced: bool,
) -> tuple[PutResult, bool]:
    keys = keys_of(repository)
    entries = [(number, entry_of(found[number]) if number in found else None) for number in numbers]
    batch = Batch(redis_client())
    batch.eval(PUT, *put_arguments(keys, entries, now, is_forced=is_forced))
    queue_issues(batch, repository, keys, numbers, found, raws, now)
    queue_slots(batch, keys, {number: raws.get(number) for number in numbers})
    answers = batch.execute()
    return parse_put(answers[0]), bool(answers[-1])


def queue_slots(batch: Batch, keys: Keyspace, raws: dict[int, dict[str, Any] | None]) -> None:
    pairs: list[Any] = []
    for number, raw in raws.items():
        pairs += [number, short_form(raw) if raw is not None else ""]
    batch.eval(OPEN_ISSUES, 2, keys.key(k.OPEN_ISSUES), keys.key(k.INDEX_SLOTS), SPARE_BYTES, *pairs)


def write_open_issues(repository: Repository) -> None:
    """Write ``open_issues`` anew; readers see the old array or the new one.

    It is put together beside the old one and takes its place in one MULTI, so that even a hundred thousand issues
    keep no other reader waiting. Who changes the old one meanwhile makes us begin again.
    """
    keys = keys_of(repository)
    array, slots = keys.key(k.OPEN_ISSUES), keys.key(k.INDEX_SLOTS)
    drafts = [
        keys.key(spec, owner=secrets.token_hex(8)) for spec in (k.OPEN_ISSUES_DRAFT, k.INDEX_SLOTS_DRAFT)
    ]
    for attempt in range(REWRITES):
        with redis_client().pipeline(transaction=True) as pipe:
            if attempt < REWRITES - 1:
                pipe.watch(array)  # type: ignore[no-untyped-call]
            count = _draft_open_issues(repository, drafts)
            pipe.multi()
            # What RENAME replaces is freed on the spot, which takes milliseconds; UNLINK leaves that to a thread.
            pipe.unlink(array, slots)
            pipe.rename(drafts[0], array)
            pipe.persist(array)
            if count:
                pipe.rename(drafts[1], slots)
                pipe.persist(slots)
            try:
                pipe.execute()
                return
            except redis.exceptions.WatchError:
                log.info("open_issues changed while it was rewritten", repository=repository.full_name)


def _draft_open_issues(repository: Repository, drafts: Sequence[str]) -> int:
    client = redis_client()
    rows = Issue.objects.filter(repository=repository, is_open=True).order_by("number")
    written = rows.values_list("number", "raw").iterator(chunk_size=CHUNK)
    live = Assignment.objects.filter(repository=repository, state=AssignmentState.LIVE)
    agents = dict(live.values_list("number", "agent__name"))
    client.unlink(*drafts)
    client.set(drafts[0], "[", ex=k.DRAFT_SECONDS)
    offset = 1
    while part := list(islice(written, CHUNK)):
        texts, places = [], []
        for number, raw in part:
            labelled = relabelled(raw, agents_labels(raw, agents[number])) if number in agents else raw
            text = short_form(labelled).encode()
            length = len(text) + 1 + SPARE_BYTES
            texts.append((b" " if offset == 1 else b",") + text + b" " * SPARE_BYTES)
            places += [str(number), f"{offset}:{length}"]
            offset += length
        pipe = client.pipeline(transaction=False)
        pipe.append(drafts[0], b"".join(texts))
        pipe.hset(drafts[1], items=places)
        pipe.expire(drafts[1], k.DRAFT_SECONDS)
        pipe.execute()
    client.append(drafts[0], "]")
    return offset - 1


def agents_labels(raw: dict[str, Any], agent: str) -> list[str]:
    return labels_at_work(label_names(raw.get("labels")), agent)


def rebuild(repository: Repository, now: datetime) -> int:
    """Build everything of a repository anew from the database, without a moment in which it is empty.

    Of what is right already only ``open_issues`` is written again.
    """
    from tasks.offers.projector import restore_state

    keys = keys_of(repository)
    client = redis_client()
    numbers = set(Issue.objects.filter(repository=repository, is_open=True).values_list("number", flat=True))
    numbers |= set(FixTask.pending(repository).values_list("pull_number", flat=True))
    known = client.hscan_iter(keys.key(k.INDEX_ENTRIES), count=CHUNK)
    stale = {int(number) for number, _entry in known} - numbers
    write_open_issues(repository)
    restore_state(repository, now)
    count = refresh_issues(repository, numbers | stale, now, is_forced=True)
    client.set(keys.key(k.INDEX_READY), index_mark(repository.full_name))
    return count


def rebuild_if_needed(repository: Repository, now: datetime) -> bool:
    """Rebuild if Redis does not have this repository's index, or another's. One process does it at a time."""
    keys = keys_of(repository)
    client = redis_client()
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


def publish_wake(new_offers: list[list[str]]) -> None:
    """Ring once for what is new: a list of role lists, one an offer."""
    redis_client().publish(keyspace().key(k.CHANNEL_WAKE), json.dumps({"offers": new_offers[:5000]}))


def wake_for_bucket(repository: Repository) -> None:
    """The best bucket changed: what is in it now may be news to anybody. Nothing else can be handed out."""
    client, keys = redis_client(), keys_of(repository)
    low, high = "-inf", "+inf"
    if settings.BROKER.priority_gate == "open":
        best = min(map(int, client.hkeys(keys.key(k.INDEX_OPEN))), default=0)
        low, high = str(min(best, LAST_BUCKET) * BUCKET), f"({(min(best, LAST_BUCKET) + 1) * BUCKET}"
    pipe = client.pipeline(transaction=False)
    for queue in QUEUES:
        pipe.zcount(keys.key(k.QUEUE, priority=queue), low, high)
    count = min(sum(pipe.execute()), 5000)
    if count:
        client.publish(keyspace().key(k.CHANNEL_WAKE), json.dumps({"any": count}))


@dataclass(frozen=True)
class ClaimRequest:
    agent: str
    roles: tuple[str, ...]
    token: str
    is_first_check: bool
    only_number: int | None = None


def claim_arguments(request: ClaimRequest, repositories: Sequence[Repository], now: datetime) -> list[Any]:
    """Number of keys, keys and arguments of ``claim.lua``."""
    own = keyspace()
    return [
        2,
        own.key(k.FLAG_MAINTENANCE),
        own.key(k.TEMP, name=f"claim:{request.token}"),
        now.timestamp(),
        request.agent,
        int(request.is_first_check),
        "" if request.only_number is None else request.only_number,
        "\n".join(request.roles or (ANY_ROLE,)),
        _claim_names(repositories),
    ]


# One argument for what is the same in every claim: thirteen names a repository would be put together, encoded
# and sent anew by each of thousands of requests. Kept for the list at hand, which lives for some seconds.
_names_kept: tuple[Sequence[Repository], Keyspace, str, str] | None = None


def _claim_names(repositories: Sequence[Repository]) -> str:
    global _names_kept
    own, gate = keyspace(), str(settings.BROKER.priority_gate)
    kept = _names_kept
    if kept is not None and kept[0] is repositories and kept[1] is own and kept[2] == gate:
        return kept[3]
    lines = [gate, str(k.ISSUE_LOCK_SECONDS), str(CLAIM_MEMORY_SECONDS)]
    whole = (k.INDEX_READY, k.INDEX_ENTRIES, k.INDEX_OPEN, k.INDEX_WAITING, k.INDEX_CLAIMED)
    stems = (k.INDEX_OFFER, k.INDEX_FLOAT, k.ISSUE_LOCK, k.INDEX_WORKING, k.AGENT_CURRENT_TASK)
    for repository in repositories:
        keys = keys_of(repository)
        lines += [keys.key(spec) for spec in whole]
        lines += [keys.key(k.QUEUE, priority=queue) for queue in QUEUES]
        lines += [keys.stem(spec) for spec in stems]
    _names_kept = (repositories, own, gate, "\n".join(lines))
    return _names_kept[3]


def not_offered_reason(subject: Subject) -> Reason | None:
    verdict = classify(subject.facts, settings.BROKER.role_names, review_delay())
    return verdict.reason if isinstance(verdict, NotOffered) else None
