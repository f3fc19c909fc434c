from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from broker_project.lib.claims import LeaseLost
from broker_project.lib.errors import ActionRefused
from feeds.lifecycle import OPEN, WAITING, Outcome, Status
from feeds.models import Item, ItemDetail, ItemEvent, ItemLease, Post
from feeds.selectors import pending_candidates, screening_candidates
from feeds.services import actions, transitions
from tests.feeds.conftest import MakeItem

pytestmark = [pytest.mark.django_db, pytest.mark.database]
LEASE = timedelta(seconds=settings.BROKER.feed_lease_seconds)


def make_post(item: Item, state: Post.State = Post.State.DRAFT, **given: object) -> Post:
    return Post.objects.create(
        item=item,
        text="text",
        idempotency_key=f"key-{item.pk}",
        state=state,
        created_at=timezone.now(),
        **given,
    )


# Claims


def test_an_item_is_claimed_once(make_item: MakeItem) -> None:
    item, now = make_item(), timezone.now()
    claim = transitions.claim_item(item.pk, WAITING, "a", now)
    assert claim is not None
    assert transitions.claim_item(item.pk, WAITING, "b", now) is None
    assert ItemLease.objects.get().expires_at == now + LEASE


def test_a_status_that_moved_on_is_not_claimed(make_item: MakeItem) -> None:
    item = make_item(status=Status.PENDING)
    assert transitions.claim_item(item.pk, WAITING, "a", timezone.now()) is None
    assert ItemLease.objects.count() == 0


def test_completion_moves_the_item_and_writes_an_event(make_item: MakeItem) -> None:
    item, now = make_item(), timezone.now()
    claim = transitions.claim_item(item.pk, WAITING, "worker", now)
    assert claim
    transitions.complete_claim(claim, Outcome.WAIT, why="not ready", now=now, detail={"verdict": "WAIT"})
    item.refresh_from_db()
    assert (item.status, item.reason, item.retry_count, item.last_checked_at) == (1, 2, 1, now)
    event = ItemEvent.objects.get()
    assert (event.what, event.from_status, event.to_status) == ("wait", "unprocessed", "deferred")
    assert (event.reason, event.who, event.at) == ("not ready", "worker", now)
    assert ItemDetail.objects.get().verdict == "WAIT"
    assert ItemLease.objects.count() == 0


def test_a_late_worker_has_no_last_word(make_item: MakeItem) -> None:
    item, now = make_item(), timezone.now()
    late = transitions.claim_item(item.pk, WAITING, "late", now)
    assert late
    after_lease = now + LEASE + timedelta(seconds=1)
    assert transitions.sweep_stale_leases(after_lease) == 1
    second = transitions.claim_item(item.pk, WAITING, "second", after_lease)
    assert second
    with pytest.raises(LeaseLost):
        transitions.renew_claim(late, after_lease)
    with pytest.raises(LeaseLost):
        transitions.complete_claim(late, Outcome.YES, why="", now=after_lease, detail={"verdict": "YES"})
    assert ItemDetail.objects.get().verdict == ""
    transitions.complete_claim(second, Outcome.NO, why="", now=after_lease)
    item.refresh_from_db()
    assert (item.status, item.reason, item.retry_count) == (1, 1, 2)


def test_a_stale_lease_counts_and_frees_the_item(make_item: MakeItem) -> None:
    now = timezone.now()
    for status in OPEN:
        item = make_item(status=status)
        assert transitions.claim_item(item.pk, [status], "gone", now)
    assert transitions.sweep_stale_leases(now + LEASE - timedelta(seconds=1)) == 0
    assert transitions.sweep_stale_leases(now + LEASE) == 3
    assert ItemLease.objects.count() == 0
    assert sorted(Item.objects.values_list("status", "retry_count")) == [(0, 1), (1, 1), (2, 1)]
    assert set(ItemEvent.objects.values_list("what", "who")) == {("crashed", "sweep")}
    assert "gone did not finish" in ItemEvent.objects.all()[0].reason


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S+00:00", "%Y-%m-%d %H:%M:%S"])
def test_a_stale_lease_is_seen_however_its_time_is_written(make_item: MakeItem, form: str) -> None:
    item, now = make_item(), timezone.now().replace(hour=12)
    transitions.claim_item(item.pk, WAITING, "gone", now)
    with connection.cursor() as cursor:
        text = (now - timedelta(seconds=2)).strftime(form)
        cursor.execute("UPDATE feeds_itemlease SET expires_at = %s", [text])
    assert transitions.sweep_stale_leases(now) == 1


