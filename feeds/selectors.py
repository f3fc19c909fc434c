"""Every query of runs, pages and metrics about items and feeds. No writes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum

from broker_project.lib.kept import figure
from feeds.lifecycle import Reason, Status
from feeds.models import Feed, Item, ItemDetail, ItemEvent, ItemLease, Post

CLOCK_AHEAD = timedelta(hours=1)  # the clocks of two workers differ by less
CHOICES = 8  # candidates for one claim, so that as many workers can start at once


def pending_candidates(*, is_mastodon_on: bool) -> list[int]:
    """Items to summarise and post, oldest publication first, without those whose post cannot be sent now."""
    due = Item.objects.filter(status=Status.PENDING, lease__isnull=True)
    if is_mastodon_on:
        due = due.exclude(post__state=Post.State.DRAFT, detail__feed__is_dry_run=True)
    else:
        due = due.exclude(post__state__in=[Post.State.DRAFT, Post.State.INTENT, Post.State.UNCLEAR])
    return list(due.order_by("published_at", "pk").values_list("pk", flat=True)[:CHOICES])


def screening_candidates(checked_until: datetime, now: datetime) -> list[int]:
    """Items to screen that were last checked until then, the longest unchecked first.

    An item that was checked by a clock far ahead of ours is due as well, or it would wait until that time.
    """
    found: list[tuple[datetime, int]] = []
    times = Q(last_checked_at__lte=checked_until), Q(last_checked_at__gt=now + CLOCK_AHEAD)
    # One query per status walks the index and stops; a query for both would sort every waiting row.
    for status, time in product((Status.UNPROCESSED, Status.DEFERRED), times):
        due = Item.objects.filter(time, status=status, lease__isnull=True)
        found += due.order_by("last_checked_at").values_list("last_checked_at", "pk")[:CHOICES]
    return [pk for _, pk in sorted(found)[:CHOICES]]


def due_feeds(urls: Sequence[str], now: datetime, *, is_forced: bool = False) -> QuerySet[Feed]:
    """Enabled feeds: those that an admin added, and those that the setting still names."""
    due = Feed.objects.filter(Q(source=Feed.Source.ADMIN) | Q(url__in=urls), is_enabled=True)
    if not is_forced:
        due = due.filter(Q(next_fetch_at__isnull=True) | Q(next_fetch_at__lte=now))
    return due.order_by(F("next_fetch_at").asc(nulls_first=True), "pk")


def counts_by_status() -> dict[str, int]:
    """Items by status word, every status named. A count of very many rows is kept for some seconds."""
    rows = Item.objects.values_list("status").annotate(Count("pk")).order_by()
    found = figure("items", lambda _: dict(rows))
    return {status.name.lower(): found.get(status.value, 0) for status in Status}


def given_up_count() -> int:
    rows = Item.objects.filter(status=Status.PROCESSED, reason=Reason.RETRY_LIMIT_EXCEEDED)
    return figure("items:exhausted", lambda _: rows.count())


def unclear_post_count() -> int:
    return Post.objects.filter(state=Post.State.UNCLEAR).count()


def counts_by_post_state() -> dict[str, int]:
    found = dict(Post.objects.values_list("state").annotate(Count("pk")).order_by())
    return {state.value: found.get(state.value, 0) for state in Post.State}


def reasons_since(moment: datetime) -> dict[str, int]:
    """Items deferred or ended since then, by reason."""
    checked = Item.objects.filter(status__in=[Status.DEFERRED, Status.PROCESSED], last_checked_at__gte=moment)
    found = dict(checked.values_list("reason").annotate(Count("pk")).order_by())
    return {reason.name.lower(): found.get(reason.value, 0) for reason in Reason}


def feed_counts() -> dict[str, int]:
    return Feed.objects.aggregate(
        enabled=Count("pk", filter=Q(is_enabled=True)),
        paused=Count("pk", filter=Q(is_enabled=False)),
        failing=Count("pk", filter=Q(failures__gt=0)),
    )


def failing_feeds() -> QuerySet[Feed]:
    return Feed.objects.filter(is_enabled=True, failures__gt=0).order_by("-failures")


def feeds_overview() -> QuerySet[Feed]:
    return Feed.objects.order_by("-is_enabled", "pk")


def recent_posts(limit: int = 20) -> list[Post]:
    posted = Post.objects.filter(state=Post.State.POSTED).select_related("item")
    return list(posted.order_by("-posted_at")[:limit])


def recent_events(limit: int = 30) -> list[ItemEvent]:
    return list(ItemEvent.objects.select_related("item").order_by("-pk")[:limit])


def oldest_pending() -> Item | None:
    return Item.objects.filter(status=Status.PENDING).order_by("published_at").first()


def live_leases(now: datetime) -> QuerySet[ItemLease]:
    return ItemLease.objects.filter(expires_at__gt=now).select_related("item").order_by("claimed_at")


def usage_since(now: datetime, days: int = 30) -> dict[str, Any]:
    """Tokens and cost of what was summarised or screened lately."""
    since = now - timedelta(days=days)
    totals = ItemDetail.objects.filter(screened_at__gte=since).aggregate(
        input_tokens=Sum("input_tokens"), output_tokens=Sum("output_tokens"), cost_usd=Sum("cost_usd")
    )
    return {name: total or Decimal(0) for name, total in totals.items()}


def item_timeline(item_id: int) -> list[ItemEvent]:
    """Newest first."""
    return list(ItemEvent.objects.filter(item_id=item_id).order_by("-pk")[:200])
