"""Fetching feeds and adding their new items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from random import random

from django.db import connection, transaction
from django.utils.translation import gettext_lazy as _

from broker_project.lib.errors import ActionRefused, OutsideError
from broker_project.lib.http import Fetcher
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.lib.retry import RetryPolicy, backoff_seconds
from feeds.models import Feed, Item, ItemDetail
from feeds.reading.parsing import Entry, NotAFeed, parse_feed

log = get_logger(__name__)

MAX_FEED_BYTES = 16 * 2**20  # some forty thousand entries
# A little less than the poller's interval, so that a run that is some seconds early finds its feeds due.
FETCH_INTERVAL = timedelta(minutes=14)
BACKOFF = RetryPolicy(base_seconds=15 * 60, factor=2.0, cap_seconds=24 * 3600)
BATCH = 1000


@dataclass(frozen=True)
class FetchOutcome:
    """``error`` is empty if the fetch succeeded."""

    added: int = 0
    known: int = 0
    skipped: int = 0
    is_unchanged: bool = False
    error: str = ""


def sync_feeds(urls: Sequence[str]) -> int:
    """Add a row for every new address of the setting. None is removed: :func:`feeds.selectors.due_feeds` chooses."""
    known = set(Feed.objects.filter(url__in=urls).values_list("url", flat=True))
    new = [Feed(url=url, source=Feed.Source.SETTING) for url in urls if url not in known]
    Feed.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


def fetch_feed(feed: Feed, fetcher: Fetcher, now: datetime) -> FetchOutcome:
    """Fetch one feed and add its new items. However it ends, the outcome and the next time are on its row."""
    headers = {}
    if feed.etag:
        headers["If-None-Match"] = feed.etag
    if feed.last_modified:
        headers["If-Modified-Since"] = feed.last_modified
    try:
        fetched = fetcher.fetch(feed.url, max_bytes=MAX_FEED_BYTES, headers=headers)
        if fetched.status == 304:
            _save_success(feed, now)
            return FetchOutcome(is_unchanged=True)
        content_type = fetched.headers.get("content-type", "")
        parsed = parse_feed(fetched.body, content_type=content_type, base_url=fetched.url)
        added = add_items(feed, parsed.entries, now)
    except (OutsideError, NotAFeed) as error:
        return _save_failure(feed, error, now)
    except Exception as error:  # whatever it was, the other feeds are fetched
        log.exception("feed not processed", feed=feed.pk)
        return _save_failure(feed, error, now)
    # Stored only after the items: otherwise the next answer, 304, would hide what was not added.
    _save_success(
        feed,
        now,
        title=parsed.title or feed.title,
        etag=fetched.headers.get("etag", "")[:500],
        last_modified=fetched.headers.get("last-modified", "")[:100],
        last_added=added,
        last_skipped=parsed.skipped,
    )
    return FetchOutcome(added, len(parsed.entries) - added, parsed.skipped)


def _save_success(feed: Feed, now: datetime, **changes: object) -> None:
    _save(feed, last_fetch_at=now, next_fetch_at=now + FETCH_INTERVAL, failures=0, last_error="", **changes)


def _save_failure(feed: Feed, error: Exception, now: datetime) -> FetchOutcome:
    failures = feed.failures + 1
    delay = backoff_seconds(BACKOFF, failures, random())  # noqa: S311 - jitter, not a secret
    if isinstance(error, OutsideError) and error.retry_after_seconds is not None:
        delay = min(max(delay, error.retry_after_seconds), BACKOFF.cap_seconds)
    text = redact(str(error) or type(error).__name__, 1000)
    next_at = now + timedelta(seconds=delay)
    _save(feed, last_fetch_at=now, next_fetch_at=next_at, failures=failures, last_error=text)
    return FetchOutcome(error=text)


def _save(feed: Feed, **changes: object) -> None:
    for name, value in changes.items():
        setattr(feed, name, value)
    # Only these columns: an admin may have paused the feed while it was being fetched.
    feed.save(update_fields=list(changes))


def add_items(feed: Feed, entries: Sequence[Entry], now: datetime) -> int:
    """Insert the entries with new addresses and return how many. A known address changes nothing."""
    added = 0
    rest = iter(entries)
    # A transaction for each batch: ten thousand rows in one would keep other writers waiting for seconds.
    while batch := list(islice(rest, BATCH)):
        known = set(Item.objects.filter(url__in=[entry.url for entry in batch]).values_list("url", flat=True))
        new = [entry for entry in batch if entry.url not in known]
        if new:
            with transaction.atomic():
                added += insert_items(feed, new, now)
    return added


def insert_items(feed: Feed, entries: Sequence[Entry], now: datetime) -> int:
    """Rows of ``items`` with their details, without model instances: those take ten times as long as the insert.

    An address that another process inserted meanwhile is left to it. That process inserts the detail in the same
    transaction, so an item that is newer than our start and has no detail is ours.
    """
    moment = connection.ops.adapt_datetimefield_value
    created_at = moment(now)
    rows = [(entry.url, entry.title, moment(entry.published_at), created_at, created_at) for entry in entries]
    detail = ItemDetail(feed=feed)
    fields = [field for field in ItemDetail._meta.concrete_fields if not field.primary_key]
    values = [field.get_db_prep_save(getattr(detail, field.attname), connection) for field in fields]
    names = ", ".join(str(field.column) for field in fields)
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(id), 0) FROM items")
        (newest,) = cursor.fetchone()
        cursor.executemany(
            "INSERT INTO items (url, title, published_at, created_at, last_checked_at, status, retry_count)"
            " VALUES (%s, %s, %s, %s, %s, 0, 0) ON CONFLICT DO NOTHING",
            rows,
        )
        cursor.execute(
            f"INSERT INTO feeds_itemdetail (item_id, {names})"  # noqa: S608 - our own column names
            f" SELECT i.id, {', '.join(['%s'] * len(fields))} FROM items i WHERE i.id > %s"
            " AND NOT EXISTS (SELECT 1 FROM feeds_itemdetail d WHERE d.item_id = i.id)",
            [*values, newest],
        )
        return int(cursor.rowcount)


def pause_feed(feed_id: int) -> None:
    """Not fetched until somebody resumes it. Raises :class:`ActionRefused`."""
    if not Feed.objects.filter(pk=feed_id, is_enabled=True).update(is_enabled=False):
        raise ActionRefused(_("paused already"))


def resume_feed(feed_id: int, now: datetime) -> None:
    """Enabled again and due at once, its failures forgotten. Raises :class:`ActionRefused`."""
    paused = Feed.objects.filter(pk=feed_id, is_enabled=False)
    if not paused.update(is_enabled=True, next_fetch_at=now, failures=0):
        raise ActionRefused(_("not paused"))
