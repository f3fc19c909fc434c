"""One run over the items: which is next, and the counts of what was done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from django.conf import settings

from broker_project.lib.claims import LeaseLost
from feeds import selectors
from feeds.lifecycle import Outcome
from feeds.reading.documents import remove_leftovers
from feeds.services.processing import Tools, screen_item, summarise_item
from feeds.services.transitions import sweep_stale_leases

COUNTS = ("screened", "posted", "drafted", "yes", "no", "wait", "failed", "crashed", "lost")
FAILED = (Outcome.FETCH_FAILED, Outcome.ALL_TOO_LARGE, Outcome.API_FAILED)


class ItemRun:
    """No item is screened, or summarised, twice in one run."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.started_at = tools.clock()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self._summarised: set[int] = set()
        self._screened: set[int] = set()

    def sweep(self) -> None:
        """Take back what killed workers left: their claims, each counted, and their files."""
        self.counts["crashed"] += sweep_stale_leases(self.tools.clock())
        remove_leftovers(self.tools.downloads, settings.BROKER.feed_lease_seconds, time.time())
        # What was just taken back may be screened in this same run.
        self.started_at = self.tools.clock()

    def step(self) -> bool:
        """Summarise and post the oldest pending item, else screen one. False if nothing was due."""
        for pk in selectors.pending_candidates(is_mastodon_on=self.tools.account.is_available):
            if pk not in self._summarised:
                self._summarised.add(pk)
                if self._was_done(summarise_item, pk):
                    return True
        for pk in selectors.screening_candidates(self.started_at, self.tools.clock()):
            if pk not in self._screened:
                self._screened.add(pk)
                if self._was_done(screen_item, pk):
                    self.counts["screened"] += 1
                    return True
        return False

    def _was_done(self, step: Callable[[int, Tools], Outcome | None], pk: int) -> bool:
        """Whether the item could be claimed; the outcome is counted."""
        try:
            outcome = step(pk, self.tools)
        except LeaseLost:
            self.counts["lost"] += 1
            return True
        if outcome is not None:
            self.counts["failed" if outcome in FAILED else outcome.value] += 1
        return outcome is not None
