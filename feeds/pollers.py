"""The entry points of the pollers ``feeds`` and ``items``."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter

from django.conf import settings
from django.utils import timezone

from broker_project.lib.http import Fetcher
from broker_project.ops.clock.pollers import Counts, PollOptions
from feeds import selectors
from feeds.lifecycle import Happening
from feeds.reading.documents import remove_leftovers
from feeds.services import items as services
from feeds.services.ingest import fetch_feed, sync_feeds
from feeds.services.processing import StepResult, Tools, make_tools, screen_item, summarise_item

FEED_COUNTS = ("fetched", "unchanged", "failed", "added", "known", "skipped")
ITEM_COUNTS = ("screened", "posted", "drafted", "yes", "no", "wait", "failed", "crashed", "lost")
FAILED = (Happening.FETCH_FAILED, Happening.ALL_TOO_LARGE, Happening.API_FAILED)


def poll_feeds(options: PollOptions) -> Counts:
    """Fetch the feeds that are due (``force``: every enabled one) and add what is new."""
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
    """One step; with ``all`` until nothing is due. No item is screened, or summarised, twice in one run."""
    who = f"{options.by}@{socket.gethostname()}:{os.getpid()}"
    run = ItemRun(make_tools(who))
    with run.tools.fetcher:
        run.sweep()
        while run.step() and options.all:
            options.report(f"screened {run.counts['screened']}, posted {run.counts['posted']}")
    return run.counts


class ItemRun:
    """One run of the poller: what it has touched, and its counts."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.started_at = tools.clock()
        self.counts: Counter[str] = Counter(dict.fromkeys(ITEM_COUNTS, 0))
        self._summarised: set[int] = set()
        self._screened: set[int] = set()

    def sweep(self) -> None:
        """Take back what killed workers left: their claims, each counted, and their files."""
        self.counts["crashed"] += services.sweep_stale_leases(self.tools.clock())
        remove_leftovers(self.tools.downloads, settings.BROKER.feed_lease_seconds, time.time())
        # What was just taken back may be screened in this very run.
        self.started_at = self.tools.clock()

    def step(self) -> bool:
        """Summarise and post the oldest pending item, else screen one. False if nothing was due."""
        for pk in selectors.pending_candidates(is_mastodon_on=self.tools.account.is_available):
            if pk in self._summarised:
                continue
            self._summarised.add(pk)
            if (result := summarise_item(pk, self.tools)) is not None:
                self._count(result)
                return True
        for pk in selectors.screening_candidates(self.started_at, self.tools.clock()):
            if pk in self._screened:
                continue
            self._screened.add(pk)
            if (result := screen_item(pk, self.tools)) is not None:
                self.counts["screened"] += 1
                self._count(result)
                return True
        return False

    def _count(self, result: StepResult) -> None:
        happening = result.happening
        if happening is None:
            self.counts["lost"] += 1
        elif happening in FAILED:
            self.counts["failed"] += 1
        else:
            self.counts[happening.value] += 1
