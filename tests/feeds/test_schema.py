"""The table ``items`` is exactly the seed's, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection

from feeds.models import Item

pytestmark = pytest.mark.database

COLUMNS = [
    # name, type, NOT NULL, part of the primary key
    ("id", "INTEGER", True, True),
    ("url", "TEXT", True, False),
    ("title", "TEXT", True, False),
    ("published_at", "TIMESTAMP", True, False),
    ("status", "INTEGER", True, False),
    ("reason", "INTEGER", False, False),
    ("retry_count", "INTEGER", True, False),
    ("created_at", "TIMESTAMP", True, False),
    ("last_checked_at", "TIMESTAMP", True, False),
]
INDEXES = {
    "idx_items_url": (True, ["url"]),
    "idx_items_status_last_checked_at": (False, ["status", "last_checked_at"]),
    "idx_items_status_published_at": (False, ["status", "published_at"]),
}
NOW = datetime(2026, 5, 1, 12, 30, 15, 123456, tzinfo=UTC)


def add(url: str) -> Item:
    return Item.objects.create(url=url, title="題名", published_at=NOW, created_at=NOW, last_checked_at=NOW)


POSTGRES_TYPES = {"INTEGER": "integer", "TEXT": "text", "TIMESTAMP": "timestamp with time zone"}


def select(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


@pytest.mark.django_db
def test_columns_and_indexes() -> None:
    if connection.vendor == "postgresql":
        found = select(
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns"
            " WHERE table_schema = current_schema() AND table_name = 'items' ORDER BY ordinal_position"
        )
        types = [
            (name, POSTGRES_TYPES[kind], "NO" if required else "YES") for name, kind, required, _ in COLUMNS
        ]
        assert found == types
        made = dict(select("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'items'"))
        assert set(made) == {*INDEXES, "items_pkey"}
        for name, (is_unique, columns) in INDEXES.items():
            assert ("UNIQUE" in made[name]) is is_unique
            assert made[name].endswith(f"({', '.join(columns)})")
        return
    info = select("PRAGMA table_info(items)")
    assert [(row[1], row[2].upper(), bool(row[3]), bool(row[5])) for row in info] == COLUMNS
    indexes = {row[1]: bool(row[2]) for row in select("PRAGMA index_list(items)")}
    assert indexes == {name: is_unique for name, (is_unique, _) in INDEXES.items()}
    for name, (_, columns) in INDEXES.items():
        assert [row[2] for row in select(f"PRAGMA index_info({name})")] == columns
    assert "AUTOINCREMENT" in select("SELECT sql FROM sqlite_master WHERE name = 'items'")[0][0].upper()


@pytest.mark.django_db
def test_times_come_back_aware() -> None:
    pk = add("https://a.example.jp/").pk
    item = Item.objects.get(pk=pk)
    assert item.published_at == NOW
    assert item.published_at.tzinfo is not None
    assert Item.objects.filter(published_at__gte=NOW, last_checked_at__lte=NOW).count() == 1
    assert Item.objects.values_list("created_at", flat=True).get() == NOW


@pytest.mark.django_db
def test_a_new_row_is_as_the_seed_says() -> None:
    item = Item.objects.get(pk=add("https://a.example.jp/").pk)
    assert (item.status, item.reason, item.retry_count) == (0, None, 0)


@pytest.mark.django_db
def test_an_address_is_there_once() -> None:
    add("https://a.example.jp/")
    with pytest.raises(IntegrityError):
        add("https://a.example.jp/")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("where", "index"),
    [
        ("url = 'x'", "idx_items_url"),
        ("status = 2 ORDER BY published_at", "idx_items_status_published_at"),
        ("status = 1 ORDER BY last_checked_at", "idx_items_status_last_checked_at"),
    ],
)
def test_the_indexes_are_used(where: str, index: str) -> None:
    if connection.vendor == "postgresql":
        # A planner that looks at an empty table would rather read it all.
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        assert index in str(select(f"EXPLAIN SELECT * FROM items WHERE {where}"))
        return
    assert index in str(select(f"EXPLAIN QUERY PLAN SELECT * FROM items WHERE {where}"))


def test_no_column_of_ours_slipped_in() -> None:
    assert [field.column for field in Item._meta.local_fields] == [name for name, *_ in COLUMNS]
