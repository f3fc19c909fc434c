"""The same tables and the same races on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sandbox.launcher import SandboxHandle
from tests.feeds.conftest import page_url, posts_for
from tests.feeds.test_schema import COLUMNS, INDEXES
from tests.support.poll_process import PollWorld, begin
from tests.support.postgres_server import NoPostgres, postgres_server

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.xdist_group("postgres")]
TYPES = {"INTEGER": "integer", "TEXT": "text", "TIMESTAMP": "timestamp with time zone"}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    try:
        with postgres_server() as url:
            yield url
    except NoPostgres as lack:
        pytest.skip(f"PostgreSQL: {lack}")


@pytest.fixture(scope="module")
def world(database: str, tmp_path_factory: pytest.TempPathFactory) -> PollWorld:
    made = PollWorld(tmp_path_factory.mktemp("pg"), DATABASE_URL=database)
    done = made.run("migrate", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    return made


def rows(database: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(sql, values)
        return cursor.fetchall() if cursor.description else []


def test_columns_and_indexes(database: str, world: PollWorld) -> None:
    found = rows(
        database,
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns"
        " WHERE table_name = 'items' ORDER BY ordinal_position",
    )
    expected = [(name, TYPES[kind], "NO" if required else "YES") for name, kind, required, _ in COLUMNS]
    assert found == expected
    indexes = dict(rows(database, "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'items'"))
    assert set(indexes) == {*INDEXES, "items_pkey"}
    for name, (is_unique, columns) in INDEXES.items():
        assert ("UNIQUE" in indexes[name]) is is_unique
        assert indexes[name].endswith(f"({', '.join(columns)})")


def test_a_feed_and_four_workers(
    database: str, world: PollWorld, sandbox: SandboxHandle, tmp_path: Path
) -> None:
    fetched = world.run("poll", "feeds")
    assert fetched.returncode == 0, fetched.stderr
    assert rows(database, "SELECT count(*) FROM items") == [(len(sandbox.state("feed")["items"]),)]
    workers = [world.start_waiting("poll", "items", "--all") for _ in range(4)]
    for worker in workers:
        begin(worker)
    outputs = [worker.communicate(timeout=150) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, outputs
    posted = [url for (url,) in rows(database, "SELECT url FROM items WHERE status = 3 AND reason = 0")]
    assert len(posted) > 5
    assert [posts_for(sandbox, url) for url in posted] == [1] * len(posted)
    assert rows(database, "SELECT count(*) FROM feeds_itemlease") == [(0,)]


def test_a_stale_lease_is_taken_back(database: str, world: PollWorld, sandbox: SandboxHandle) -> None:
    url = page_url(sandbox, "01kiban04_02000401")
    rows(database, "DELETE FROM feeds_itemevent; DELETE FROM feeds_post; DELETE FROM feeds_itemdetail")
    rows(database, "DELETE FROM items")
    rows(
        database,
        "INSERT INTO items (url, title, published_at, status, retry_count, created_at, last_checked_at)"
        " VALUES (%s, 'title', now() - interval '1 hour', 2, 0, now() - interval '1 hour', now())",
        url,
    )
    rows(
        database,
        "INSERT INTO feeds_itemlease (item_id, token, claimed_by, claimed_at, expires_at)"
        " SELECT id, 'gone', 'gone', now() - interval '1 hour', now() - interval '1 minute' FROM items",
    )
    done = world.run("poll", "items")
    assert done.returncode == 0, done.stderr
    assert rows(database, "SELECT status, reason, retry_count FROM items") == [(3, 0, 1)]
    assert posts_for(sandbox, url) == 1
