from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from fixtures.clients.storage import BucketStorage, FolderStorage, Storage, StoredObject
from fixtures.csv.parsing import parse_table
from fixtures.csv.table import HEADER
from fixtures.fixture_status_manager import FixtureStatusManager
from fixtures.lifecycle import JST, Rules, jst_text
from fixtures.models import CsvState, Event, FixtureStatus, Match
from fixtures.services.actions import reset_attempts, retry_match
from fixtures.services.csv_sync import StatusTable, TableUnreadable, csv_needs_sync
from fixtures.services.transitions import detect_match
from sandbox.launcher import SandboxHandle

pytestmark = pytest.mark.django_db

NOW = dt.datetime(2026, 1, 4, 21, 0, tzinfo=JST)
PATH = FixtureStatusManager.CSV_PATH
HEAD = ",".join(HEADER)
OTHERS = (
    "777,2026-01-04,2026-01-04T19:00:00+09:00,complete,2026-01-04T18:00:00+09:00,2026-01-04T18:01:00+09:00,0,"
)


def table(storage: Storage, now: dt.datetime = NOW) -> StatusTable:
    return StatusTable(storage, now=now, rules=Rules(), retention_days=30)


def put(storage: Storage, *lines: str) -> None:
    storage.put(PATH, "\n".join([HEAD, *lines]).encode(), "text/csv")


def rows(storage: Storage) -> dict[str, str]:
    found = storage.read(PATH)
    assert found is not None
    return {row.fixture_id: row.status.value for row in parse_table(found.data)}


def begin(fixture_id: str, kickoff: dt.datetime = NOW) -> FixtureStatusManager:
    manager = FixtureStatusManager(clock=lambda: NOW)
    assert manager.mark_processing(fixture_id, kickoff)
    return manager


def sync(storage: Storage) -> None:
    today = table(storage)
    today.read()
    today.write()


def test_the_first_start_takes_the_file_over_and_keeps_rows_of_others(storage: Storage) -> None:
    put(storage, OTHERS)
    assert csv_needs_sync()
    sync(storage)
    row = FixtureStatus.objects.get(pk="777")
    assert (row.status, row.kickoff_jst, row.attempts) == ("complete", "2026-01-04T19:00:00+09:00", 0)
    begin("1").mark_complete("1")
    sync(storage)
    assert rows(storage) == {"777": "complete", "1": "complete"}
    assert not csv_needs_sync()


def test_nothing_is_written_when_nothing_changed(storage: Storage) -> None:
    begin("1").mark_complete("1")
    sync(storage)
    before = storage.read(PATH)
    today = table(storage)
    today.read()
    assert not today.write()
    assert storage.read(PATH) == before


def test_an_empty_table_makes_no_file(storage: Storage) -> None:
    sync(storage)
    assert storage.read(PATH) is None


def test_a_row_that_others_add_between_our_read_and_our_write_survives(storage: Storage) -> None:
    begin("1").mark_complete("1")
    sync(storage)
    today = table(storage)
    today.read()
    begin("2").mark_complete("2")
    found = storage.read(PATH)
    assert found is not None
    storage.write(PATH, found.data + f"{OTHERS}\n".encode(), "text/csv", replaces=found.generation)
    assert today.write()
    assert rows(storage) == {"1": "complete", "2": "complete", "777": "complete"}


def test_a_newer_attempt_of_others_wins_and_an_older_one_does_not(storage: Storage) -> None:
    begin("1").mark_failed("1", "error")
    begin("2").mark_failed("2", "error")
    put(
        storage,
        "1,2026-01-04,2026-01-04T21:00:00+09:00,complete,,2026-01-04T21:00:01+09:00,1,",
        "2,2026-01-04,2026-01-04T21:00:00+09:00,complete,,2026-01-04T20:59:59+09:00,0,",
    )
    sync(storage)
    assert rows(storage) == {"1": "complete", "2": "failed"}
    assert FixtureStatus.objects.get(pk="1").status == "complete"


