"""The offer index in Redis: what a claim looks at instead of reading issues.

Here is how an entry, a score and the arguments of the scripts look. :mod:`tasks.offers.projector` writes the index,
from the rows; ``lua/claim.lua`` takes from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.flags import OFF_WORDS
from broker_project.lib.redis.keyspace import Keyspace
from tasks.lifecycle import IN_PROGRESS, QUEUE_LIMITS, QUEUES, IssueFacts, Offer, TaskType
from tasks.models import Repository
from tasks.offers.policy import decide

LUA = Path(__file__).parent / "lua"
ANY_ROLE = "*"
CLAIM_MEMORY_SECONDS = 60

# The order inside a bucket as one number: fix first (1 bit), seconds since 2008 (30), issue number (15).
EPOCH_2008 = 1_199_145_600
NUMBER_BITS, SECOND_BITS = 15, 30
BUCKET, LAST_BUCKET = 1 << 46, 127  # the priority stands above the order; what is worse shares the last one


def bucket_scores(priority: int) -> tuple[int, int]:
    """The scores of a priority's bucket: from the first, up to but without the second."""
    place = min(priority, LAST_BUCKET)
    return place * BUCKET, (place + 1) * BUCKET


def order_score(offer: Offer) -> int:
    seconds = min(max(int(offer.updated_at.timestamp()) - EPOCH_2008, 0), (1 << SECOND_BITS) - 1)
    late = 0 if offer.task_type is TaskType.FIX else 1
    number = min(offer.number, (1 << NUMBER_BITS) - 1)
    return (late << (SECOND_BITS + NUMBER_BITS)) | (seconds << NUMBER_BITS) | number


def load_script(name: str) -> str:
    """A script of this folder, behind the rules that all of them share."""
    limits = ", ".join(map(str, QUEUE_LIMITS))
    words = ", ".join(f"['{word}'] = true" for word in sorted(OFF_WORDS))
    constants = (
        f"local BUCKET, LAST_BUCKET = {BUCKET}, {LAST_BUCKET}\n"
        f"local QUEUE_LIMITS = {{{limits}}}\n"
        f"local OFF_WORDS = {{{words}}}\n"
    )
    return constants + (LUA / "prelude.lua").read_text() + (LUA / f"{name}.lua").read_text()


CLAIM = load_script("claim")
CLAIM_ONE = load_script("claim_one")


def keys_of(repository: Repository) -> Keyspace:
    own = keyspace()
    return own if repository.namespace == own.names.namespace else own.sibling(repository.namespace)


def queue_keys(keys: Keyspace) -> list[str]:
    return [keys.key(k.QUEUE, priority=queue) for queue in QUEUES]


def make_entry(facts: IssueFacts, *, counts_as_open: bool) -> dict[str, Any]:
    """What the scripts need to know of an issue; see ``lua/project.lua``."""
    verdict = decide(facts)
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


@dataclass(frozen=True)
class ClaimRequest:
    agent: str
    roles: tuple[str, ...]
    token: str  # of this very claim: a repeated call gets the same answer
    is_first_check: bool


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
        lines += queue_keys(keys)
        lines += [keys.stem(spec) for spec in stems]
    _names_kept = (repositories, own, gate, "\n".join(lines))
    return _names_kept[3]


def claim_one_arguments(
    repository: Repository, number: int, agent: str, token: str, now: datetime
) -> list[Any]:
    """Number of keys, keys and arguments of ``claim_one.lua``."""
    own, keys = keyspace(), keys_of(repository)
    names = [own.key(k.FLAG_MAINTENANCE), own.key(k.TEMP, name=f"claim:{token}")]
    names.append(keys.key(k.ISSUE_LOCK, number=number))
    names += [keys.key(spec) for spec in (k.INDEX_ENTRIES, k.INDEX_WAITING, k.INDEX_CLAIMED)]
    names += queue_keys(keys)
    stems = [keys.stem(spec) for spec in (k.INDEX_OFFER, k.INDEX_FLOAT)]
    return [
        len(names),
        *names,
        now.timestamp(),
        agent,
        k.ISSUE_LOCK_SECONDS,
        CLAIM_MEMORY_SECONDS,
        number,
        *stems,
    ]
