"""Archives that must not be restored, and places that must not be written to: one sentence, and nothing changes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_project.ops.backups.archive import (
    BadBackup,
    Heading,
    check_target,
    is_name,
    read_heading,
    unpack,
    write_archive,
)
from tests.support.broker_process import run_manage
from tests.support.server import BrokerServer, BrokerWorld

HEADING = Heading("2026-01-01T00:00:00+09:00", "sqlite", ("tasks.0001_initial",), "0" * 32)


def entry(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def manifest(files: dict[str, bytes], **changes: Any) -> bytes:
    document = {"format": "broker-backup", "version": 1, **vars(HEADING), **changes}
    return json.dumps({"files": {name: entry(data) for name, data in files.items()}, **document}).encode()


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def plain(files: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(tarfile.TarInfo(name), data) for name, data in files.items()]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


GOOD = {"database": b"data", "secret_key": b"k" * 40, "gcs/schedule/fixture_status.csv": b"a,b\n"}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    files = {}
    for number, (name, data) in enumerate(GOOD.items()):
        files[name] = tmp_path / str(number)
        files[name].write_bytes(data)
    path = tmp_path / "b.tgz"
    write_archive(path, HEADING, files)
    assert path.stat().st_mode & 0o777 == 0o600
    folder = tmp_path / "out"
    folder.mkdir()
    heading, found = unpack(path, folder)
    assert heading == HEADING
    assert {name: file.read_bytes() for name, file in found.items()} == GOOD
    assert all(file.parent == folder and file.stat().st_mode & 0o777 == 0o600 for file in found.values())


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "a name that leads upwards": lambda path: tar(
        path, plain({"manifest.json": manifest({**GOOD, "../evil": b"x"}), **GOOD, "../evil": b"x"})
    ),
    "one inside the stored files": lambda path: tar(
        path,
        plain({"manifest.json": manifest({**GOOD, "gcs/../../evil": b"x"}), **GOOD, "gcs/../../evil": b"x"}),
    ),
    "an absolute name": lambda path: tar(
        path, plain({"manifest.json": manifest({**GOOD, "/tmp/evil": b""}), **GOOD})
    ),
    "a member that is not listed": lambda path: tar(
        path, plain({"manifest.json": manifest(GOOD), **GOOD, "evil": b"x"})
    ),
    "a listed one twice": lambda path: tar(
        path, [*plain({"manifest.json": manifest(GOOD), **GOOD}), *plain({"database": b"data"})]
    ),
    "a link in place of a file": lambda path: tar(
        path,
        [
            *plain({"manifest.json": manifest({**GOOD, "keys": b""}), **GOOD}),
            link("keys", "/etc/passwd"),
        ],
    ),
    "a hard link": lambda path: tar(
        path,
        [
            *plain({"manifest.json": manifest({**GOOD, "keys": b""}), **GOOD}),
            link("keys", "/etc/passwd", tarfile.LNKTYPE),
        ],
    ),
    "a device": lambda path: tar(
        path,
        [
            *plain({"manifest.json": manifest({**GOOD, "keys": b""}), **GOOD}),
            link("keys", "", tarfile.CHRTYPE),
        ],
    ),
    "another content": lambda path: tar(
        path, plain({"manifest.json": manifest(GOOD), **GOOD, "database": b"DATA"})
    ),
    "another size": lambda path: tar(
        path, plain({"manifest.json": manifest(GOOD), **GOOD, "database": b"data and more"})
    ),
    "a missing member": lambda path: tar(path, plain({"manifest.json": manifest(GOOD), "database": b"data"})),
    "no list": lambda path: tar(path, plain(GOOD)),
    "a list that is not first": lambda path: tar(path, plain({**GOOD, "manifest.json": manifest(GOOD)})),
    "a list that is no JSON": lambda path: tar(path, plain({"manifest.json": b"{", **GOOD})),
    "another format": lambda path: tar(path, plain({"manifest.json": manifest(GOOD, format="x"), **GOOD})),
    "a version to come": lambda path: tar(path, plain({"manifest.json": manifest(GOOD, version=2), **GOOD})),
    "a list without migrations": lambda path: tar(
        path, plain({"manifest.json": manifest(GOOD, migrations=None), **GOOD})
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    path = HOSTILE[kind](tmp_path / "b.tgz")
    folder = tmp_path / "deep" / "out"
    folder.mkdir(parents=True)
    with pytest.raises(BadBackup) as refusal:
        unpack(path, folder)
    assert str(refusal.value).endswith(".")
    outside = {found.name for found in tmp_path.rglob("*")} - {found.name for found in folder.rglob("*")}
    assert outside == {"b.tgz", "deep", "out"}
    assert all(found.is_file() and not found.is_symlink() for found in folder.iterdir())


def test_a_damaged_archive_is_refused_wherever_it_is_cut_or_changed(tmp_path: Path) -> None:
    path = tar(tmp_path / "b.tgz", plain({"manifest.json": manifest(GOOD), **GOOD}))
    whole = path.read_bytes()
    cuts = [whole[:number] for number in range(0, len(whole), 7)]
    changes = [
        whole[:number] + bytes([whole[number] ^ 0x55]) + whole[number + 1 :]
        for number in range(10, len(whole), 5)
    ]
    refused = 0
    for number, damaged in enumerate(cuts + changes):
        folder = tmp_path / f"damaged-{number}"
        folder.mkdir()
        path.write_bytes(damaged)
        try:
            heading, found = unpack(path, folder)
        except BadBackup:
            refused += 1
            continue
        # A byte of gzip's own heading (a name, a time) may differ; what counts does not.
        assert heading == HEADING
        assert {name: file.read_bytes() for name, file in found.items()} == GOOD
    assert refused > len(cuts + changes) * 0.95


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"SQLite format 3\x00", gzip.compress(b"no tar", mtime=0), gzip.compress(b"", mtime=0)],
)
def test_what_is_no_archive_is_no_archive(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_bytes(content)
    with pytest.raises(BadBackup, match="is not a backup made by this program"):
        read_heading(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("database", True),
        ("gcs/reports/2026-01-01/1.html", True),
        ("gcs/報告.html", True),
        ("gcs", False),
        ("gcs/", False),
        ("gcs//x", False),
        ("gcs/./x", False),
        ("gcs/../x", False),
        ("gcs/.hidden", False),
        ("gcs/a\\b", False),
        ("gcs/a\nb", False),
        ("/gcs/x", False),
        ("xgcs/x", False),
        ("broker.sqlite3", False),
        ("", False),
    ],
)
def test_names(name: str, expected: bool) -> None:
    assert is_name(name) is expected


def test_places_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"data")
    with pytest.raises(BadBackup, match="is a folder; name a file"):
        check_target(tmp_path, with_database=True)
    with pytest.raises(BadBackup, match="cannot be written: No such file or directory"):
        write_archive(tmp_path / "no" / "b.tgz", HEADING, {"database": data})
    with pytest.raises(BadBackup, match="There is no file"):
        read_heading(tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


@pytest.mark.process
@pytest.mark.slow
def test_the_commands_refuse_in_one_sentence(broker_world: BrokerWorld, tmp_path: Path) -> None:
    server = BrokerServer(broker_world, broker_world.new_folder())
    backup, text = tmp_path / "b.tgz", tmp_path / "notes.txt"
    text.write_text("mine")

    def refused(*arguments: str, **settings: str) -> str:
        done = run_manage(*arguments, env={**server.env, **settings})
        assert (done.returncode, done.stdout) == (1, ""), done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        (line,) = done.stderr.strip().splitlines()
        return line

    assert "is not a backup; choose another name" in refused("backup", str(text))
    assert text.read_text() == "mine"
    server.manage("backup", str(backup))
    assert "the database is not empty" in refused("restore", str(backup))
    fresh = tmp_path / "fresh"
    elsewhere = {"BROKER_VAR": str(fresh)}
    key = refused("restore", str(backup), **elsewhere, DJANGO_SECRET_KEY="another key " * 4)
    assert "DJANGO_SECRET_KEY is not the one of the backup" in key
    other = refused("restore", str(backup), **elsewhere, DATABASE_URL="postgres://nobody@127.0.0.1:1/none")
    assert "is of a sqlite database, and this one is postgresql" in other
    with tarfile.open(backup) as archive:
        members = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    document = json.loads(members["manifest.json"])
    document["migrations"].append("tasks.9999_from_the_future")
    members["manifest.json"] = json.dumps(document).encode()
    newer = refused("restore", str(tar(tmp_path / "newer.tgz", plain(members))), **elsewhere)
    assert "was made by a newer version of Broker (tasks.9999_from_the_future)" in newer
    for without in ({"secret_key": b"k"}, {"keys": b""}):
        path = tar(tmp_path / "without.tgz", plain({"manifest.json": manifest(without), **without}))
        assert "holds no database" in refused("restore", str(path), **elsewhere)
    server.manage("keys", "backup", str(tmp_path / "keys.tgz"))
    alone = refused("restore", str(tmp_path / "keys.tgz"), **elsewhere)
    assert "holds keys of Redis alone, for `manage.py keys restore`" in alone
    assert "is not a backup; choose another name" in refused("backup", str(tmp_path / "keys.tgz"))
    assert not (fresh / "broker.sqlite3").exists()
    assert not (fresh / "gcs").exists()


@pytest.mark.process
@pytest.mark.slow
def test_without_the_tools_of_postgresql_one_sentence(broker_world: BrokerWorld, tmp_path: Path) -> None:
    from tests.support.postgres_server import NoPostgres, postgres_server

    try:
        with postgres_server() as url:
            server = BrokerServer(broker_world, tmp_path, DATABASE_URL=url)
            server.manage("migrate", "--verbosity", "0")
            env = {**server.env, "PATH": str(tmp_path)}
            done = run_manage("backup", str(tmp_path / "b.tgz"), env=env)
    except NoPostgres as lack:
        pytest.skip(f"PostgreSQL: {lack}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pg_dump is not on PATH" in done.stderr
    assert not os.path.exists(tmp_path / "b.tgz")
