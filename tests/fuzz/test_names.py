"""Agent ids and Redis keys: whatever is put in, one key has one meaning and nothing is smuggled into it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from broker_project.lib.redis.keys import REGISTRY, KeySpec, Kind
from broker_project.lib.redis.keyspace import BadKeyField, Keyspace, RedisNames
from tasks.lifecycle import AGENT_ID, PRIORITY, RESERVED, agent_id_problem

ROLES = frozenset({"BACKENDCODER", "レビュー担当"})
anything = st.one_of(
    st.text(max_size=20),
    st.integers(-5, 10**20),
    st.sampled_from(
        ["a", "1", "a:b", "1:2", "*", "", " ", "a\n", "１", "high", "2026-01-01", "\u202e", "{x}", "x" * 600]
    ),
)


@given(st.text(max_size=60))
@example("agent-1\n")  # "$" would have let it by
@example("agent１")  # a digit of another script
@example("P1")
@example("レビュー担当")
def test_an_agent_id_is_a_plain_word_with_no_other_meaning(text: str) -> None:
    if agent_id_problem(text, ROLES):
        return
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,50}", text, re.ASCII)
    assert AGENT_ID.fullmatch(text)
    assert text not in RESERVED | ROLES
    assert not PRIORITY.fullmatch(text)


def filled(keys: Keyspace, spec: KeySpec, values: list[Any]) -> str | None:
    try:
        return keys.key(spec, **dict(zip(spec.fields, values, strict=True)))
    except BadKeyField:
        return None


@pytest.mark.parametrize("prefix", ["poppo:", "", "repo::owner::name:"])
def test_two_inputs_never_give_one_key(prefix: str) -> None:
    keys = Keyspace(RedisNames(task_prefix=prefix))
    stored = [spec for spec in REGISTRY.values() if spec.kind is not Kind.CHANNEL]

    @given(st.data())
    def check(data: st.DataObject) -> None:
        spec = data.draw(st.sampled_from(stored))
        one = data.draw(st.lists(anything, min_size=len(spec.fields), max_size=len(spec.fields)))
        other = data.draw(st.lists(anything, min_size=len(spec.fields), max_size=len(spec.fields)))
        key = filled(keys, spec, one)
        assume(key is not None)
        assert key is not None
        assert not re.search(r"[\x00-\x1f\x7f]", key)
        assert keys.owns(key)
        if [str(value) for value in one] != [str(value) for value in other]:
            assert filled(keys, spec, other) != key

    check()


@given(st.data())
def test_two_entries_of_the_table_never_give_one_key(data: st.DataObject) -> None:
    keys = Keyspace(RedisNames())
    one, other = (data.draw(st.sampled_from(sorted(REGISTRY))) for _ in range(2))
    assume(one != other)
    made = [
        filled(keys, REGISTRY[name], data.draw(st.lists(anything, min_size=n, max_size=n)))
        for name in (one, other)
        for n in [len(REGISTRY[name].fields)]
    ]
    assume(None not in made)
    # ``config:{system}:{name}`` is the family of the one entry that has a name of its own.
    if {one, other} != {"config", "config_github_ratelimit"}:
        assert made[0] != made[1]
