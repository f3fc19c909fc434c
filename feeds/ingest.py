"""Feeds into items: which feeds there are, fetching one, adding what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from random import random

from django.db import transaction

from broker_project.lib.errors import OutsideError
from broker_project.lib.http import Fetcher
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.lib.retry import RetryPolicy, backoff_seconds
from feeds.models import Feed, Item, ItemDetail, new_item
from feeds.parsing import Entry, NotAFeed, parse_feed

log = get_logger(__name__)

MAX_FEED_BYTES = 16 * 2**20  # some forty thousand entries
# A little less than the poller's interval, so that a run which is some seconds early finds its feeds due.
FETCH_INTERVAL = timedelta(minutes=14)
BACKOFF = RetryPolicy(base_seconds=15 * 60, factor=2.0, cap_seconds=24 * 3600)
BATCH = 500


@dataclass(frozen=True)
class FetchOutcome:
    """How a fetch ended: ``error`` is empty if it went well."""

    added: int = 0
    known: int = 0
    skipped: int = 0
    is_unchanged: bool = False
    error: str = ""


def sync_feeds(urls: Sequence[str]) -> int:
    """A row for every address of the setting. None is removed; :func:`feeds.selectors.due_feeds` chooses."""
    known = set(Feed.objects.filter(url__in=urls).values_list("url", flat=True))
    new = [Feed(url=url, source=Feed.Source.SETTING) for url in urls if url not in known]
    Feed.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


def fetch_feed(feed: Feed, fetcher: Fetcher, now: datetime) -> FetchOutcome:
    """Fetch one feed and add what is new. However it ends, the outcome and the next time are on its row."""
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
    except Exception as error:  # one feed's surprise must not keep the others from being fetched
        log.exception("feed not processed", feed=feed.pk)
        return _save_failure(feed, error, now)
    # The validators are stored only with the items they vouch for.
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
    """Insert what is not known yet; a known address changes nothing. Returns how many are new."""
    added = 0
    rest = iter(entries)
    # A transaction for each batch: a feed of ten thousand must not keep other writers waiting for seconds.
    while batch := list(islice(rest, BATCH)):
        urls = [entry.url for entry in batch]
        known = set(Item.objects.filter(url__in=urls).values_list("url", flat=True))
        new = [entry for entry in batch if entry.url not in known]
        if not new:
            continue
        with transaction.atomic():
            Item.objects.bulk_create(
                [new_item(entry.url, entry.title, entry.published_at, now) for entry in new],
                ignore_conflicts=True,
            )
            # Another process may have inserted some of them: only rows without a detail are ours to describe.
            rows = Item.objects.filter(url__in=[entry.url for entry in new], detail__isnull=True)
            details = [ItemDetail(item_id=pk, feed=feed) for pk in rows.values_list("pk", flat=True)]
            ItemDetail.objects.bulk_create(details, ignore_conflicts=True)
        added += len(details)
    return added


def pause_feed(feed_id: int) -> bool:
    return bool(Feed.objects.filter(pk=feed_id, is_enabled=True).update(is_enabled=False))


def resume_feed(feed_id: int, now: datetime) -> bool:
    """Enabled again and due at once, its failures forgiven."""
    return bool(
        Feed.objects.filter(pk=feed_id, is_enabled=False).update(
            is_enabled=True, next_fetch_at=now, failures=0
        )
    )
