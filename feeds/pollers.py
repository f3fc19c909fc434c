"""The entry points of the pollers ``feeds`` and ``items``."""

from __future__ import annotations

import os
import socket
from collections import Counter

from django.conf import settings
from django.utils import timezone

from broker_project.lib.http import Fetcher
from broker_project.ops.clock.pollers import Counts, PollOptions
from feeds import selectors
from feeds.services.ingest import fetch_feed, sync_feeds
from feeds.services.processing import make_tools
from feeds.services.runs import ItemRun

FEED_COUNTS = ("fetched", "unchanged", "failed", "added", "known", "skipped")


def poll_feeds(options: PollOptions) -> Counts:
    """Fetch the feeds that are due (``force``: every enabled one) and add new items."""
    config = settings.BROKER
    counts: Counter[str] = Counter(dict.fromkeys(FEED_COUNTS, 0))
    sync_feeds(config.feed_urls)
    due = list(selectors.due_feeds(config.feed_urls, timezone.now(), is_forced=options.force))
    with Fetcher(config.allowed_private_hosts) as fetcher:
        for number, feed in enumerate(due, start=1):
            options.report(f"{number}/{len(due)} {feed.url}")
            outcome = fetch_feed(feed, fetcher, timezone.now())
            counts["failed" if outcome.error else "unchanged" if outcome.is_unchanged else "fetched"] += 1
            counts.update(added=outcome.added, known=outcome.known, skipped=outcome.skipped)
    return counts


def poll_items(options: PollOptions) -> Counts:
    """One step; with ``all`` until nothing is due."""
    who = f"{options.by}@{socket.gethostname()}:{os.getpid()}"
    run = ItemRun(make_tools(who))
    with run.tools.fetcher:
        run.sweep()
        while run.step() and options.all:
            options.report(f"screened {run.counts['screened']}, posted {run.counts['posted']}")
    return run.counts
