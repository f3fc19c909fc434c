"""The ``mirin`` pair of channels (seed 002): requests heard on one, answered on the other.

``{requestId, action, …}`` → ``{requestId, timestamp, success, …}``, or ``success: false`` with ``error`` and
``message``. Every repository has the pair under its own namespace.

Publishing is no queue: a request that nobody hears is gone. So askers wait 30 s and send it again with the
same ``requestId``; it is carried out once, and answered with the same response for an hour. Several listeners
may run. One of them handles a request; if that one dies, the repetition goes to another.
"""

from __future__ import annotations

import json
import random
import secrets
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone
from redis.exceptions import RedisError

from broker_project.lib.errors import ActionRefused
from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import CONNECT_SECONDS, connect, keyspace, redis_client
from tasks.mirin.actions import perform
from tasks.models import Repository
from tasks.offers.index import keys_of
from tasks.repositories import enabled_repositories

log = get_logger(__name__)

CLAIM_REQUEST = (Path(__file__).parent / "lua" / "mirin_request.lua").read_text()
MAX_BYTES = 64 * 1024
MAX_ANSWERED_BYTES = 1024 * 1024  # larger ones are not even looked into for whom to tell
MAX_REQUEST_ID = 90
LOOK_SECONDS = 0.3  # between two looks whether to stop, or to listen elsewhere
LIFE_SECONDS = 15
PAUSE_SECONDS = (0.5, 2.0)  # at random, before the next try to reach Redis or the database


def read_request(data: bytes) -> dict[str, Any] | None:
    """The request, or None if there is nobody to answer; that is logged."""
    if len(data) > MAX_ANSWERED_BYTES:
        log.warning("mirin request too large", bytes=len(data))
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        log.warning("mirin request is no JSON", error=str(error)[:200])
        return None
    request_id = document.get("requestId") if isinstance(document, dict) else None
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= MAX_REQUEST_ID:
        log.warning("mirin request without a usable requestId", start=repr(data[:200]))
        return None
    if not request_id.isprintable():
        log.warning("mirin request without a usable requestId", start=repr(data[:200]))
        return None
    found: dict[str, Any] = document
    return found


class Listener:
    """Hears requests and answers them, one after the other, until ``stop`` is called."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(6)
        self.stopping = threading.Event()
        self.channels: dict[str, Repository] = {}

    def stop(self) -> None:
        """End after the request in hand. Safe to call from a signal handler or another thread."""
        self.stopping.set()

    def run(self) -> None:
        alive = threading.Thread(target=self._show_life, name="mirin-life", daemon=True)
        alive.start()
        while not self.stopping.is_set():
            try:
                self._listen()
            except (RedisError, DatabaseError) as error:
                log.warning("mirin does not hear", error=str(error))
                self.stopping.wait(random.uniform(*PAUSE_SECONDS))  # noqa: S311 - no secret
        alive.join()

    def _listen(self) -> None:
        # Bytes: what others publish need not be text.
        client = connect(
            settings.REDIS_URL,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=5,
            health_check_interval=10,
        )
        self.channels = {}
        try:
            with client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
                while not self.stopping.is_set():
                    self._follow(pubsub)
                    message = pubsub.get_message(timeout=LOOK_SECONDS)
                    if message is not None and message["type"] == "message":
                        self.hear(message["channel"].decode(), message["data"])
        finally:
            client.close()

    def _follow(self, pubsub: redis.client.PubSub) -> None:
        """Listen for the repositories that are enabled now."""
        close_old_connections()
        spec = k.CHANNEL_MIRIN_REQUESTS
        wanted = {keys_of(repository).key(spec): repository for repository in enabled_repositories()}
        if fresh := wanted.keys() - self.channels.keys():
            pubsub.subscribe(*fresh)
            log.info("mirin listens", channels=sorted(wanted))
        if gone := self.channels.keys() - wanted.keys():
            pubsub.unsubscribe(*gone)  # type: ignore[no-untyped-call]
        self.channels = wanted

    def hear(self, channel: str, data: bytes) -> None:
        """Handle one publication. Raises what Redis or the database raise; the asker repeats it then."""
        repository = self.channels.get(channel)
        document = read_request(data)
        if repository is None or document is None:
            return
        request_id = str(document["requestId"])
        found = self._claim(repository, request_id)
        if found[0] == "repeat":
            redis_client().publish(keys_of(repository).key(k.CHANNEL_MIRIN_RESPONSES), found[1])
        elif found[0] == "handle":
            now = timezone.now()
            response, is_final = self._respond(repository, document, len(data), now)
            self._publish(repository, request_id, response, is_final)

    def _record_key(self, repository: Repository, request_id: str) -> str:
        return keys_of(repository).key(k.TEMP, name=f"mirin:request:{request_id}")

    @staticmethod
    def _life_key(listener: str) -> str:
        return keyspace().key(k.TEMP, name=f"mirin:listener:{listener}")

    def _claim(self, repository: Repository, request_id: str) -> Sequence[Any]:
        names = [self._record_key(repository, request_id), self._life_key(self.name)]
        seconds = keyspace().ttl_seconds(k.TEMP)
        found: Sequence[Any] = redis_client().eval(
            CLAIM_REQUEST, len(names), *names, self.name, self._life_key(""), seconds, LIFE_SECONDS
        )
        return found

    def _respond(
        self, repository: Repository, document: dict[str, Any], size: int, now: datetime
    ) -> tuple[dict[str, Any], bool]:
        """The response, and whether a repetition is to get the same."""
        head = {"requestId": document["requestId"], "timestamp": now.isoformat()}
        try:
            if size > MAX_BYTES:
                raise ActionRefused(f"A request may have {MAX_BYTES} bytes.", code="too_large")
            return {**head, "success": True, **perform(repository, document, now)}, True
        except ActionRefused as refusal:
            refused = {"success": False, "error": refusal.code, "message": str(refusal)}
            log.info("mirin refused", action=str(document.get("action"))[:50], code=refusal.code)
            return {**head, **refused}, refusal.is_final
        except (RedisError, DatabaseError):
            raise
        except Exception:
            log.exception("mirin request failed", action=str(document.get("action"))[:50])
            message = "Something went wrong here; it was written down."
            return {**head, "success": False, "error": "internal", "message": message}, False

    def _publish(
        self, repository: Repository, request_id: str, response: dict[str, Any], is_final: bool
    ) -> None:
        """Remember the response and send it, in one step."""
        text = json.dumps(response, ensure_ascii=False)
        key = self._record_key(repository, request_id)
        pipe = redis_client().pipeline(transaction=True)
        if is_final:
            record = json.dumps({"listener": self.name, "response": text}, ensure_ascii=False)
            pipe.set(key, record, ex=keyspace().ttl_seconds(k.TEMP))
        else:
            pipe.delete(key)
        pipe.publish(keys_of(repository).key(k.CHANNEL_MIRIN_RESPONSES), text)
        pipe.execute()

    def _show_life(self) -> None:
        """So that others leave our requests alone, and only as long as we live."""
        key = self._life_key(self.name)
        while True:
            try:
                if self.stopping.is_set():
                    redis_client().delete(key)
                    return
                redis_client().set(key, "1", ex=LIFE_SECONDS)
            except RedisError as error:
                log.warning("mirin cannot show that it lives", error=str(error))
                if self.stopping.is_set():
                    return
            self.stopping.wait(LIFE_SECONDS / 3)
