"""This app's figures at ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily, Metric

from feeds import selectors


def metric_families() -> Iterable[Metric]:
    items = GaugeMetricFamily("broker_feed_items", "Feed items by status.", labels=["status"])
    for status, count in selectors.counts_by_status().items():
        items.add_metric([status], count)
    yield items

    posts = GaugeMetricFamily("broker_feed_posts", "Posts by state.", labels=["state"])
    for state, count in selectors.counts_by_post_state().items():
        posts.add_metric([state], count)
    yield posts

    yield GaugeMetricFamily(
        "broker_feeds_failing",
        "Enabled feeds whose last fetch failed.",
        value=selectors.failing_feeds().count(),
    )
    yield GaugeMetricFamily(
        "broker_feed_leases", "Items being worked on.", value=selectors.live_leases(timezone.now()).count()
    )
    oldest = selectors.oldest_pending()
    age = (timezone.now() - oldest.last_checked_at).total_seconds() if oldest else 0.0
    yield GaugeMetricFamily(
        "broker_feed_oldest_pending_seconds", "How long the oldest pending item has been waiting.", value=age
    )
