"""How Django's caches are kept in Redis: pickles that we signed. Whoever else can write there runs nothing here."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any

from django.conf import settings
from django_redis.serializers.base import BaseSerializer

DIGEST_BYTES = 32


class SignedPickle(BaseSerializer):  # type: ignore[misc]
    """A value whose signature does not fit is as good as not there: the caller makes it anew."""

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
