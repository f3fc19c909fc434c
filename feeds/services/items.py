"""What changes an item: claims with a lease, fenced completion, one event per change.

A claim is a row in ``ItemLease``; whoever inserted it has the item until the row is gone. Every later write
checks that the row is still the same claim, so a worker that was too slow is refused (:class:`LeaseLost`) and
changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from broker_project.lib.redaction import redact
from feeds.lifecycle import OPEN, Happening, Reason, Status, after, can_retry, can_skip
from feeds.models import Item, ItemDetail, ItemEvent, ItemLease, Post
from feeds.writing.summaries import Screened, Summarised

EXCERPT_CHARACTERS = 3000


class LeaseLost(Exception):
    """The item is no longer this worker's: its lease ran out and was taken back."""


@dataclass(frozen=True)
class Claim:
    """The right to work on an item, as it was when it was claimed."""

    item: Item
    token: str
    who: str


def claim_item(item_id: int, statuses: Collection[Status], who: str, now: datetime) -> Claim | None:
    """Claim one item if it is in one of the statuses and free. None is normal: somebody was first."""
    token = secrets.token_hex(16)
    lease = ItemLease(
        item_id=item_id, token=token, claimed_by=who[:150], claimed_at=now, expires_at=_expiry(now)
    )
    with transaction.atomic():
        # It may have been finished between being chosen and being claimed. On PostgreSQL a row that another worker
        # claims, or a person changes, at this moment is passed over: the next candidate is free.
        rows = Item.objects.select_for_update(skip_locked=True)
        item = rows.filter(pk=item_id, status__in=list(statuses)).first()
        if item is None:
            return None
        # Inserting decides the race: the second one inserts nothing.
        ItemLease.objects.bulk_create([lease], ignore_conflicts=True)
        if not ItemLease.objects.filter(item_id=item_id, token=token).exists():
            return None
    return Claim(item, token, who)


def _expiry(now: datetime) -> datetime:
    return now + timedelta(seconds=settings.BROKER.feed_lease_seconds)


def renew_claim(claim: Claim, now: datetime) -> None:
    """Begin the lease anew, before each step that takes time. Raises :class:`LeaseLost`."""
    rows = ItemLease.objects.filter(item_id=claim.item.pk, token=claim.token).update(expires_at=_expiry(now))
    if not rows:
        raise LeaseLost(f"item {claim.item.pk} is no longer claimed by {claim.who}")


@contextmanager
def held(claim: Claim, now: datetime) -> Iterator[None]:
    """A transaction in which the claim stands: the lease's row is locked by its own renewal."""
    with transaction.atomic():
        renew_claim(claim, now)
        yield


def release_claim(claim: Claim) -> None:
    """Give the item back as it is: nothing happened to it, and nothing is counted."""
    ItemLease.objects.filter(item_id=claim.item.pk, token=claim.token).delete()


def complete_claim(
    claim: Claim,
    happening: Happening,
    *,
    why: str,
    now: datetime,
    detail: dict[str, Any] | None = None,
    post: dict[str, Any] | None = None,
) -> Item:
    """Write down what happened and end the claim, all or nothing. Raises :class:`LeaseLost`."""
    with transaction.atomic():
        if not ItemLease.objects.filter(item_id=claim.item.pk, token=claim.token).delete()[0]:
            raise LeaseLost(f"item {claim.item.pk} is no longer claimed by {claim.who}")
        if detail:
            _save_detail(claim.item.pk, detail)
        if post:
            Post.objects.filter(item_id=claim.item.pk).update(**post)
        return _apply(claim.item, happening, why=why, who=claim.who, now=now)


