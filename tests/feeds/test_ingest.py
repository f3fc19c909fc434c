from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from broker_project.lib.errors import ActionRefused
from broker_project.lib.http import Fetcher
from broker_project.ops.clock.pollers import PollOptions
from feeds.models import Feed, Item, ItemDetail
from feeds.pollers import poll_feeds
from feeds.reading.parsing import Entry
from feeds.selectors import due_feeds
from feeds.services.ingest import (
    BACKOFF,
    FETCH_INTERVAL,
    add_items,
    fetch_feed,
    pause_feed,
    resume_feed,
    sync_feeds,
)
from sandbox.launcher import SandboxHandle

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    with Fetcher(settings.BROKER.allowed_private_hosts) as made:
        yield made


@pytest.fixture
def feed(sandbox: SandboxHandle) -> Feed:
    return Feed.objects.create(url=f"{sandbox.base_url}/feed/news.rdf")


def test_new_items_are_as_the_seed_says(feed: Feed, fetcher: Fetcher) -> None:
    now = timezone.now()
    outcome = fetch_feed(feed, fetcher, now)
    assert outcome.added == Item.objects.count() > 5
    for item in Item.objects.select_related("detail"):
        assert (item.status, item.reason, item.retry_count) == (0, None, 0)
        assert item.last_checked_at == item.created_at == now
        assert item.detail.feed == feed
    assert "情報通信産業の実態に関する統計調査①～速報値の公表～" in Item.objects.values_list(
        "title", flat=True
    )


def test_a_known_address_adds_nothing_and_changes_nothing(
    feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle
) -> None:
    added = fetch_feed(feed, fetcher, timezone.now()).added
    Item.objects.update(title="old title", status=3)
    sandbox.load("feed", {"is_etag_on": False})
    outcome = fetch_feed(feed, fetcher, timezone.now())
    assert (outcome.added, outcome.known) == (0, added)
    assert set(Item.objects.values_list("title", "status")) == {("old title", 3)}


def test_unchanged_feeds_are_not_sent_again(feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle) -> None:
    fetch_feed(feed, fetcher, timezone.now())
    assert feed.etag
    assert fetch_feed(Feed.objects.get(), fetcher, timezone.now()).is_unchanged
    assert sandbox.calls("feed")[0]["status"] == 304


def test_the_other_formats(fetcher: Fetcher, sandbox: SandboxHandle) -> None:
    counts = set()
    for name in ("news.rdf", "rss2.xml", "atom.xml"):
        Item.objects.all().delete()
        feed = Feed.objects.create(url=f"{sandbox.base_url}/feed/{name}")
        counts.add(fetch_feed(feed, fetcher, timezone.now()).added)
    assert len(counts) == 1


def test_broken_entries_are_counted(feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle) -> None:
    broken = [
        {"title": "リンクなし", "has_link": False},
        {"title": "日付なし", "has_date": False},
        {"title": ""},
    ]
    sandbox.load("feed", {"items": [{"title": "よい項目", "slug": "good_1"}, *broken]})
    outcome = fetch_feed(feed, fetcher, timezone.now())
    assert (outcome.added, outcome.skipped) == (1, 3)
    assert Feed.objects.get().last_skipped == 3


def test_ten_thousand_items_at_once(feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle) -> None:
    sandbox.load("feed", {"items": [], "bulk": 10_000})
    assert fetch_feed(feed, fetcher, timezone.now()).added == 10_000
    assert ItemDetail.objects.filter(feed=feed).count() == 10_000
    assert Item.objects.values("url").distinct().count() == 10_000


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"kind": "status", "status": 404}, "404"),
        ({"kind": "status", "status": 503}, "503"),
        ({"kind": "drop"}, "Disconnected"),
        ({"kind": "garbage"}, "feed"),
    ],
)
def test_every_failure_saves_the_error_and_the_next_time(
    feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle, fault: dict, said: str
) -> None:
    sandbox.fault("feed", **fault)
    now = timezone.now()
    outcome = fetch_feed(feed, fetcher, now)
    saved = Feed.objects.get()
    assert outcome.error
    assert said.lower() in saved.last_error.lower() or fault["kind"] == "drop"
    assert (saved.failures, saved.last_fetch_at) == (1, now)
    assert saved.next_fetch_at is not None
    assert timedelta(0) < saved.next_fetch_at - now <= timedelta(seconds=BACKOFF.base_seconds)