def test_a_renewed_lease_is_not_stale(make_item: MakeItem) -> None:
    item, now = make_item(), timezone.now()
    claim = transitions.claim_item(item.pk, WAITING, "a", now)
    assert claim
    transitions.renew_claim(claim, now + LEASE / 2)
    assert transitions.sweep_stale_leases(now + LEASE) == 0


def test_crashes_end_in_reason_six(make_item: MakeItem) -> None:
    item = make_item(retry_count=settings.BROKER.feed_max_retries)
    transitions.claim_item(item.pk, WAITING, "a", timezone.now())
    transitions.sweep_stale_leases(timezone.now() + LEASE)
    item.refresh_from_db()
    assert (item.status, item.reason) == (3, 6)


# The order


def test_pending_by_publication_screening_by_last_check(make_item: MakeItem) -> None:
    young = make_item(status=Status.PENDING, age_hours=1)
    old = make_item(status=Status.PENDING, age_hours=9)
    now = timezone.now()
    first = make_item(status=Status.DEFERRED, last_checked_at=now - timedelta(hours=5))
    second = make_item(last_checked_at=now - timedelta(hours=4))
    third = make_item(status=Status.DEFERRED, last_checked_at=now - timedelta(hours=3))
    make_item(status=Status.PROCESSED)
    assert pending_candidates(is_mastodon_on=True) == [old.pk, young.pk]
    assert screening_candidates(now, now) == [first.pk, second.pk, third.pk]
    assert screening_candidates(now - timedelta(hours=4), now) == [first.pk, second.pk]
    transitions.claim_item(old.pk, OPEN, "a", now)
    transitions.claim_item(first.pk, OPEN, "a", now)
    assert pending_candidates(is_mastodon_on=True) == [young.pk]
    assert screening_candidates(now, now) == [second.pk, third.pk]


