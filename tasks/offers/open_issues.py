"""``open_issues``: the JSON array of all open issues (seed 001).

Single issues are changed inside the array by ``lua/project.lua``; here it is written anew.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import islice

import redis

from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import redis_client
from tasks.github.answers import label_names, relabelled
from tasks.lifecycle import AssignmentState, labels_at_work
from tasks.models import Assignment, Issue, Repository
from tasks.offers.index import keys_of
from tasks.offers.redis_view import short_form

log = get_logger(__name__)

CHUNK = 500  # issues read from the database at a time
REWRITES = 3  # should others change it meanwhile; the last one stands
SPARE_BYTES = 160  # room for a few more labels in a slot


def write_open_issues(repository: Repository) -> None:
    """Write the array anew; readers see the old one or the new one.

    It is put together beside the old one and takes its place in one MULTI, so that even a hundred thousand issues
    keep no other reader waiting. Whoever changes the old one meanwhile makes us begin again.
    """
    keys = keys_of(repository)
    array, slots = keys.key(k.OPEN_ISSUES), keys.key(k.INDEX_SLOTS)
    owner = secrets.token_hex(8)
    drafts = [keys.key(spec, owner=owner) for spec in (k.OPEN_ISSUES_DRAFT, k.INDEX_SLOTS_DRAFT)]
    for attempt in range(REWRITES):
        with redis_client().pipeline(transaction=True) as pipe:
            if attempt < REWRITES - 1:
                pipe.watch(array)  # type: ignore[no-untyped-call]
            length = _draft_open_issues(repository, drafts)
            pipe.multi()
            # What RENAME replaces is freed on the spot, which takes milliseconds; UNLINK leaves that to a thread.
            pipe.unlink(array, slots)
            pipe.rename(drafts[0], array)
            pipe.persist(array)
            if length:
                pipe.rename(drafts[1], slots)
                pipe.persist(slots)
            try:
                pipe.execute()
                return
            except redis.exceptions.WatchError:
                log.info("open_issues changed while it was rewritten", repository=repository.full_name)


def _draft_open_issues(repository: Repository, drafts: Sequence[str]) -> int:
    """Length of what stands between the brackets."""
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
            if number in agents:
                raw = relabelled(raw, labels_at_work(label_names(raw.get("labels")), agents[number]))
            text = short_form(raw).encode()
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
