"""A folder ``var`` that an earlier version left behind: its schedules, queued tasks, sessions and secret key."""

from __future__ import annotations

import sqlite3
import tarfile
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from broker_project.ops.clock.schedules import ENTRY_POINT
from tests.support.broker_process import BrokerProcess, wait_for

# Made by commit 1f20db6: a superuser with a session, the schedules, and a task of each kind in the queue.
BEFORE = Path(__file__).parent.parent / "data" / "backups" / "everything.tgz"


def unpack_var(var: Path) -> str:
    """The folder as it was; its secret key."""
    with tarfile.open(BEFORE) as archive:
        for member, name in (("database", "broker.sqlite3"), ("secret_key", "secret_key")):
            content = archive.extractfile(member)
            assert content is not None
            (var / name).write_bytes(content.read())
    return (var / "secret_key").read_text()


def rows(var: Path, question: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(var / "broker.sqlite3", timeout=30)) as database:
        return database.execute(question).fetchall()


@pytest.mark.process
@pytest.mark.slow
def test_a_folder_of_an_earlier_version_starts_again(tmp_path: Path) -> None:
    key = unpack_var(tmp_path)
    assert {func for (func,) in rows(tmp_path, "SELECT func FROM django_q_schedule")} != {ENTRY_POINT}
    before = {row[0] for row in rows(tmp_path, "SELECT id FROM django_q_ormq")}
    assert len(before) == 3
    ((session,),) = rows(tmp_path, "SELECT session_key FROM django_session")
    broker = BrokerProcess(tmp_path)
    try:
        broker.wait_until_greeted()
        schedules = rows(tmp_path, "SELECT name, func FROM django_q_schedule")
        assert len(schedules) == 8
        assert {func for _, func in schedules} == {ENTRY_POINT}
        wait_for(
            lambda: not before & {row[0] for row in rows(tmp_path, "SELECT id FROM django_q_ormq")},
            "the tasks that were queued before are taken off",
        )
        refused = [line for line in broker.output.splitlines() if "queued task refused" in line]
        assert len(refused) == 3
        assert all("an earlier version queued it" in line for line in refused)
        wait_for(
            lambda: rows(
                tmp_path, "SELECT 1 FROM broker_pollerrun WHERE name = 'issues' AND outcome = 'done'"
            ),
            "the pollers run",
        )
        request = urllib.request.Request(broker.url("/status/"), headers={"Cookie": f"sessionid={session}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert (answer.status, answer.url) == (200, broker.url("/status/"))
        assert (tmp_path / "secret_key").read_text() == key
        assert "Traceback" not in broker.output
    finally:
        broker.close()
