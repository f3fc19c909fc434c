"""Sessions in the database, cached in Redis. Pages work while Redis is away."""

from __future__ import annotations

from typing import Any

from django.contrib.sessions.backends.cached_db import SessionStore as CachedStore
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

AWAY = (ConnectionInterrupted, RedisError)


class SessionStore(CachedStore):
    """Django's own class fails the page if a session from the database cannot be cached.

    Log-out still fails without Redis: a session that stays there would be valid again once Redis is back, so the person
    must learn that it has not ended. The session key that a log-in replaces lets nobody in and may stay.
    """

    def load(self) -> dict[str, Any]:
        try:
            return super().load()
        except AWAY:
            return DatabaseStore.load(self)

    async def aload(self) -> dict[str, Any]:
        try:
            return await super().aload()
        except AWAY:
            return await DatabaseStore.aload(self)

    def exists(self, session_key: str) -> bool:
        try:
            return bool(super().exists(session_key))
        except AWAY:
            return bool(DatabaseStore.exists(self, session_key))

    async def aexists(self, session_key: str) -> bool:
        try:
            return bool(await super().aexists(session_key))
        except AWAY:
            return bool(await DatabaseStore.aexists(self, session_key))

    def delete(self, session_key: str | None = None) -> None:
        try:
            super().delete(session_key)
        except AWAY:
            if session_key in (None, self.session_key):
                raise

    async def adelete(self, session_key: str | None = None) -> None:
        try:
            await super().adelete(session_key)
        except AWAY:
            if session_key in (None, self.session_key):
                raise
