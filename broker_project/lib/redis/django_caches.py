"""Django's caches in Redis: keys inside the namespace, values signed, connections also by way of sentinels."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any

from django.conf import settings
from django_redis.pool import ConnectionFactory
from django_redis.serializers.base import BaseSerializer

from broker_project.lib.redis.client import sentinel_pool
from broker_project.lib.redis.urls import is_sentinel

DIGEST_BYTES = 32


def location(redis_url: str, alias: str) -> str:
    """The address of one cache, with a name of its own in it.

    django-redis keeps one pool a URL, whatever the options. Without the name, the first cache to connect would decide
    for all whether answers are text or bytes.
    """
    return f"{redis_url}{'&' if '?' in redis_url else '?'}client_name=broker-{alias}"


def make_key(key: str, key_prefix: str, version: int) -> str:
    """Without the version number that Django would add."""
    return f"{key_prefix}:{key}"


def reverse_key(key: str) -> str:
    return key.split(":", 2)[2]


class CacheConnections(ConnectionFactory[Any, Any, Any]):  # type: ignore[misc]
    """django-redis' factory, for both kinds of URL. It keeps one pool a URL and process."""

    def get_connection_pool(self, params: dict[str, Any]) -> Any:
        given = dict(params)
        if not is_sentinel(given["url"]):
            return super().get_connection_pool(given)
        return sentinel_pool(given.pop("url"), **{**given, **self.pool_cls_kwargs})


class SignedPickle(BaseSerializer):  # type: ignore[misc]
    """Pickles that we signed: whoever else can write to Redis runs nothing here.

    A value whose signature does not fit counts as absent.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.key = hashlib.sha256(b"broker.cache:" + settings.SECRET_KEY.encode()).digest()

    def dumps(self, value: Any) -> bytes:
        body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return self.sign(body) + body

    def loads(self, value: bytes) -> Any:
        digest, body = value[:DIGEST_BYTES], value[DIGEST_BYTES:]
        if not hmac.compare_digest(digest, self.sign(body)):
            return None
        return pickle.loads(body)  # noqa: S301 - the signature is ours

    def sign(self, body: bytes) -> bytes:
        return hmac.digest(self.key, body, "sha256")
