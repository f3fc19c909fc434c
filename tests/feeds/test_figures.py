"""Selectors and metrics."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from feeds import selectors
from feeds.lifecycle import WAITING, Status
from feeds.metrics import metric_families
from feeds.models import Feed, Post
from feeds.services.transitions import claim_item
from tests.feeds.conftest import MakeItem

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def test_counts_name_every_status(make_item: MakeItem) -> None:
    make_item()
    make_item(status=Status.DEFERRED, reason=3)
    make_item(status=Status.PROCESSED, reason=0)
    assert selectors.counts_by_status() == {"unprocessed": 1, "deferred": 1, "pending": 0, "processed": 1}
    reasons = selectors.reasons_since(timezone.now() - timedelta(days=1))
    assert (reasons["none"], reasons["download_failed"], reasons["api_failed"]) == (1, 1, 0)


def test_metrics(make_item: MakeItem) -> None:
    claimed, posted = make_item(), make_item(status=Status.PROCESSED, reason=0)
    make_item(status=Status.PENDING)
    claim_item(claimed.pk, WAITING, "a", timezone.now())
    Post.objects.create(
        item=posted,
        text="t",
        idempotency_key="k",
        state=Post.State.POSTED,
        created_at=timezone.now(),
        posted_at=timezone.now(),
    )
    Feed.objects.create(url="https://a.example.jp/", failures=2)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metric_families()
        for sample in family.samples
    }
    assert samples["broker_feed_items", "unprocessed"] == 1
    assert samples["broker_feed_items", "processed"] == 1
    assert samples["broker_feed_posts", "posted"] == 1
    assert samples["broker_feeds_failing",] == 1
    assert samples["broker_feed_leases",] == 1
    assert samples["broker_feed_oldest_pending_seconds",] > 3000
    assert [post.item for post in selectors.recent_posts()] == [posted]
    assert len(selectors.live_leases(timezone.now())) == 1


def test_usage(make_item: MakeItem) -> None:
    from feeds.models import ItemDetail

    make_item()
    ItemDetail.objects.update(screened_at=timezone.now(), input_tokens=10, output_tokens=3, cost_usd="0.5")
    usage = selectors.usage_since(timezone.now())
    assert (usage["input_tokens"], usage["output_tokens"], float(usage["cost_usd"])) == (10, 3, 0.5)
