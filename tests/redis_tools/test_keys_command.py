"""``manage.py keys`` as people use it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError

from broker_project.lib.redis.keys import REGISTRY

# Which namespaces are ours is in the table of repositories.
pytestmark = pytest.mark.django_db


def keys(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("keys", *arguments, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def commands_used(store: redis.Redis) -> set[str]:
    info: dict[str, Any] = store.info("commandstats")
    return {name.removeprefix("cmdstat_").split("|")[0] for name in info}


@pytest.fixture
def filled(store: redis.Redis) -> redis.Redis:
    store.set("poppo:issue:1", '{"title": "x"}')
    store.set("poppo:temp:a", "1", ex=500)
    store.set("poppo:session:abc", "secret", ex=500)
    store.set("other:temp:a", "foreign")
    return store


def test_without_an_action_the_whole_table_is_printed() -> None:
    rows = {line.split("\t")[0]: line.split("\t")[1:3] for line in keys()[0].splitlines()}
    assert len(rows) == len(REGISTRY)
    assert rows["poppo:issue_lock_{number}"] == ["string", "600"]
    assert rows["poppo:process:heartbeat:{process}"] == ["string", "1800"]
    assert rows["poppo:issues:completed:today"] == ["set", "local midnight"]


def test_list(filled: redis.Redis) -> None:
    out, _ = keys("list")
    lines = sorted(out.splitlines())
    assert [line.split("\t")[:2] for line in lines] == [
        ["poppo:issue:1", "string"], ["poppo:session:[hidden]", "string"], ["poppo:temp:a", "string"],
    ]  # fmt: skip
    assert lines[0].endswith("\t-")
    assert keys("list", "issue:*")[0] == "poppo:issue:1\tstring\t-\n"
    assert len(keys("list", "--limit", "1")[0].splitlines()) == 1
    assert keys("list", "nothing:*") == ("", "No key matches.\n")


def test_show(filled: redis.Redis) -> None:
    out, _ = keys("show", "issue:1")
    assert "poppo:issue:1" in out
    assert "GitHub's JSON of an open issue" in out
    assert '"title": "x"' in out
    out, _ = keys("show", "poppo:session:abc")
    assert "secret" not in out


def test_usage(filled: redis.Redis) -> None:
    out, _ = keys("usage")
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:]}
    assert rows == {"issue": "1", "temp": "1", "session": "1", "all": "3"}


def test_backup_and_restore(filled: redis.Redis, tmp_path: Path) -> None:
    out, err = keys("backup", str(tmp_path / "b"), "issue:*")
    assert out == f"1 keys written to {tmp_path / 'b'}.\n"
    assert err == "[########################################] 1/1\n"
    with pytest.raises(CommandError, match="1 of 1 keys exist, for instance poppo:issue:1"):
        keys("restore", str(tmp_path / "b"))
    filled.delete("poppo:issue:1")
    out, _ = keys("restore", str(tmp_path / "b"))
    assert out == "1 keys restored, 0 had expired, 0 left alone.\n"
    assert filled.get("poppo:issue:1") == '{"title": "x"}'
    assert keys("restore", str(tmp_path / "b"), "--replace")[0].startswith("1 keys restored")


def test_cleanup(filled: redis.Redis) -> None:
    assert keys("cleanup")[0].splitlines()[0] == "temp:*: 1 removed"
    assert set(filled.scan_iter()) == {"poppo:issue:1", "poppo:session:abc", "other:temp:a"}


def test_check(filled: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys("check")[0] == "3 keys checked, 0 problems.\n"
    assert json.loads(keys("check", "--json")[0])["problems"] == 0
    filled.set("poppo:bogus", "1")
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("keys", "check", "--json", stdout=out)
    assert ended.value.code == 1
    document = json.loads(out.getvalue())
    assert document["findings"] == [
        {
            "problem": "unknown key", "key": "poppo:bogus", "entry": None,
            "detail": "no entry of the registry explains it",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "other:temp:a"], "There is no key other:temp:a of ours."),
        (["show", "issue:9"], "There is no key issue:9 of ours."),
        (["list", ""], "A pattern is one or more printable characters"),
        (["list", "--limit", "0"], "--limit must be 1 or more."),
        (["backup", "/", ""], "A pattern is one or more printable characters"),
        (["backup", "/nowhere/at/all"], "cannot be written"),
        (["restore", "/nowhere/at/all"], "cannot be read"),
        (["backup"], "file"),
        (["dance"], "dance"),
    ],
)
def test_bad_usage_is_one_sentence(filled: redis.Redis, arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError) as caught:
        keys(*arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_redis_that_takes_no_changes_is_one_sentence(filled: redis.Redis) -> None:
    filled.config_set("maxmemory", 1)
    try:
        with pytest.raises(CommandError, match="Redis does not answer as it should"):
            keys("backup", "/tmp/never-written")
    finally:
        filled.config_set("maxmemory", 0)
    assert not Path("/tmp/never-written").exists()


def test_neither_keys_nor_del_is_used(filled: redis.Redis, tmp_path: Path) -> None:
    filled.config_resetstat()
    for action in (["list"], ["usage"], ["check"], ["cleanup"], ["backup", str(tmp_path / "b")]):
        keys(*action)
    keys("restore", str(tmp_path / "b"), "--replace")
    used = commands_used(filled)
    assert {"scan", "unlink", "dump", "restore"} <= used
    assert not used & {"keys", "flushall", "flushdb"}
