"""Whether a key's time to live is what the table says: values in, an answer out."""

from __future__ import annotations

from django.utils.translation import gettext_noop

from broker_project.lib.redis.keys import KeySpec, Life
from broker_project.lib.redis.keyspace import Keyspace
from broker_project.ops.redis_console.sentences import Sentence

DAY_SECONDS = 86400
SLACK_SECONDS = 5  # a TTL is set a moment before it is read, and rounded


def ttl_problem(names: Keyspace, spec: KeySpec, ttl_seconds: int | None) -> Sentence | None:
    """None when all is well. ``ttl_seconds`` None: the key lives for ever."""
    if spec.ttl is Life.OPTIONAL:
        return None
    if spec.ttl is Life.FOREVER:
        if ttl_seconds is None:
            return None
        return Sentence(gettext_noop("expires in %(seconds)d s, should not expire"), {"seconds": ttl_seconds})
    if ttl_seconds is None:
        return Sentence(gettext_noop("never expires, but should"))
    if spec.ttl is Life.LIMITED:
        return None
    longest = DAY_SECONDS if spec.ttl is Life.MIDNIGHT else names.ttl_seconds(spec)
    if ttl_seconds <= longest + SLACK_SECONDS:
        return None
    text = gettext_noop("expires in %(seconds)d s, should within %(longest)d s")
    return Sentence(text, {"seconds": ttl_seconds, "longest": longest})