def test_what_a_clock_ahead_of_ours_checked_is_due(make_item: MakeItem) -> None:
    now = timezone.now().replace(hour=12)
    ahead = make_item(last_checked_at=now + timedelta(days=400))
    written = make_item()
    # As another program may write it; between two texts of one day the letter decides.
    with connection.cursor() as cursor:
        text = (now - timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%S+00:00")
        cursor.execute("UPDATE items SET last_checked_at = %s WHERE id = %s", [text, written.pk])
    make_item(last_checked_at=now + timedelta(minutes=1))  # by a worker at our side, in its own run
    assert screening_candidates(now, now) == [written.pk, ahead.pk]


def test_drafts_wait_while_they_cannot_be_posted(make_item: MakeItem) -> None:
    from feeds.models import Feed

    dry = Feed.objects.create(url="https://dry.example.jp/", is_dry_run=True)
    wet = Feed.objects.create(url="https://wet.example.jp/")
    undrafted = make_item(status=Status.PENDING, feed=dry, age_hours=3)
    make_post(make_item(status=Status.PENDING, feed=dry, age_hours=2))
    drafted = make_item(status=Status.PENDING, feed=wet, age_hours=1)
    make_post(drafted)
    assert pending_candidates(is_mastodon_on=True) == [undrafted.pk, drafted.pk]
    assert pending_candidates(is_mastodon_on=False) == [undrafted.pk]


# Drafts and intents


def test_what_was_sent_keeps_its_text_and_key(make_item: MakeItem) -> None:
    item, now = make_item(status=Status.PENDING), timezone.now()
    claim = transitions.claim_item(item.pk, OPEN, "a", now)
    assert claim
    draft = transitions.save_draft(claim, "first", now)
    changed = transitions.save_draft(claim, "second", now)
    assert changed.text == "second"
    assert changed.idempotency_key != draft.idempotency_key
    transitions.mark_post(claim, changed, Post.State.INTENT, now)
    sent = transitions.save_draft(claim, "third", now)
    assert (sent.text, sent.idempotency_key) == ("second", changed.idempotency_key)
    assert sent.intent_at == now


def test_nothing_is_written_without_the_lease(make_item: MakeItem) -> None:
    item, now = make_item(status=Status.PENDING), timezone.now()
    claim = transitions.claim_item(item.pk, OPEN, "a", now)
    assert claim
    post = transitions.save_draft(claim, "text", now)
    transitions.leases.drop(item.pk)
    with pytest.raises(LeaseLost):
        transitions.mark_post(claim, post, Post.State.INTENT, now)
    with pytest.raises(LeaseLost):
        transitions.save_draft(claim, "other", now)
    assert Post.objects.get().state == Post.State.DRAFT
    assert Post.objects.get().text == "text"


# What people do


@pytest.mark.parametrize(
    ("status", "reason", "refused"),
    [(0, None, ""), (1, 3, ""), (3, 6, ""), (2, None, "pending"), (3, 0, "posted"), (3, 1, "processed")],
)
def test_retry(make_item: MakeItem, status: int, reason: int | None, refused: str) -> None:
    from django.utils.translation import override

    item = make_item(status=Status(status), reason=reason, retry_count=4)
    ItemDetail.objects.update(summary="old", summary_source="gemini")
    with override("en"), pytest.raises(ActionRefused, match=refused) if refused else nullcontext():
        actions.retry_item(item.pk, "admin", timezone.now())
    item.refresh_from_db()
    if refused:
        assert (item.status, item.retry_count) == (status, 4)
        assert ItemEvent.objects.count() == 0
    else:
        assert (item.status, item.reason, item.retry_count) == (0, None, 0)
        assert ItemDetail.objects.get().summary == ""
        assert ItemEvent.objects.get().who == "admin"


def test_retry_keeps_a_post_that_may_exist(make_item: MakeItem) -> None:
    draft, unclear = make_item(status=Status.DEFERRED), make_item(status=Status.DEFERRED)
    make_post(draft)
    make_post(unclear, Post.State.UNCLEAR)
    for item in (draft, unclear):
        actions.retry_item(item.pk, "admin", timezone.now())
    assert [post.item_id for post in Post.objects.all()] == [unclear.pk]


def test_skip(make_item: MakeItem) -> None:
    item = make_item(status=Status.PENDING)
    actions.skip_item(item.pk, "admin", timezone.now())
    item.refresh_from_db()
    assert (item.status, item.reason) == (3, 1)
    with pytest.raises(ActionRefused):
        actions.skip_item(item.pk, "admin", timezone.now())


def test_what_is_being_worked_on_is_left_alone(make_item: MakeItem) -> None:
    item = make_item()
    transitions.claim_item(item.pk, WAITING, "a", timezone.now())
    for service in (actions.retry_item, actions.skip_item):
        with pytest.raises(ActionRefused):
            service(item.pk, "admin", timezone.now())
    with pytest.raises(ActionRefused):
        actions.edit_summary(item.pk, "text", "admin", timezone.now())
    item.refresh_from_db()
    assert item.status == Status.UNPROCESSED


def test_a_summary_is_edited_until_the_post_is_on_its_way(make_item: MakeItem) -> None:
    item = make_item(status=Status.PENDING)
    post = make_post(item)
    actions.edit_summary(item.pk, " 人の書いた要約。 ", "admin", timezone.now())
    detail = ItemDetail.objects.get()
    assert (detail.summary, detail.summary_source) == ("人の書いた要約。", "edited")
    assert not Post.objects.filter(pk=post.pk).exists()
    make_post(item, Post.State.INTENT)
    with pytest.raises(ActionRefused):
        actions.edit_summary(item.pk, "too late", "admin", timezone.now())
    assert ItemDetail.objects.get().summary == "人の書いた要約。"
