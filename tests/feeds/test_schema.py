"""The table ``items`` is exactly the seed's, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connection

from feeds.models import Item

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


@pytest.mark.django_db
def test_columns_and_indexes_on_sqlite() -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA table_info(items)")
        found = [(row[1], row[2].upper(), bool(row[3]), bool(row[5])) for row in cursor.fetchall()]
        assert found == COLUMNS
        cursor.execute("PRAGMA index_list(items)")
        indexes = {row[1]: bool(row[2]) for row in cursor.fetchall()}
        assert indexes == {name: is_unique for name, (is_unique, _) in INDEXES.items()}
        for name, (_, columns) in INDEXES.items():
            cursor.execute(f"PRAGMA index_info({name})")
            assert [row[2] for row in cursor.fetchall()] == columns
        cursor.execute("SELECT sql FROM sqlite_master WHERE name = 'items'")
        assert "AUTOINCREMENT" in cursor.fetchone()[0].upper()


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
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN SELECT * FROM items WHERE {where}")
        assert index in str(cursor.fetchall())


def test_no_column_of_ours_slipped_in() -> None:
    assert [field.column for field in Item._meta.local_fields] == [name for name, *_ in COLUMNS]
