"""The offer index in Redis: what a claim looks at instead of reading issues.

Everything here is derived from the database and can be built again at any time. ``refresh_issues`` brings the
caches and the index in line with the rows of some numbers; ``rebuild`` does it for a whole repository.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import redis
from django.conf import settings

from broker_project.lib import keyspace as k
from broker_project.lib.dynamic_config import REVIEW_DELAY_MINUTES, value_of
from broker_project.lib.keyspace import Keyspace
from broker_project.lib.locks import LockHeld, held_lock, new_owner
from broker_project.lib.logs import get_logger
from broker_project.lib.stores import keyspace, redis_client
from tasks.facts import Subject, subjects
from tasks.gates import index_mark
from tasks.lifecycle import IN_PROGRESS, NEEDS_REVIEW, NotOffered, Offer, TaskType, classify
from tasks.models import FixTask, Issue, Repository

log = get_logger(__name__)

LUA = Path(__file__).parent / "lua"
PUT = (LUA / "index_put.lua").read_text()
CLAIM = (LUA / "claim.lua").read_text()
OPEN_ISSUES = (LUA / "open_issues.lua").read_text()
HEARTBEAT = (LUA / "heartbeat.lua").read_text()

QUEUES = ("high", "normal", "low")
ANY_ROLE = "*"
CHUNK = 500  # entries a script call: keeps every single call short for other readers
SPARE_BYTES = 160  # room for a few more labels in a slot of open_issues
CLAIM_MEMORY_SECONDS = 60

# The order inside a bucket as one number: fix first (1 bit), seconds since 2008 (30), issue number (15).
EPOCH_2008 = 1_199_145_600
NUMBER_BITS, SECOND_BITS = 15, 30


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


def make_entry(subject: Subject) -> dict[str, Any]:
    """What the scripts need to know of an issue; see ``lua/index_put.lua``."""
    facts = subject.facts
    verdict = classify(facts, settings.BROKER.role_names, review_delay())
    counted = facts.priority if subject.counts_as_open and facts.priority is not None else -1
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


@dataclass(frozen=True)
class PutResult:
    new_offers: list[list[str]]
    is_best_changed: bool


def put_arguments(
    keys: Keyspace, entries: Iterable[tuple[int, dict[str, Any] | None]], now: datetime
) -> list[Any]:
    """Number of keys, keys and arguments of ``index_put.lua``. An entry of None takes the number out."""
    names = [keys.key(spec) for spec in (k.INDEX_ENTRIES, k.INDEX_OPEN, k.INDEX_WAITING, k.INDEX_CLAIMED)]
    names += [keys.key(k.QUEUE, priority=queue) for queue in QUEUES]
    stems = [keys.stem(spec) for spec in (k.INDEX_OFFER, k.INDEX_FLOAT, k.INDEX_WORKING)]
    pairs: list[Any] = []
    for number, entry in entries:
        pairs += [
            number,
            "" if entry is None else json.dumps(entry, separators=(",", ":"), ensure_ascii=False),
        ]
    return [len(names), *names, *stems, now.timestamp(), *pairs]


def parse_put(answer: Sequence[Any]) -> PutResult:
    return PutResult(json.loads(answer[2]) if answer[0] else [], bool(answer[1]))


def refresh_issues(repository: Repository, numbers: Collection[int], now: datetime) -> int:
    """Bring Redis in line with the rows of these numbers, and wake as many waiters as work came on offer.

    Returns how many came on offer. Closed issues leave. Safe to call at any time, from any process.
    """
    wanted = sorted(set(numbers))
    new_offers: list[list[str]] = []
    is_best_changed = False
    for start in range(0, len(wanted), CHUNK):
        part = wanted[start : start + CHUNK]
        result = _refresh_chunk(repository, part, now)
        new_offers += result.new_offers
        is_best_changed |= result.is_best_changed
    if is_best_changed:
        wake_for_bucket(repository)
    elif new_offers:
        publish_wake(new_offers)
    return len(new_offers)


def _refresh_chunk(repository: Repository, numbers: Sequence[int], now: datetime) -> PutResult:
    keys = keys_of(repository)
    found = {subject.facts.number: subject for subject in subjects(repository, numbers)}
    raws = dict(
        Issue.objects.filter(repository=repository, is_open=True, number__in=numbers).values_list(
            "number", "raw"
        )
    )
    entries = [(number, make_entry(found[number]) if number in found else None) for number in numbers]
    pipe = redis_client().pipeline(transaction=True)
    pipe.eval(PUT, *put_arguments(keys, entries, now))
    for number in numbers:
        cache_issue(pipe, keys, found.get(number), raws.get(number), number)
    queue_slots(pipe, keys, {number: raws.get(number) for number in numbers})
    *answers, slots_fit = pipe.execute()
    if not slots_fit:
        write_open_issues(repository)
    return parse_put(answers[0])


def cache_issue(
    pipe: redis.client.Pipeline,
    keys: Keyspace,
    subject: Subject | None,
    raw: dict[str, Any] | None,
    number: int,
) -> None:
    """Queue the commands that keep seed 000's keys of one issue right."""
    detected_keys = [keys.key(spec, number=number) for spec in (k.REVIEW_DETECTED, k.REVIEW_DELAY)]
    if raw is None:
        pipe.delete(keys.key(k.ISSUE, number=number), *detected_keys)
        return
    pipe.set(keys.key(k.ISSUE, number=number), json.dumps(raw, ensure_ascii=False))
    detected_at = subject.issue.review_detected_at if subject and subject.issue else None
    if detected_at and NEEDS_REVIEW in (subject.facts.labels if subject else ()):
        for key in detected_keys:
            pipe.set(key, detected_at.isoformat())
    else:
        pipe.delete(*detected_keys)


