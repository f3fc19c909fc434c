"""Cloud Storage's stand-in, driven by google-cloud-storage."""

from __future__ import annotations

import os

import httpx
import pytest
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from sandbox.launcher import SandboxHandle

CSV = "schedule/fixture_status.csv"
RESUMABLE_BYTES = 9 * 2**20  # up to 8 MiB the library sends everything in one request


@pytest.fixture
def bucket(sandbox: SandboxHandle, monkeypatch: pytest.MonkeyPatch) -> storage.Bucket:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{sandbox.base_url}/gcs")
    return storage.Client(project="sandbox", credentials=AnonymousCredentials()).bucket("broker")


def test_object_is_written_read_and_deleted(bucket: storage.Bucket) -> None:
    blob = bucket.blob(CSV)
    blob.upload_from_string("試合,状態\r\n".encode(), content_type="text/csv; charset=utf-8")

    found = bucket.get_blob(CSV)
    assert found.download_as_bytes() == "試合,状態\r\n".encode()
    assert found.content_type == "text/csv; charset=utf-8"
    assert found.generation == blob.generation
    found.delete()
    assert bucket.get_blob(CSV) is None
    with pytest.raises(NotFound):
        bucket.blob(CSV).download_as_bytes()


def test_generations_rise_even_when_the_clock_is_set_back(
    bucket: storage.Bucket, sandbox: SandboxHandle
) -> None:
    blob = bucket.blob(CSV)
    blob.upload_from_string("1")
    first = blob.generation
    sandbox.set_clock(-3600)
    blob.upload_from_string("2")
    assert blob.generation > first


def test_conditional_write_is_refused_for_another_generation(bucket: storage.Bucket) -> None:
    blob = bucket.blob(CSV)
    blob.upload_from_string("one", if_generation_match=0)
    first = blob.generation
    with pytest.raises(PreconditionFailed):
        bucket.blob(CSV).upload_from_string("other", if_generation_match=0)
    bucket.blob(CSV).upload_from_string("two", if_generation_match=first)
    with pytest.raises(PreconditionFailed):
        bucket.blob(CSV).upload_from_string("three", if_generation_match=first)
    with pytest.raises(PreconditionFailed):
        bucket.blob(CSV).delete(if_generation_match=first)
    assert bucket.blob(CSV).download_as_bytes() == b"two"


def test_condition_on_an_object_that_does_not_exist_is_refused(bucket: storage.Bucket) -> None:
    with pytest.raises(PreconditionFailed):
        bucket.blob(CSV).upload_from_string("x", if_generation_match=12345)
    assert bucket.get_blob(CSV) is None


def test_lost_answer_of_a_conditional_write_comes_back_as_a_conflict(
    bucket: storage.Bucket, sandbox: SandboxHandle
) -> None:
    """The library repeats a conditional write by itself and then reports the conflict with its own write."""
    sandbox.fault("gcs", "lose_answer", method="POST", path="/upload/")
    with pytest.raises(PreconditionFailed):
        bucket.blob(CSV).upload_from_string("ours", if_generation_match=0)
    assert bucket.blob(CSV).download_as_bytes() == b"ours"
    assert sum(call["method"] == "POST" for call in sandbox.calls("gcs")) == 2


def test_resumable_upload_survives_a_dropped_chunk(bucket: storage.Bucket, sandbox: SandboxHandle) -> None:
    data = os.urandom(RESUMABLE_BYTES)
    blob = bucket.blob("reports/大きい.bin", chunk_size=4 * 2**20)
    sandbox.fault("gcs", "drop", method="PUT", skip=1)
    blob.upload_from_string(data)
    assert sandbox.faults()[0]["fired"] == 1
    assert blob.download_as_bytes() == data
    assert bucket.get_blob("reports/大きい.bin").size == len(data)


def test_resumable_upload_honours_the_condition(bucket: storage.Bucket) -> None:
    bucket.blob("big").upload_from_string("here")
    blob = bucket.blob("big", chunk_size=4 * 2**20)
    with pytest.raises(PreconditionFailed):
        blob.upload_from_string(os.urandom(RESUMABLE_BYTES), if_generation_match=0)
    assert bucket.blob("big").download_as_bytes() == b"here"


def test_truncated_download_is_noticed_and_fetched_again(
    bucket: storage.Bucket, sandbox: SandboxHandle
) -> None:
    data = os.urandom(300_000)
    bucket.blob("x").upload_from_string(data)
    sandbox.fault("gcs", "truncate", method="GET", path="/download/")
    assert bucket.blob("x").download_as_bytes() == data
    assert bucket.blob("x").download_as_bytes(start=10, end=19) == data[10:20]


def test_listing_by_prefix_in_pages_and_folders(bucket: storage.Bucket) -> None:
    for name in ("reports/a.html", "reports/b.html", "reports/c.html", "schedule/x.csv", "top"):
        bucket.blob(name).upload_from_string(name)
    client = bucket.client
    pages = client.list_blobs("broker", prefix="reports/", page_size=2)
    assert [[blob.name for blob in page] for page in pages.pages] == [
        ["reports/a.html", "reports/b.html"],
        ["reports/c.html"],
    ]
    folders = client.list_blobs("broker", delimiter="/")
    assert [blob.name for blob in folders] == ["top"]
    assert folders.prefixes == {"reports/", "schedule/"}


def test_metadata_is_patched_without_a_new_generation(bucket: storage.Bucket) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("x")
    generation = blob.generation
    blob.metadata = {"source": "broker"}
    blob.cache_control = "no-store"
    blob.patch()
    found = bucket.get_blob("x")
    assert (found.metadata, found.cache_control) == ({"source": "broker"}, "no-store")
    assert (found.generation, found.metageneration) == (generation, 2)


def test_bucket_appears_on_first_use_unless_it_is_called_missing(bucket: storage.Bucket) -> None:
    assert bucket.exists()
    assert bucket.client.lookup_bucket("missing-bucket") is None
    with pytest.raises(NotFound):
        bucket.client.bucket("missing-bucket").blob("x").upload_from_string("x")


def test_unchanged_object_is_not_sent_again(bucket: storage.Bucket, sandbox: SandboxHandle) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string("x")
    url = f"{sandbox.base_url}/gcs/storage/v1/b/broker/o/x?ifGenerationNotMatch={blob.generation}"
    assert httpx.get(url).status_code == 304


def test_state_survives_dump_and_load(bucket: storage.Bucket, sandbox: SandboxHandle) -> None:
    bucket.blob("x").upload_from_string(b"\x00\xff")
    state = sandbox.state("gcs")
    sandbox.reset("gcs")
    assert bucket.get_blob("x") is None
    sandbox.load("gcs", state)
    assert bucket.blob("x").download_as_bytes() == b"\x00\xff"
    assert sandbox.state("gcs") == state
