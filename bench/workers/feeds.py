"""Insert items through the product and without it; claim items among few and among very many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from bench.json_lines import Command
from bench.rows import Values, insert_rows
from bench.workers.raw import columns_of, insert_statement, open_database
from feeds import selectors
from feeds.lifecycle import WAITING, Status
from feeds.models import Feed, Item, ItemDetail
from feeds.reading.parsing import Entry
from feeds.services.ingest import add_items
from feeds.services.transitions import claim_item, leases

BEGINNING = datetime(2025, 1, 1, tzinfo=UTC)
# Of a thousand rows: most are done, as in any installation that has run for a while.
SHARES = {Status.UNPROCESSED: 50, Status.DEFERRED: 50, Status.PENDING: 20, Status.PROCESSED: 880}
STATUSES = [status for status, share in SHARES.items() for _ in range(share)]


def feed() -> Feed:
    return Feed.objects.get_or_create(url="http://127.0.0.1/bench.rdf")[0]


def entries(first: int, count: int) -> list[Entry]:
    return [
        Entry(
            f"https://example.test/news/{n:08}.html", f"Title of item {n}", BEGINNING + timedelta(minutes=n)
        )
        for n in range(first, first + count)
    ]


def clear_items() -> None:
    """Empty tables and an empty log, so that every round starts from the same state."""
    with closing(open_database()) as raw:
        raw.execute("PRAGMA foreign_keys=OFF")
        for model in (ItemDetail, Item):
            raw.execute(f"DELETE FROM {model._meta.db_table}")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def insert_product(first: int, count: int) -> dict[str, float]:
    """Add items as the poller does after it has fetched a feed."""
    clear_items()
    owner, wanted, now = feed(), entries(first, count), timezone.now()
    started, cpu = time.perf_counter(), time.process_time()
    added = add_items(owner, wanted, now)
    seconds, spent = time.perf_counter() - started, time.process_time() - cpu
    if added != count:
        raise AssertionError(f"{added} of {count} items were added")
    return {"seconds": seconds, "cpu_seconds": spent}


def insert_raw(first: int, count: int, with_details: bool) -> dict[str, float]:
    """One executemany for the items, and one for the rows beside them if those are wanted."""
    clear_items()
    owner, now = feed(), timezone.now()
    items = [Item(**asdict(entry), created_at=now, last_checked_at=now) for entry in entries(first, count)]
    statement, names = insert_statement(items[0], ["id"])
    rows = [[values[name] for name in names] for values in map(columns_of, items)]
    detail = columns_of(ItemDetail(item_id=0, feed=owner))
    more, more_names = insert_statement(ItemDetail(item_id=0, feed=owner))
    rest = [detail[name] for name in more_names]
    at = more_names.index("item_id")
    with closing(open_database()) as raw:
        started, cpu = time.perf_counter(), time.process_time()
        raw.execute("BEGIN IMMEDIATE")
        raw.executemany(statement, rows)
        if with_details:
            found = raw.execute("SELECT id FROM items").fetchall()
            raw.executemany(more, [[*rest[:at], pk, *rest[at + 1 :]] for (pk,) in found])
        raw.execute("COMMIT")
        return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}


def fill_items(count: int) -> int:
    """Rows in every status, each with its detail."""
    clear_items()
    owner = feed()

    def items() -> Iterator[Values]:
        for n in range(count):
            # Spread over the whole table: no status lies together in the file.
            status = STATUSES[n * 7919 % len(STATUSES)]
            at = BEGINNING + timedelta(seconds=n)
            yield {
                "id": n + 1,
                "url": f"https://example.test/news/{n:08}.html",
                "title": f"Title of item {n}",
                "published_at": at,
                "status": int(status),
                "reason": 0 if status is Status.PROCESSED else None,
                "created_at": at,
                "last_checked_at": at,
            }

    insert_rows(Item, items())
    insert_rows(ItemDetail, ({"item_id": n + 1, "feed_id": owner.pk} for n in range(count)))
    with closing(open_database()) as raw:
        raw.execute("ANALYZE")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Item.objects.count()


def claim_items(count: int, pending: bool) -> dict[str, Any]:
    """Choose and claim as the poller does. Each claim is released again, so that a thousand rows are enough."""
    times: list[float] = []
    cpu_times: list[float] = []
    queries: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        queries.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        for _ in range(count):
            queries.clear()
            now = timezone.now()
            started, cpu = time.perf_counter(), time.process_time()
            if pending:
                chosen = selectors.pending_candidates(is_mastodon_on=True)
                claim = claim_item(chosen[0], [Status.PENDING], "bench", now)
            else:
                chosen = selectors.screening_candidates(now, now)
                claim = claim_item(chosen[0], WAITING, "bench", now)
            times.append(time.perf_counter() - started)
            cpu_times.append(time.process_time() - cpu)
            if claim is None:
                raise AssertionError("nobody else is here, and yet the item was taken")
            asked = len([sql for sql in queries if not sql.startswith(("BEGIN", "SAVEPOINT", "RELEASE"))])
            leases.complete(claim.claim)
    return {
        "times_ms": [1000 * seconds for seconds in times],
        "cpu_ms": [1000 * seconds for seconds in cpu_times],
        "queries": asked,
    }


def claim_plans() -> list[str]:
    """How SQLite finds the candidates."""
    statements: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        selectors.pending_candidates(is_mastodon_on=True)
        selectors.screening_candidates(timezone.now(), timezone.now())
    plans: list[str] = []
    with connection.cursor() as cursor:
        for sql, params in statements:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            plans += [str(row[3]) for row in cursor.fetchall()]
    return plans


COMMANDS: dict[str, Command] = {
    "insert_product": insert_product,
    "insert_raw": insert_raw,
    "fill_items": fill_items,
    "claim_items": claim_items,
    "claim_plans": claim_plans,
}
