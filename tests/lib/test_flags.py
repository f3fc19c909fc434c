from __future__ import annotations

import json

import pytest
import redis

from broker_project.lib.config.dynamic import clear_flag, load_snapshot, maintenance, set_flag
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.flags import LUA_FLAG_IS_ON, Flag, parse_flag

VALUES: list[tuple[str | None, Flag]] = [
    (None, Flag(False)),
    ("", Flag(False)),
    ("0", Flag(False)),
    ("false", Flag(False)),
    ("OFF", Flag(False)),
    ("null", Flag(False)),
    ("1", Flag(True)),
    ("true", Flag(True)),
    (" True ", Flag(True)),
    ("yes", Flag(True)),
    ("{}", Flag(True)),
    ('{"reason": "moving house"}', Flag(True, "moving house")),
    ('{"reason": null}', Flag(True)),
    ('{"reason": 7}', Flag(True, "7")),
    ('{"reason": "' + "x" * 900 + '"}', Flag(True, "x" * 500)),
    ("{broken", Flag(True)),
    ("[" * 100_000, Flag(True)),
    ("[]", Flag(True)),
    (" off\n", Flag(False)),
]


@pytest.mark.parametrize(("value", "flag"), VALUES)
def test_what_a_stored_value_means(value: str | None, flag: Flag) -> None:
    assert parse_flag(value) == flag


@pytest.mark.parametrize(("value", "flag"), VALUES)
def test_scripts_read_a_value_the_same_way(store: redis.Redis, value: str | None, flag: Flag) -> None:
    if value is not None:
        store.set("flag", value)
    script = LUA_FLAG_IS_ON + "return flag_is_on(redis.call('GET', KEYS[1])) and 1 or 0"
    assert bool(store.eval(script, 1, "flag")) == flag.is_on


def test_switching(store: redis.Redis) -> None:
    assert not load_snapshot().maintenance.is_on
    set_flag(k.FLAG_MAINTENANCE, " 引っ越し中 ")
    assert json.loads(str(store.get("poppo:flags:maintenance"))) == {"reason": "引っ越し中"}
    assert load_snapshot().maintenance == Flag(True, "引っ越し中")
    assert maintenance() == Flag(True, "引っ越し中")
    clear_flag(k.FLAG_MAINTENANCE)
    assert not store.exists(keyspace().key(k.FLAG_MAINTENANCE))
    assert not maintenance().is_on