def test_backoff_grows_and_is_forgiven(feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle) -> None:
    sandbox.fault("feed", "status", status=500, times=6)
    now, waits = timezone.now(), []
    for _ in range(6):
        fetch_feed(feed, fetcher, now)
        assert feed.next_fetch_at is not None
        waits.append((feed.next_fetch_at - now).total_seconds())
    assert waits[-1] > 4 * BACKOFF.base_seconds
    assert max(waits) <= BACKOFF.cap_seconds
    assert fetch_feed(feed, fetcher, now).added
    assert (feed.failures, feed.last_error, feed.next_fetch_at) == (0, "", now + FETCH_INTERVAL)


def test_retry_after_is_obeyed(feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle) -> None:
    sandbox.fault("feed", "status", status=429, headers={"Retry-After": "7200"})
    now = timezone.now()
    fetch_feed(feed, fetcher, now)
    assert feed.next_fetch_at == now + timedelta(seconds=7200)


@pytest.mark.parametrize("path", ["xml-bomb.rdf", "xxe.rdf", "endless", "gzip-bomb", "redirect-loop"])
def test_hostile_feeds_do_no_harm(fetcher: Fetcher, sandbox: SandboxHandle, path: str) -> None:
    feed = Feed.objects.create(url=f"{sandbox.base_url}/feed/hostile/{path}")
    fetch_feed(feed, fetcher, timezone.now())
    assert Item.objects.count() == 0
    assert feed.next_fetch_at is not None
    assert "root:" not in feed.title + feed.last_error


def test_the_validators_are_kept_only_with_their_items(
    feed: Feed, fetcher: Fetcher, sandbox: SandboxHandle
) -> None:
    sandbox.fault("feed", "garbage")
    fetch_feed(feed, fetcher, timezone.now())
    assert feed.etag == ""
    assert fetch_feed(feed, fetcher, timezone.now()).added > 0


# Which feeds there are


def test_feeds_follow_the_setting_and_the_admin() -> None:
    kept = Feed.objects.create(url="https://admin.example.jp/feed", source=Feed.Source.ADMIN)
    sync_feeds(["https://a.example.jp/", "https://b.example.jp/"])
    assert sync_feeds(["https://a.example.jp/", "https://b.example.jp/"]) == 0
    now = timezone.now()
    both = ["https://a.example.jp/", "https://b.example.jp/"]
    assert {feed.url for feed in due_feeds(both, now)} == {*both, kept.url}
    # Taken out of the setting: the row stays, and is not fetched.
    assert {feed.url for feed in due_feeds(both[:1], now)} == {both[0], kept.url}
    assert Feed.objects.count() == 3


def test_only_due_and_enabled_feeds_are_fetched() -> None:
    now = timezone.now()
    for name, enabled, next_at in [
        ("new", True, None),
        ("due", True, now),
        ("later", True, now + timedelta(minutes=1)),
        ("off", False, None),
    ]:
        Feed.objects.create(url=f"https://{name}.example.jp/", is_enabled=enabled, next_fetch_at=next_at)
    assert [feed.url.split(".")[0][8:] for feed in due_feeds([], now)] == ["new", "due"]
    assert len(due_feeds([], now, is_forced=True)) == 3


def test_pause_and_resume() -> None:
    feed = Feed.objects.create(url="https://a.example.jp/", failures=4)
    now = timezone.now()
    pause_feed(feed.pk)
    with pytest.raises(ActionRefused):
        pause_feed(feed.pk)
    resume_feed(feed.pk, now)
    with pytest.raises(ActionRefused):
        resume_feed(feed.pk, now)
    feed.refresh_from_db()
    assert (feed.is_enabled, feed.failures, feed.next_fetch_at) == (True, 0, now)


def test_a_feed_paused_while_it_is_fetched_stays_paused(feed: Feed, fetcher: Fetcher) -> None:
    pause_feed(feed.pk)  # `feed` in memory is still enabled, as in a poller that has just begun
    fetch_feed(feed, fetcher, timezone.now())
    assert Feed.objects.get().is_enabled is False


def test_the_poller_counts(sandbox: SandboxHandle) -> None:
    Feed.objects.create(url=f"{sandbox.base_url}/feed/nothing")
    counts = poll_feeds(PollOptions())
    assert (counts["fetched"], counts["failed"]) == (1, 1)
    assert counts["added"] == Item.objects.count()
    # Both have a next time now; --force does not wait for it.
    assert sum(poll_feeds(PollOptions()).values()) == 0
    forced = poll_feeds(PollOptions(force=True))
    assert (forced["unchanged"], forced["failed"]) == (1, 1)


def test_the_same_entry_twice_is_one_item(feed: Feed) -> None:
    now = timezone.now()
    entry = Entry("https://a.example.jp/1", "題名", now)
    assert add_items(feed, [entry], now) == 1
    assert add_items(feed, [entry, Entry("https://a.example.jp/2", "題名", now)], now) == 1
