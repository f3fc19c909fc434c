"""Backups: everything comes back as it was, nothing is overwritten or half done, a damaged file changes
nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import redis

from broker_project.lib.redis.client import raw_client
from broker_project.lib.redis.locks import LockHeld
from broker_project.ops.redis_console.backup import restore_backup, write_backup
from broker_project.ops.redis_console.backup_file import BadBackup, read_heading, read_keys

# Which namespaces are ours is in the table of repositories.
pytestmark = pytest.mark.django_db


def fill(store: redis.Redis) -> None:
    store.set("poppo:issue:1", '{"title": "題"}')
    store.hset("poppo:issue:status:1", mapping={"status": "open"})
    store.zadd("poppo:queue:high", {"1": 1.5, "2": 2})
    store.sadd("poppo:issues:processing", "1", "2")
    store.rpush("poppo:metrics:memory:history", "a", "b")
    store.set("poppo:temp:x", b"\x00\xff binary", ex=1000)
    store.set("poppo:cache:\xe9", "latin")
    store.set("other:issue:1", "foreign")


def contents(store: redis.Redis) -> dict[str, tuple[bytes | None, bool]]:
    raw = raw_client()
    return {key: (raw.dump(key), store.ttl(key) >= 0) for key in store.scan_iter()}


def test_everything_comes_back(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    before = contents(store)
    path = tmp_path / "backup"
    seen: list[tuple[int, int]] = []
    assert write_backup(raw_client(), path, progress=lambda done, total: seen.append((done, total))) == 7
    assert seen[-1] == (7, 7)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["backup"]
    assert read_heading(path).namespaces == ["poppo"]
    store.flushall()
    report = restore_backup(raw_client(), path)
    assert (report.restored, report.expired, report.left_alone) == (7, 0, 0)
    del before["other:issue:1"]
    assert contents(store) == before
    assert 0 < store.ttl("poppo:temp:x") <= 1000


def test_a_pattern_limits_the_backup(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    assert write_backup(raw_client(), tmp_path / "b", "issue:*") == 2
    names = {stored.key for stored in read_keys(tmp_path / "b")}
    assert names == {b"poppo:issue:1", b"poppo:issue:status:1"}


def test_nothing_is_overwritten_unless_told(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    write_backup(raw_client(), tmp_path / "b")
    store.set("poppo:issue:1", "newer")
    store.delete("poppo:queue:high")
    with pytest.raises(BadBackup, match="6 of 7 keys exist"):
        restore_backup(raw_client(), tmp_path / "b")
    assert store.get("poppo:issue:1") == "newer"
    assert not store.exists("poppo:queue:high")
    assert restore_backup(raw_client(), tmp_path / "b", replace=True).restored == 7
    assert store.get("poppo:issue:1") == '{"title": "題"}'
    assert store.get("other:issue:1") == "foreign"


def test_what_has_expired_since_stays_away(store: redis.Redis, tmp_path: Path) -> None:
    store.set("poppo:temp:x", "v", px=300)
    store.set("poppo:issue:1", "{}")
    write_backup(raw_client(), tmp_path / "b")
    for _ in range(500):
        if not store.exists("poppo:temp:x"):
            break
        store.execute_command("WAIT", "1", "20")  # twenty milliseconds of the server's own clock
    store.delete("poppo:issue:1")
    report = restore_backup(raw_client(), tmp_path / "b")
    assert (report.restored, report.expired) == (1, 1)


def test_the_lock_of_the_backup_is_not_in_it_and_is_let_go(store: redis.Redis, tmp_path: Path) -> None:
    write_backup(raw_client(), tmp_path / "b", name="daily")
    assert list(read_keys(tmp_path / "b")) == []
    assert store.dbsize() == 0
    store.set("poppo:lock:backup:daily", "another", ex=60)
    with pytest.raises(LockHeld):
        write_backup(raw_client(), tmp_path / "c", name="daily")
    assert os.listdir(tmp_path) == ["b"]


def spoilt(path: Path, change: str) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    heading = json.loads(lines[0])
    if change == "flipped":
        start = lines[1].index(b'"dump":"') + len(b'"dump":"')
        other = b"B" if lines[1][start : start + 1] == b"A" else b"A"
        lines[1] = lines[1][:start] + other + lines[1][start + 1 :]
    elif change == "missing line":
        del lines[1]
    elif change == "cut off":
        lines = lines[:-1]
    elif change == "more":
        lines.append(b"x")
    elif change == "half a line":
        lines[1] = lines[1][:20]
    elif change == "version":
        lines[0] = json.dumps({**heading, "version": 2}).encode() + b"\n"
    elif change == "format":
        lines[0] = b'{"format":"other"}\n'
    elif change == "heading":
        lines[0] = b'{"format":"broker-keys","version":1}\n'
    elif change == "empty":
        lines = []
    elif change == "text":
        lines = [b"hello\n"]
    path.write_bytes(b"".join(lines))


CHANGES = [
    "flipped",
    "missing line",
    "cut off",
    "more",
    "half a line",
    "version",
    "format",
    "heading",
    "empty",
    "text",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_file_changes_nothing(store: redis.Redis, tmp_path: Path, change: str) -> None:
    fill(store)
    path = tmp_path / "b"
    write_backup(raw_client(), path)
    spoilt(path, change)
    store.flushall()
    with pytest.raises(BadBackup) as caught:
        restore_backup(raw_client(), path)
    assert str(caught.value).endswith(".")
    assert store.dbsize() == 0


def test_keys_of_others_are_never_written(store: redis.Redis, tmp_path: Path) -> None:
    import base64
    import hashlib

    dump = base64.b64encode(b"x").decode()
    lines = [
        {"format": "broker-keys", "version": 1, "namespaces": ["poppo"], "made_at": "", "server": ""},
        {"key": base64.b64encode(b"other:x").decode(), "expires_at_ms": None, "dump": dump},
    ]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    last = {"keys": 1, "sha256": hashlib.sha256(body).hexdigest()}
    path = tmp_path / "b"
    path.write_bytes(body + json.dumps(last).encode() + b"\n")
    with pytest.raises(BadBackup, match="other:x, which is not a key of this installation"):
        restore_backup(raw_client(), path, replace=True)
    assert store.dbsize() == 0
    path.write_bytes(path.read_bytes().replace(base64.b64encode(b"other:x"), base64.b64encode(b"poppo:x")))
    with pytest.raises(BadBackup, match="checksum"):
        restore_backup(raw_client(), path, replace=True)


def test_a_value_that_the_server_refuses_is_named(store: redis.Redis, tmp_path: Path) -> None:
    from broker_project.ops.redis_console.backup_file import Heading, StoredKey, new_backup

    with new_backup(tmp_path / "b") as writer:
        writer.heading(Heading(["poppo"], "", ""))
        writer.add(StoredKey(b"poppo:issue:1", b"nonsense", None))
    with pytest.raises(BadBackup, match="poppo:issue:1 was refused by the server"):
        restore_backup(raw_client(), tmp_path / "b")


def test_files_that_are_no_backups_are_not_replaced(store: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("dear reader")
    with pytest.raises(BadBackup, match="not a backup; choose another name"):
        write_backup(raw_client(), path)
    assert path.read_text() == "dear reader"
    with pytest.raises(BadBackup, match="not a file"):
        write_backup(raw_client(), tmp_path)
    with pytest.raises(BadBackup, match="cannot be written"):
        write_backup(raw_client(), tmp_path / "none" / "b")
    with pytest.raises(BadBackup, match="cannot be read"):
        restore_backup(raw_client(), tmp_path / "none")


def test_a_backup_that_fails_leaves_the_earlier_one(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    path = tmp_path / "b"
    write_backup(raw_client(), path)
    before = path.read_bytes()

    def fail(done: int, total: int) -> None:
        raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError):
        write_backup(raw_client(), path, progress=fail)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["b"]
    assert not store.exists("poppo:lock:backup:manual")
