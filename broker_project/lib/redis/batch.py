"""Commands that go to Redis together, as one script: one call, one answer, nothing of others in between.

What MULTI promises, for about half of what its queue of single commands costs: all of it runs, also behind a command
that fails. Scripts may stand among the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha1
from itertools import chain
from pathlib import Path
from typing import Any

import redis

from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace

RUN = (Path(__file__).parent / "lua" / "batch.lua").read_text()

Word = str | int | float
PART_WORDS = 100_000  # of one call; before version 7 Redis hangs up on more than a million


@lru_cache(maxsize=32)
def batch_script(scripts: tuple[str, ...]) -> tuple[str, str]:
    """The whole text with these scripts in it, and its name in Redis."""
    functions = "".join(f"function(KEYS, ARGV)\n{text}\nend,\n" for text in scripts)
    whole = f"local scripts = {{\n{functions}}}\n{RUN}"
    return whole, sha1(whole.encode(), usedforsecurity=False).hexdigest()


class Batch:
    """The methods are named as redis-py names them; what they return comes from :meth:`execute`."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._parts: list[list[Word]] = []
        self._scripts: list[str] = []

    def execute(self) -> list[Any]:
        """The answers of the scripts. Raises ResponseError for the first command that failed.

        A Redis that takes no writes is asked for nothing of it.
        """
        if not self._parts:
            return []
        found = self._send()
        self._parts, self._scripts = [], []
        failures = [part[0] for part in found if part[0]]
        if failures:
            raise redis.exceptions.ResponseError(failures[0])
        return [answer for part in found for answer in part[1:]]

    def _send(self) -> list[list[Any]]:
        text, name = batch_script(tuple(self._scripts))
        nothing = keyspace().key(k.TEMP, name="nothing")
        if len(self._parts) > 1:
            pipe = self._client.pipeline(transaction=True)
            for part in self._parts:
                pipe.eval(text, 1, nothing, *part)
            return pipe.execute()
        try:
            return [self._client.evalsha(name, 1, nothing, *self._parts[0])]
        except redis.exceptions.NoScriptError:
            return [self._client.eval(text, 1, nothing, *self._parts[0])]

    def _put(self, *words: Word) -> None:
        if not self._parts or len(self._parts[-1]) > PART_WORDS:
            self._parts.append([])
        self._parts[-1] += words

    def _add(self, *words: Word) -> None:
        self._put(len(words), *words)

    def eval(self, script: str, number_of_keys: int, *words: Word) -> None:
        if script not in self._scripts:
            self._scripts.append(script)
        place = self._scripts.index(script) + 1
        self._put(0, place, number_of_keys, len(words) - number_of_keys, *words)

    def set(self, key: str, value: Word, ex: int | None = None) -> None:
        if ex is None:
            self._add("SET", key, value)
        else:
            self._add("SET", key, value, "EX", ex)

    def hset(self, key: str, mapping: Mapping[str, Word]) -> None:
        self._add("HSET", key, *chain.from_iterable(mapping.items()))

    def hdel(self, key: str, *fields: str) -> None:
        self._add("HDEL", key, *fields)

    def hincrby(self, key: str, field: str, amount: int) -> None:
        self._add("HINCRBY", key, field, amount)

    def sadd(self, key: str, *members: Word) -> None:
        self._add("SADD", key, *members)

    def srem(self, key: str, *members: Word) -> None:
        self._add("SREM", key, *members)

    def delete(self, *keys: str) -> None:
        self._add("DEL", *keys)

    def expire(self, key: str, seconds: int) -> None:
        self._add("EXPIRE", key, seconds)

    def expireat(self, key: str, moment: int) -> None:
        self._add("EXPIREAT", key, moment)

    def persist(self, key: str) -> None:
        self._add("PERSIST", key)

    def publish(self, channel: str, text: str) -> None:
        self._add("PUBLISH", channel, text)