def short_form(raw: dict[str, Any]) -> str:
    """An issue inside ``open_issues``: GitHub's own fields, without the body (that is in ``issue:{n}``)."""
    kept = ("id", "number", "title", "html_url", "state", "created_at", "updated_at")
    short = {name: raw[name] for name in kept if name in raw}
    short["labels"] = [{"name": label["name"]} for label in raw.get("labels", [])]
    return json.dumps(short, ensure_ascii=False, separators=(",", ":"))


def queue_slots(pipe: redis.client.Pipeline, keys: Keyspace, raws: dict[int, dict[str, Any] | None]) -> None:
    pairs: list[Any] = []
    for number, raw in raws.items():
        pairs += [number, short_form(raw) if raw is not None else ""]
    pipe.eval(OPEN_ISSUES, 2, keys.key(k.OPEN_ISSUES), keys.key(k.INDEX_SLOTS), SPARE_BYTES, *pairs)


def write_open_issues(repository: Repository) -> None:
    """Write ``open_issues`` anew in one MULTI; readers see the old array or the new one."""
    keys = keys_of(repository)
    rows = (
        Issue.objects.filter(repository=repository, is_open=True)
        .order_by("number")
        .values_list("number", "raw")
    )
    parts, slots, offset = [], {}, 1
    for number, raw in rows.iterator(chunk_size=1000):
        text = short_form(raw).encode()
        length = len(text) + 1 + SPARE_BYTES
        parts.append((b" " if offset == 1 else b",") + text + b" " * SPARE_BYTES)
        slots[str(number)] = f"{offset}:{length}"
        offset += length
    pipe = redis_client().pipeline(transaction=True)
    pipe.set(keys.key(k.OPEN_ISSUES), b"[" + b"".join(parts) + b"]")
    pipe.delete(keys.key(k.INDEX_SLOTS))
    if slots:
        pipe.hset(keys.key(k.INDEX_SLOTS), items=[part for slot in slots.items() for part in slot])
    pipe.execute()


def rebuild(repository: Repository, now: datetime) -> int:
    """Build everything of a repository anew from the database, without a moment in which it is empty."""
    from tasks.state import restore_state

    keys = keys_of(repository)
    client = redis_client()
    numbers = set(Issue.objects.filter(repository=repository, is_open=True).values_list("number", flat=True))
    numbers |= set(FixTask.pending(repository).values_list("pull_number", flat=True))
    stale = {int(number) for number in client.hkeys(keys.key(k.INDEX_ENTRIES))} - numbers
    write_open_issues(repository)
    restore_state(repository, now)
    count = refresh_issues(repository, numbers | stale, now)
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
    """The best bucket changed: whatever is in it now may be news to anybody."""
    client, keys = redis_client(), keys_of(repository)
    pipe = client.pipeline(transaction=False)
    for queue in QUEUES:
        pipe.zcard(keys.key(k.QUEUE, priority=queue))
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
    names = [own.key(k.FLAG_MAINTENANCE), own.key(k.TEMP, name=f"claim:{request.token}")]
    roles = request.roles or (ANY_ROLE,)
    rest: list[Any] = [
        now.timestamp(),
        request.agent,
        k.ISSUE_LOCK_SECONDS,
        settings.BROKER.priority_gate,
        int(request.is_first_check),
        "" if request.only_number is None else request.only_number,
        CLAIM_MEMORY_SECONDS,
        len(roles),
        *roles,
    ]
    for repository in repositories:
        keys = keys_of(repository)
        specs = (k.INDEX_READY, k.INDEX_ENTRIES, k.INDEX_OPEN, k.INDEX_WAITING, k.INDEX_CLAIMED)
        names += [keys.key(spec) for spec in specs]
        names += [keys.key(k.QUEUE, priority=queue) for queue in QUEUES]
        names.append(keys.key(k.INDEX_WORKING, label=request.agent))
        rest += [keys.stem(spec) for spec in (k.INDEX_OFFER, k.INDEX_FLOAT, k.ISSUE_LOCK)]
        rest.append(keys.key(k.AGENT_CURRENT_TASK, agent=request.agent))
    return [len(names), *names, *rest]


def not_offered_reason(subject: Subject) -> str:
    verdict = classify(subject.facts, settings.BROKER.role_names, review_delay())
    return verdict.reason if isinstance(verdict, NotOffered) else ""
