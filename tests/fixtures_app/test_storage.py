"""A bucket (Google's own client over HTTP) and a folder keep the same promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_project.lib.config.outside import Source, StorageConfig
from broker_project.lib.errors import (
    BadAnswer,
    Missing,
    OutsideError,
    Rejected,
    ServerFault,
    Unauthorised,
    Unreachable,
)
from fixtures.clients.storage import (
    NO_OBJECT,
    BucketStorage,
    FolderStorage,
    StaleGeneration,
    Storage,
    StoredObject,
)
from sandbox.launcher import SandboxHandle
from tests.fixtures_app.conftest import QUICK

NAME = "schedule/fixture_status.csv"
CSV = "text/csv; charset=utf-8"


def test_nothing_there_is_none(storage: Storage) -> None:
    assert storage.read(NAME) is None


def test_write_read_replace(storage: Storage) -> None:
    first = storage.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    found = storage.read(NAME)
    assert found is not None
    assert (found.data, found.generation) == (b"one", first)
    second = storage.write(NAME, "二".encode(), CSV, replaces=first)
    assert second > first
    found = storage.read(NAME)
    assert found is not None
    assert (found.data, found.generation) == ("二".encode(), second)


def test_a_write_that_replaces_something_else_is_refused_and_told_what_is_there(storage: Storage) -> None:
    first = storage.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    second = storage.write(NAME, b"two", CSV, replaces=first)
    for stale in (NO_OBJECT, first):
        with pytest.raises(StaleGeneration) as refused:
            storage.write(NAME, b"three", CSV, replaces=stale)
        assert refused.value.current is not None
        assert (refused.value.current.data, refused.value.current.generation) == (b"two", second)


def test_a_write_in_place_of_what_is_gone_is_refused(storage: Storage) -> None:
    with pytest.raises(StaleGeneration) as refused:
        storage.write(NAME, b"one", CSV, replaces=12345)
    assert refused.value.current is None


def test_put_replaces_whatever_is_there(storage: Storage) -> None:
    first = storage.put("reports/2026-01-04/1.html", b"one", "text/html")
    second = storage.put("reports/2026-01-04/1.html", b"two", "text/html")
    found = storage.read("reports/2026-01-04/1.html")
    assert found is not None
    assert (found.data, found.generation) == (b"two", second)
    assert second > first


# The bucket's faults


@pytest.mark.parametrize("kind", ["lose_answer", "truncate"])
def test_a_write_whose_answer_is_lost_is_recognised_as_ours(
    sandbox: SandboxHandle, bucket: BucketStorage, kind: str
) -> None:
    sandbox.fault("gcs", kind, method="POST")
    generation = bucket.write(NAME, b"ours", CSV, replaces=NO_OBJECT)
    found = bucket.read(NAME)
    assert found is not None
    assert (found.data, found.generation) == (b"ours", generation)
    uploads = [call for call in sandbox.calls("gcs") if call["method"] == "POST"]
    assert len(uploads) == 1


def test_a_lost_answer_and_somebody_elses_write_are_told_apart(
    sandbox: SandboxHandle, bucket: BucketStorage
) -> None:
    first = bucket.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    other = bucket.write(NAME, b"theirs", CSV, replaces=first)
    sandbox.fault("gcs", "drop", method="POST")
    with pytest.raises(StaleGeneration) as refused:
        bucket.write(NAME, b"ours", CSV, replaces=first)
    assert refused.value.current is not None
    assert refused.value.current.generation == other


def test_a_write_that_did_not_arrive_is_repeated(sandbox: SandboxHandle, bucket: BucketStorage) -> None:
    sandbox.fault("gcs", "drop", method="POST")
    sandbox.fault("gcs", "status", method="POST", status=503, skip=0)
    bucket.write(NAME, b"ours", CSV, replaces=NO_OBJECT)
    found = bucket.read(NAME)
    assert found is not None
    assert found.data == b"ours"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"kind": "status", "status": 500}, ServerFault),
        ({"kind": "status", "status": 403}, Unauthorised),
        ({"kind": "drop"}, Unreachable),
        ({"kind": "truncate"}, OutsideError),
    ],
)
def test_a_read_error_is_an_error_and_never_an_empty_place(
    sandbox: SandboxHandle, bucket: BucketStorage, fault: dict, error: type[OutsideError]
) -> None:
    bucket.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    sandbox.fault("gcs", method="GET", times=0, **fault)
    with pytest.raises(error):
        bucket.read(NAME)


def test_a_passing_read_error_is_read_again(sandbox: SandboxHandle, bucket: BucketStorage) -> None:
    bucket.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    sandbox.fault("gcs", "status", method="GET", status=503, times=2)
    found = bucket.read(NAME)
    assert found is not None
    assert found.data == b"one"


def test_garbage_is_never_taken_for_the_object(sandbox: SandboxHandle, bucket: BucketStorage) -> None:
    sandbox.fault("gcs", "garbage", method="GET", times=0)
    with pytest.raises(BadAnswer):
        bucket.read(NAME)


def test_a_bucket_that_does_not_exist_is_no_empty_bucket(sandbox: SandboxHandle) -> None:
    config = StorageConfig(Source.REAL, "missing-bucket", f"{sandbox.base_url}/gcs")
    storage = BucketStorage(config, policy=QUICK)
    with pytest.raises(Missing):
        storage.read(NAME)
    with pytest.raises(Missing):
        storage.write(NAME, b"x", CSV, replaces=NO_OBJECT)


def test_a_bucket_may_have_the_word_in_its_name(sandbox: SandboxHandle) -> None:
    config = StorageConfig(Source.REAL, "guides-bucket", f"{sandbox.base_url}/gcs")
    storage = BucketStorage(config, policy=QUICK)
    assert storage.read(NAME) is None
    generation = storage.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    assert storage.read(NAME) == StoredObject(b"one", generation)


def test_an_answer_without_a_generation_is_completed_by_the_metadata(
    sandbox: SandboxHandle, bucket: BucketStorage
) -> None:
    generation = bucket.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    sandbox.fault("gcs", "status", status=200, body="one", path="alt=media|/download/", times=0)
    assert bucket.read(NAME) == StoredObject(b"one", generation)
    assert "ifGenerationMatch" in sandbox.calls("gcs")[0]["path"]


def test_a_large_write_without_a_checksum_in_its_answer_is_read_back(
    sandbox: SandboxHandle, bucket: BucketStorage
) -> None:
    large = b"x" * (9 * 2**20)  # more than goes in one piece
    sandbox.fault("gcs", "status", method="PUT", status=200, body={"name": NAME, "generation": "1"}, times=1)
    generation = bucket.write(NAME, large, CSV, replaces=NO_OBJECT)
    assert bucket.read(NAME) == StoredObject(large, generation)


@pytest.mark.parametrize("status", [409, 412, 429])
def test_a_write_refused_for_a_moment_is_repeated(
    sandbox: SandboxHandle, bucket: BucketStorage, status: int
) -> None:
    sandbox.fault("gcs", "status", method="POST", status=status, times=2)
    generation = bucket.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    assert bucket.read(NAME) == StoredObject(b"one", generation)


def test_a_read_and_a_write_are_one_request_each(sandbox: SandboxHandle, bucket: BucketStorage) -> None:
    bucket.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    bucket.read(NAME)
    assert [call["method"] for call in reversed(sandbox.calls("gcs"))] == ["POST", "GET"]


# The folder


def test_an_edit_by_hand_counts_as_another_generation(folder: FolderStorage) -> None:
    first = folder.write(NAME, b"one", CSV, replaces=NO_OBJECT)
    (folder.root / NAME).write_bytes(b"by hand")
    os.utime(folder.root / NAME, ns=(first + 1000, first + 1000))
    with pytest.raises(StaleGeneration):
        folder.write(NAME, b"two", CSV, replaces=first)


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a//b", ".lock", "a/../b"])
def test_names_cannot_leave_the_folder(folder: FolderStorage, name: str) -> None:
    with pytest.raises(Rejected):
        folder.put(name, b"x", CSV)


WRITER = """
import sys
from pathlib import Path
from fixtures.clients.storage import FolderStorage, StaleGeneration
storage, mark, done = FolderStorage(Path(sys.argv[1])), sys.argv[2], 0
while done < 25:
    found = storage.read("lines")
    data = (found.data if found else b"") + f"{mark}{done}\\n".encode()
    try:
        storage.write("lines", data, "text/plain", replaces=found.generation if found else 0)
        done += 1
    except StaleGeneration:
        pass
"""


@pytest.mark.process
def test_two_processes_that_append_lose_nothing(folder: FolderStorage) -> None:
    root = Path(__file__).parent.parent.parent
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder.root), mark], cwd=root) for mark in "ab"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    found = folder.read("lines")
    assert found is not None
    lines = found.data.decode().split()
    assert sorted(lines) == sorted(f"{mark}{number}" for mark in "ab" for number in range(25))