def test_what_a_person_set_back_is_not_failed_again_by_the_old_line_in_the_file(storage: Storage) -> None:
    begin("1").mark_failed("1", "error")
    sync(storage)
    retry_match("1", who="root")
    found = storage.read(PATH)
    assert found is not None
    assert b"\n1,2026-01-04,2026-01-04T21:00:00+09:00,failed,2026" in found.data
    storage.write(PATH, found.data + f"{OTHERS}\n".encode(), "text/csv", replaces=found.generation)
    sync(storage)
    assert rows(storage) == {"1": "pending", "777": "complete"}
    row = FixtureStatus.objects.get(pk="1")
    assert (row.status, row.attempts, row.first_attempt_at, row.last_attempt_at) == ("pending", 0, None, None)
    # An attempt that others made since is news.
    later = "2099-01-01T00:00:00+09:00"
    put(storage, f"1,2026-01-04,2026-01-04T21:00:00+09:00,complete,{later},{later},0,", OTHERS)
    sync(storage)
    assert FixtureStatus.objects.get(pk="1").status == "complete"


def test_a_match_that_we_are_processing_stays_ours(storage: Storage) -> None:
    manager = begin("1")
    put(storage, "1,2026-01-04,2026-01-04T21:00:00+09:00,failed,,2026-01-04T21:00:01+09:00,3,other")
    sync(storage)
    assert manager.mark_complete("1")


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\x00", b"hello", HEAD.encode() + b"\n1,x,y,z", HEAD.encode() + b'\n1,"']
)
def test_a_file_that_cannot_be_understood_is_not_overwritten(storage: Storage, damage: bytes) -> None:
    begin("1").mark_complete("1")
    storage.put(PATH, damage, "text/csv")
    with pytest.raises(TableUnreadable, match="line"):
        table(storage).read()
    found = storage.read(PATH)
    assert found is not None
    assert found.data == damage
    assert "line" in CsvState.objects.get().error


def test_a_damaged_file_that_appears_meanwhile_is_not_overwritten_either(storage: Storage) -> None:
    begin("1").mark_complete("1")
    today = table(storage)
    today.read()
    storage.put(PATH, b"hello", "text/csv")
    with pytest.raises(TableUnreadable):
        today.write()
    found = storage.read(PATH)
    assert found is not None
    assert found.data == b"hello"
    assert csv_needs_sync()


def test_half_a_file_is_never_applied(storage: Storage) -> None:
    put(storage, OTHERS, "778,2026-01-04,2026-01-04T19:00:00+09:00,perhaps,,,0,")
    with pytest.raises(TableUnreadable, match=r"line 3: 'perhaps' is no status"):
        table(storage).read()
    assert not FixtureStatus.objects.exists()


def test_a_read_error_stops_before_anything_is_written(sandbox: SandboxHandle, bucket: BucketStorage) -> None:
    put(bucket, OTHERS)
    begin("1").mark_complete("1")
    sandbox.fault("gcs", "status", method="GET", status=503, times=0)
    with pytest.raises(TableUnreadable, match="503"):
        table(bucket).read()
    sandbox.clear_faults()
    assert rows(bucket) == {"777": "complete"}
    assert "503" in CsvState.objects.get().error
    sync(bucket)
    assert CsvState.objects.get().error == ""


@pytest.mark.parametrize("kind", ["lose_answer", "drop"])
def test_a_broken_write_ends_in_one_whole_file(
    sandbox: SandboxHandle, bucket: BucketStorage, kind: str
) -> None:
    begin("1").mark_complete("1")
    today = table(bucket)
    today.read()
    sandbox.fault("gcs", kind, method="POST")
    assert today.write()
    found = bucket.read(PATH)
    assert found is not None
    assert rows(bucket) == {"1": "complete"}
    assert CsvState.objects.get().generation == found.generation


def test_others_that_never_stop_writing_end_our_attempts(bucket: BucketStorage) -> None:
    class Busy:
        """Somebody writes before each of our writes."""

        def __init__(self) -> None:
            self.writes = 0

        def read(self, name: str) -> StoredObject | None:
            return bucket.read(name)

        def put(self, name: str, data: bytes, content_type: str) -> int:
            return bucket.put(name, data, content_type)

        def write(self, name: str, data: bytes, content_type: str, *, replaces: int) -> int:
            self.writes += 1
            put(bucket, OTHERS.replace("777", str(700 + self.writes)))
            return bucket.write(name, data, content_type, replaces=replaces)

    busy = Busy()
    begin("1")
    today = table(busy)
    today.read()
    with pytest.raises(Exception, match="changed by somebody else"):
        today.write()
    assert busy.writes == 5
    assert csv_needs_sync()


