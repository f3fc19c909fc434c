"""Backups of keys: everything comes back, nothing is overwritten or half done, a damaged file changes nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import redis

from broker_project.lib.redis.client import raw_client
from broker_project.lib.redis.locks import LockHeld
from broker_project.ops.backups.archive import KEYS, BadBackup, Heading, unpack, write_archive
from broker_project.ops.backups.keys import StoredKey, backup_keys, read_keys, restore_keys

# Which namespaces are ours is in the table of repositories.
pytestmark = pytest.mark.django_db

BEFORE = Path(__file__).parent.parent / "data" / "backups" / "keys.jsonl"  # as commit 1f20db6 wrote it


def fill(store: redis.Redis) -> None:
    store.set("poppo:issue:1", '{"title": "題"}')
    store.hset("poppo:issue:status:1", mapping={"status": "open"})
    store.zadd("poppo:queue:high", {"1": 1.5, "2": 2})
    store.sadd("poppo:issues:processing", "1", "2")
    store.rpush("poppo:metrics:memory:history", "a", "b")
    store.set("poppo:temp:x", b"\x00\xff binary", ex=1000)
    store.set("poppo:cache:\xe9", "latin")
    store.set("other:issue:1", "foreign")


def keys_in(path: Path) -> list[StoredKey]:
    folder = Path(tempfile.mkdtemp(dir=path.parent))
    found = list(read_keys(unpack(path, folder)[1][KEYS]))
    shutil.rmtree(folder)
    return found


def contents(store: redis.Redis) -> dict[str, tuple[bytes | None, bool]]:
    raw = raw_client()
    return {key: (raw.dump(key), store.ttl(key) >= 0) for key in store.scan_iter()}


def test_everything_comes_back(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    before = contents(store)
    path = tmp_path / "backup"
    seen: list[tuple[int, int]] = []
    assert backup_keys(raw_client(), path, progress=lambda done, total: seen.append((done, total))) == 7
    assert seen[-1] == (7, 7)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["backup"]
    store.flushall()
    report = restore_keys(raw_client(), path)
    assert (report.restored, report.expired, report.left_alone) == (7, 0, 0)
    del before["other:issue:1"]
    assert contents(store) == before
    assert 0 < store.ttl("poppo:temp:x") <= 1000


def test_a_pattern_limits_the_backup(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    assert backup_keys(raw_client(), tmp_path / "b", "issue:*") == 2
    names = {stored.key for stored in keys_in(tmp_path / "b")}
    assert names == {b"poppo:issue:1", b"poppo:issue:status:1"}


def test_nothing_is_overwritten_unless_told(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    backup_keys(raw_client(), tmp_path / "b")
    store.set("poppo:issue:1", "newer")
    store.delete("poppo:queue:high")
    with pytest.raises(BadBackup, match="6 of 7 keys exist"):
        restore_keys(raw_client(), tmp_path / "b")
    assert store.get("poppo:issue:1") == "newer"
    assert not store.exists("poppo:queue:high")
    assert restore_keys(raw_client(), tmp_path / "b", replace=True).restored == 7
    assert store.get("poppo:issue:1") == '{"title": "題"}'
    assert store.get("other:issue:1") == "foreign"


def test_what_has_expired_since_stays_away(store: redis.Redis, tmp_path: Path) -> None:
    store.set("poppo:temp:x", "v", px=300)
    store.set("poppo:issue:1", "{}")
    backup_keys(raw_client(), tmp_path / "b")
    for _ in range(500):
        if not store.exists("poppo:temp:x"):
            break
        store.execute_command("WAIT", "1", "20")  # twenty milliseconds of the server's own clock
    store.delete("poppo:issue:1")
    report = restore_keys(raw_client(), tmp_path / "b")
    assert (report.restored, report.expired) == (1, 1)


def test_the_lock_of_the_backup_is_not_in_it_and_is_let_go(store: redis.Redis, tmp_path: Path) -> None:
    backup_keys(raw_client(), tmp_path / "b", name="daily")
    assert keys_in(tmp_path / "b") == []
    assert store.dbsize() == 0
    store.set("poppo:lock:backup:daily", "another", ex=60)
    with pytest.raises(LockHeld):
        backup_keys(raw_client(), tmp_path / "c", name="daily")
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
def test_a_damaged_file_of_an_earlier_version_changes_nothing(
    store: redis.Redis, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "b"
    shutil.copyfile(BEFORE, path)
    spoilt(path, change)
    with pytest.raises(BadBackup) as caught:
        restore_keys(raw_client(), path)
    assert str(caught.value).endswith(".")
    assert store.dbsize() == 0


def test_a_damaged_file_changes_nothing(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    path = tmp_path / "b"
    backup_keys(raw_client(), path)
    whole = path.read_bytes()
    store.flushall()
    flipped = len(whole) // 2
    for damaged in (
        b"",
        b"hello\n",
        whole[:40],
        whole[:-20],
        whole[:flipped] + bytes([whole[flipped] ^ 1]) + whole[flipped + 1 :],
    ):
        path.write_bytes(damaged)
        with pytest.raises(BadBackup) as caught:
            restore_keys(raw_client(), path)
        assert str(caught.value).endswith(".")
        assert store.dbsize() == 0


def test_a_file_of_an_earlier_version_comes_back(store: redis.Redis) -> None:
    report = restore_keys(raw_client(), BEFORE)
    assert (report.restored, report.expired, report.left_alone) == (5, 1, 0)
    assert store.get("poppo:issue:1") == '{"title": "題"}'
    assert store.smembers("poppo:issues:processing") == {"1", "2"}
    assert store.get("poppo:config:claude:timeout") == "900"
    assert store.ttl("poppo:temp:lasting") > 86400


def test_a_file_of_an_earlier_version_is_replaced(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    path = tmp_path / "b"
    shutil.copyfile(BEFORE, path)
    assert backup_keys(raw_client(), path) == 7
    assert len(keys_in(path)) == 7


def archive_of(path: Path, *lines: bytes) -> Path:
    part = path.with_name("part")
    part.write_bytes(b"".join(lines))
    write_archive(path, Heading("2026-01-01"), {KEYS: part})
    part.unlink()
    return path


@pytest.mark.parametrize(
    "line",
    [
        b"text\n",
        b"[]\n",
        b"{}\n",
        b'{"keys":1,"sha256":""}\n',
        b'{"key":"eA==","expires_at_ms":-1,"dump":"eA=="}\n',
        b'{"key":"eA==","expires_at_ms":null,"dump":"no base64"}\n',
    ],
)
def test_a_line_that_is_no_key_changes_nothing(store: redis.Redis, tmp_path: Path, line: bytes) -> None:
    good = StoredKey(b"poppo:issue:1", b"", None).line()
    with pytest.raises(BadBackup, match="damaged in line 2"):
        restore_keys(raw_client(), archive_of(tmp_path / "b", good, line))
    assert store.dbsize() == 0


def test_keys_of_others_are_never_written(store: redis.Redis, tmp_path: Path) -> None:
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
        restore_keys(raw_client(), path, replace=True)
    assert store.dbsize() == 0
    path.write_bytes(path.read_bytes().replace(base64.b64encode(b"other:x"), base64.b64encode(b"poppo:x")))
    with pytest.raises(BadBackup, match="checksum"):
        restore_keys(raw_client(), path, replace=True)


def test_a_value_that_the_server_refuses_is_named(store: redis.Redis, tmp_path: Path) -> None:
    path = archive_of(tmp_path / "b", StoredKey(b"poppo:issue:1", b"nonsense", None).line())
    with pytest.raises(BadBackup, match="poppo:issue:1 was refused by the server"):
        restore_keys(raw_client(), path)


def test_a_backup_of_everything_is_for_another_command(store: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "b"
    shutil.copyfile(BEFORE.with_name("everything.tgz"), path)
    with pytest.raises(BadBackup, match=r"is a backup of everything, for .manage\.py restore"):
        restore_keys(raw_client(), path)
    with pytest.raises(BadBackup, match="not a backup; choose another name"):
        backup_keys(raw_client(), path)
    assert path.read_bytes() == BEFORE.with_name("everything.tgz").read_bytes()


def test_files_that_are_no_backups_are_not_replaced(store: redis.Redis, tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("dear reader")
    with pytest.raises(BadBackup, match="not a backup; choose another name"):
        backup_keys(raw_client(), path)
    assert path.read_text() == "dear reader"
    with pytest.raises(BadBackup, match="not a file"):
        backup_keys(raw_client(), tmp_path)
    with pytest.raises(BadBackup, match="cannot be written"):
        backup_keys(raw_client(), tmp_path / "none" / "b")
    with pytest.raises(BadBackup, match="cannot be read"):
        restore_keys(raw_client(), tmp_path / "none")


def test_a_backup_that_fails_leaves_the_earlier_one(store: redis.Redis, tmp_path: Path) -> None:
    fill(store)
    path = tmp_path / "b"
    backup_keys(raw_client(), path)
    before = path.read_bytes()

    def fail(done: int, total: int) -> None:
        raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError):
        backup_keys(raw_client(), path, progress=fail)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["b"]
    assert not store.exists("poppo:lock:backup:manual")
