from __future__ import annotations

import json

import pytest
import redis

from broker_project.lib.config.dynamic import clear_flag, load_snapshot, maintenance, set_flag
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import keyspace
from broker_project.lib.redis.flags import Flag, parse_flag

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


def test_switching(store: redis.Redis) -> None:
    assert not load_snapshot().maintenance.is_on
    set_flag(k.FLAG_MAINTENANCE, " 引っ越し中 ")
    assert json.loads(str(store.get("poppo:flags:maintenance"))) == {"reason": "引っ越し中"}
    assert load_snapshot().maintenance == Flag(True, "引っ越し中")
    assert maintenance() == Flag(True, "引っ越し中")
    clear_flag(k.FLAG_MAINTENANCE)
    assert not store.exists(keyspace().key(k.FLAG_MAINTENANCE))
    assert not maintenance().is_on