def _apply(item: Item, happening: Happening, *, why: str, who: str, now: datetime) -> Item:
    """The one place where an item's status moves by itself. The caller's transaction is open."""
    state = after(item.state, happening, now=now, max_retries=settings.BROKER.feed_max_retries)
    rows = Item.objects.filter(pk=item.pk, status=item.status).update(
        status=state.status,
        reason=state.reason,
        retry_count=state.retry_count,
        last_checked_at=state.last_checked_at,
    )
    if not rows:
        raise LeaseLost(f"item {item.pk} changed under {who}")
    if state.reason is Reason.RETRY_LIMIT_EXCEEDED:
        why = f"{why}; retry limit exceeded ({state.retry_count})"
    write_event(item.pk, happening.value, item.state.status, state.status, why, who, now)
    item.status, item.reason = int(state.status), None if state.reason is None else int(state.reason)
    item.retry_count, item.last_checked_at = state.retry_count, state.last_checked_at
    return item


def write_event(
    item_id: int, what: str, before: Status, now_is: Status, why: str, who: str, at: datetime
) -> None:
    ItemEvent.objects.create(
        item_id=item_id,
        what=what,
        from_status=before.name.lower(),
        to_status=now_is.name.lower(),
        reason=redact(why, 1000),
        who=who[:150],
        at=at,
    )


def _save_detail(item_id: int, values: dict[str, Any]) -> None:
    ItemDetail.objects.bulk_create([ItemDetail(item_id=item_id)], ignore_conflicts=True)
    ItemDetail.objects.filter(item_id=item_id).update(**values)


def sweep_stale_leases(now: datetime) -> int:
    """Take back what a worker that is gone had claimed; each counts as a crashed attempt."""
    swept = 0
    # There are as many leases as workers. Times are compared here and not as SQLite's texts: in those a time that
    # another program wrote with a "T" or a zone is later than any other of its day.
    for pk, expires_at in list(ItemLease.objects.order_by("expires_at").values_list("pk", "expires_at")):
        if expires_at > now:
            continue
        with transaction.atomic():
            lease = ItemLease.objects.select_for_update(skip_locked=True).filter(pk=pk).first()
            # Renewed or swept by another in the meantime, or this very moment: then there is nothing to do.
            if lease is None or lease.expires_at > now:
                continue
            lease.delete()
            item = Item.objects.filter(pk=pk, status__in=list(OPEN)).first()
            if item is None:
                continue
            since = lease.claimed_at.isoformat(timespec="seconds")
            why = f"{lease.claimed_by} did not finish; claimed at {since}"
            _apply(item, Happening.CRASHED, why=why, who="sweep", now=now)
            swept += 1
    return swept


# What a step leaves behind


