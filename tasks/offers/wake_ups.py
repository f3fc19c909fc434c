"""Tell waiting requests what has come on offer: as many are woken as there is new work."""

from __future__ import annotations

import json
from collections.abc import Sequence

from django.conf import settings

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace, redis_client
from tasks.lifecycle import Gate
from tasks.models import Repository
from tasks.offers.index import bucket_scores, keys_of, queue_keys

MAX_WAKE_UPS = 5000  # of one message; the waiters' own looks find the rest


def wake_for_offers(new_offers: Sequence[Sequence[str]]) -> None:
    """One message for what is new: a list of role lists, one an offer."""
    _publish({"offers": new_offers[:MAX_WAKE_UPS]})


def wake_for_best_bucket(repository: Repository) -> None:
    """The best bucket changed: what is in it now may be news to anybody. Nothing else can be handed out."""
    client, keys = redis_client(), keys_of(repository)
    lowest, end = "-inf", "+inf"
    if settings.BROKER.priority_gate == Gate.OPEN:
        best = min(map(int, client.hkeys(keys.key(k.INDEX_OPEN))), default=0)
        first, beyond = bucket_scores(best)
        lowest, end = str(first), f"({beyond}"
    pipe = client.pipeline(transaction=False)
    for queue in queue_keys(keys):
        pipe.zcount(queue, lowest, end)
    if count := min(sum(pipe.execute()), MAX_WAKE_UPS):
        _publish({"any": count})


def _publish(message: dict[str, object]) -> None:
    redis_client().publish(keyspace().key(k.CHANNEL_WAKE), json.dumps(message))