def test_old_rows_leave_the_file_but_not_those_of_others(storage: Storage) -> None:
    long_ago = NOW - dt.timedelta(days=31)
    put(storage, "555,2025-11-01,2025-11-01T19:00:00+09:00,complete,,2025-11-01T18:01:00+09:00,0,")
    begin("1", long_ago).mark_complete("1")
    FixtureStatus.objects.update(first_attempt_at=jst_text(long_ago), last_attempt_at=jst_text(long_ago))
    begin("2", NOW - dt.timedelta(days=29)).mark_complete("2")
    sync(storage)
    assert rows(storage) == {"2": "complete", "555": "complete"}


def test_a_day_of_long_ago_that_is_worked_on_now_is_in_the_file(storage: Storage) -> None:
    long_ago = NOW - dt.timedelta(days=300)
    begin("1", long_ago).mark_complete("1")
    begin("2", long_ago).mark_failed("2", "error")
    detect_match("3", long_ago, now=NOW, who="test")
    sync(storage)
    assert rows(storage) == {"1": "complete", "2": "failed", "3": "pending"}


def test_a_large_file_is_taken_over_in_few_steps(
    folder: FolderStorage, django_assert_max_num_queries: Callable[..., AbstractContextManager[object]]
) -> None:
    lines = [f"{number},2025-11-01,2025-11-01T19:00:00+09:00,complete,,,1," for number in range(2000)]
    put(folder, *lines)
    with django_assert_max_num_queries(60):
        assert table(folder).read() == 2000
    assert Event.objects.filter(what="imported").count() == 2000
    put(folder, *lines, OTHERS)
    with django_assert_max_num_queries(60):
        assert table(folder).read() == 1


def test_what_others_change_in_their_own_row_stands_without_an_attempt(storage: Storage) -> None:
    put(storage, "555,2026-01-05,2026-01-05T19:00:00+09:00,pending,,,0,")
    sync(storage)
    put(storage, "555,2026-01-06,2026-01-06T20:00:00+09:00,failed,,,2,no stream")
    sync(storage)
    found = storage.read(PATH)
    assert found is not None
    (row,) = parse_table(found.data)
    assert (row.kickoff_jst, row.status, row.attempts) == ("2026-01-06T20:00:00+09:00", "failed", 2)
    assert FixtureStatus.objects.get(pk="555").error_message == "no stream"


def test_what_a_person_did_here_with_a_row_of_others_stands(storage: Storage) -> None:
    put(storage, "555,2026-01-05,2026-01-05T19:00:00+09:00,failed,,,3,no stream")
    sync(storage)
    reset_attempts("555", who="somebody")
    put(storage, "555,2026-01-05,2026-01-05T19:00:00+09:00,failed,,,3,no stream", OTHERS)
    sync(storage)
    assert FixtureStatus.objects.get(pk="555").attempts == 0
    assert rows(storage) == {"555": "failed", "777": "complete"}


def test_a_row_of_others_becomes_ours_with_its_match(storage: Storage) -> None:
    put(storage, OTHERS)
    kickoff = dt.datetime(2026, 1, 4, 19, 0, tzinfo=JST)
    Match.objects.create(
        fixture_id="777",
        league_id=39,
        league_name="Premier League",
        season=2025,
        home_id=1,
        home_name="A",
        away_id=2,
        away_name="B",
        kickoff_at=kickoff,
        discovered_at=NOW,
        changed_at=NOW,
    )
    sync(storage)
    later = StatusTable(storage, now=NOW + dt.timedelta(days=40), rules=Rules(), retention_days=30)
    later.read()
    later.write()
    assert rows(storage) == {}


def test_newest_kickoff_first(storage: Storage) -> None:
    for number, hours in enumerate((3, 1, 2)):
        begin(str(number), NOW + dt.timedelta(hours=hours))
    sync(storage)
    found = storage.read(PATH)
    assert found is not None
    assert [line.split(",")[0] for line in found.data.decode().splitlines()[1:]] == ["0", "2", "1"]