def screening_detail(page_text: str, documents: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
    return {"page_excerpt": page_text[:EXCERPT_CHARACTERS], "documents": documents, "screened_at": now}


def verdict_detail(screened: Screened) -> dict[str, Any]:
    usage = screened.usage
    return {
        "verdict": screened.verdict,
        "verdict_reason": redact(screened.reason, 1000),
        "input_tokens": F("input_tokens") + usage.input_tokens,
        "output_tokens": F("output_tokens") + usage.output_tokens,
        "cost_usd": F("cost_usd") + usage.cost_usd,
    }


def save_summary(
    claim: Claim, summarised: Summarised, page_text: str, documents: list[dict[str, Any]], now: datetime
) -> None:
    """Keep the summary before anything is posted: a crash from here on does not pay for it twice."""
    usage = summarised.usage
    with held(claim, now):
        _save_detail(
            claim.item.pk,
            {
                "summary": summarised.summary,
                "summary_source": summarised.source,
                "summary_notes": summarised.notes,
                "summarised_at": now,
                "page_excerpt": page_text[:EXCERPT_CHARACTERS],
                "documents": documents,
                "model": usage.model,
                "input_tokens": F("input_tokens") + usage.input_tokens,
                "output_tokens": F("output_tokens") + usage.output_tokens,
                "cost_usd": F("cost_usd") + usage.cost_usd,
            },
        )
        status = Status(claim.item.status)
        why = f"{summarised.source.label}, {usage.model}, {len(summarised.summary)} characters"
        write_event(claim.item.pk, "summarised", status, status, why, claim.who, now)


def save_draft(claim: Claim, text: str, now: datetime) -> Post:
    """The post's text under a key. A draft was never sent, so it may still change; what was sent stays."""
    with held(claim, now):
        post, is_new = Post.objects.get_or_create(
            item_id=claim.item.pk,
            defaults={"text": text, "idempotency_key": secrets.token_hex(16), "created_at": now},
        )
        if not is_new and post.state == Post.State.DRAFT and post.text != text:
            post.text, post.idempotency_key = text, secrets.token_hex(16)
            post.save(update_fields=["text", "idempotency_key"])
    return post


def mark_intent(claim: Claim, post: Post, now: datetime) -> None:
    """From here on the post may exist. Committed before Mastodon is called."""
    with held(claim, now):
        values: dict[str, Any] = {"state": Post.State.INTENT}
        if post.intent_at is None:
            values["intent_at"] = post.intent_at = now
        Post.objects.filter(pk=post.pk).update(**values)
        post.state = Post.State.INTENT


def mark_post(claim: Claim, post: Post, state: Post.State, now: datetime) -> None:
    with held(claim, now):
        Post.objects.filter(pk=post.pk).update(state=state)
        post.state = state


# What people do in the admin


@dataclass(frozen=True)
class Refusal:
    """Why a row was left alone, as the message names it."""

    why: str | Promise


def _open_item(item_id: int) -> Item | Refusal:
    """The row, locked, unless somebody works on it. The caller's transaction is open."""
    item = Item.objects.select_for_update().get(pk=item_id)
    if ItemLease.objects.filter(item_id=item_id).exists():
        return Refusal(_("being worked on"))
    return item


def retry_item(item_id: int, who: str, now: datetime) -> Refusal | None:
    """Back to the beginning: status 0, counter 0, no summary. A post that may exist stays on record."""
    with transaction.atomic():
        item = _open_item(item_id)
        if isinstance(item, Refusal):
            return item
        state = item.state
        if not can_retry(state.status, state.reason):
            return Refusal(_state_word(item))
        Item.objects.filter(pk=item_id).update(
            status=Status.UNPROCESSED, reason=None, retry_count=0, last_checked_at=now
        )
        ItemDetail.objects.filter(item_id=item_id).update(
            summary="", summary_source="", summary_notes={}, summarised_at=None
        )
        Post.objects.filter(item_id=item_id, state=Post.State.DRAFT).delete()
        write_event(item_id, "retry", state.status, Status.UNPROCESSED, "set to retry", who, now)
    return None


def skip_item(item_id: int, who: str, now: datetime) -> Refusal | None:
    """Never to be posted: status 3, reason 1."""
    with transaction.atomic():
        item = _open_item(item_id)
        if isinstance(item, Refusal):
            return item
        state = item.state
        if not can_skip(state.status):
            return Refusal(_state_word(item))
        Item.objects.filter(pk=item_id).update(
            status=Status.PROCESSED, reason=Reason.NOT_VALUABLE, last_checked_at=now
        )
        Post.objects.filter(item_id=item_id, state=Post.State.DRAFT).delete()
        write_event(item_id, "skip", state.status, Status.PROCESSED, "skipped by a person", who, now)
    return None


def edit_summary(item_id: int, summary: str, who: str, now: datetime) -> Refusal | None:
    """A person's own words, until the post is on its way."""
    with transaction.atomic():
        item = _open_item(item_id)
        if isinstance(item, Refusal):
            return item
        if item.status == Status.PROCESSED:
            return Refusal(_state_word(item))
        if Post.objects.filter(item_id=item_id).exclude(state=Post.State.DRAFT).exists():
            return Refusal(_("on its way to Mastodon"))
        _save_detail(
            item_id,
            {
                "summary": summary.strip(),
                "summary_source": ItemDetail.SummarySource.EDITED if summary.strip() else "",
                "summarised_at": now,
            },
        )
        # The draft's text is put together again from the new summary.
        Post.objects.filter(item_id=item_id, state=Post.State.DRAFT).delete()
        status = Status(item.status)
        write_event(item_id, "summary edited", status, status, f"{len(summary)} characters", who, now)
    return None


def _state_word(item: Item) -> str | Promise:
    if item.status == Status.PROCESSED and item.reason == Reason.NONE:
        return _("posted")
    return Status(item.status).label
