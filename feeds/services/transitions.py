"""What changes an item while it is worked on: claim, renew, complete. One event for each change.

Every write of a worker proves its claim in the same transaction, so a worker that was too slow is refused
(:class:`LeaseLost`) and changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F

from broker_project.lib.claims import Claim, LeaseLost, Leases, has_ended
from broker_project.lib.redaction import redact
from feeds.lifecycle import OPEN, Outcome, Reason, Status, after
from feeds.models import Item, ItemDetail, ItemEvent, ItemLease, Post
from feeds.writing.summaries import Screened, Summarised, Usage

EXCERPT_CHARACTERS = 3000

leases: Leases[ItemLease, int] = Leases(ItemLease, fence_column="token")


@dataclass(frozen=True)
class ClaimedItem:
    """An item as it was when it was claimed, and the claim."""

    item: Item
    claim: Claim[int]


def lease_duration() -> timedelta:
    return timedelta(seconds=settings.BROKER.feed_lease_seconds)


def claim_item(item_id: int, statuses: Collection[Status], who: str, now: datetime) -> ClaimedItem | None:
    """Claim one item if it is in one of the statuses and free. None is normal: somebody was first."""
    with transaction.atomic():
        # It may have been finished between being chosen and being claimed. On PostgreSQL a row that another worker
        # claims, or a person changes, at this moment is passed over: the next candidate is free.
        rows = Item.objects.select_for_update(skip_locked=True)
        item = rows.filter(pk=item_id, status__in=list(statuses)).first()
        claim = leases.take(item_id, who, now, lease_duration()) if item is not None else None
    return ClaimedItem(item, claim) if item is not None and claim is not None else None


def renew_claim(claimed: ClaimedItem, now: datetime) -> None:
    """Begin the lease anew, before each step that takes time. Raises :class:`LeaseLost`."""
    leases.renew(claimed.claim, now, lease_duration())


@contextmanager
def held(claimed: ClaimedItem, now: datetime) -> Iterator[None]:
    """A transaction in which the claim stands: renewing it locks the lease's row."""
    with transaction.atomic():
        renew_claim(claimed, now)
        yield


def complete_claim(
    claimed: ClaimedItem,
    outcome: Outcome,
    *,
    why: str,
    now: datetime,
    detail: dict[str, Any] | None = None,
    post: dict[str, Any] | None = None,
) -> None:
    """Record what happened and end the claim, all or nothing. Raises :class:`LeaseLost`."""
    item = claimed.item
    with transaction.atomic():
        leases.complete(claimed.claim)
        if detail:
            save_detail(item.pk, detail)
        if post:
            Post.objects.filter(item_id=item.pk).update(**post)
        _apply(item, outcome, why=why, who=claimed.claim.who, now=now)


def _apply(item: Item, outcome: Outcome, *, why: str, who: str, now: datetime) -> None:
    """The only place where work changes an item's status. The caller's transaction is open."""
    state = after(item.state, outcome, now=now, max_retries=settings.BROKER.feed_max_retries)
    if not Item.objects.filter(pk=item.pk, status=item.status).update(**asdict(state)):
        raise LeaseLost(f"item {item.pk} was changed while {who} worked on it")
    if state.reason is Reason.RETRY_LIMIT_EXCEEDED:
        why = f"{why}; retry limit exceeded ({state.retry_count})"
    write_event(item.pk, outcome.value, item.state.status, state.status, why, who, now)


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


def save_detail(item_id: int, values: dict[str, Any]) -> None:
    ItemDetail.objects.bulk_create([ItemDetail(item_id=item_id)], ignore_conflicts=True)
    ItemDetail.objects.filter(item_id=item_id).update(**values)


def sweep_stale_leases(now: datetime) -> int:
    """Take back the claims of workers that are gone; each counts as a crashed attempt."""
    swept = 0
    for pk in leases.ended(now):
        with transaction.atomic():
            lease = ItemLease.objects.select_for_update(skip_locked=True).filter(pk=pk).first()
            # Renewed, or swept by another: there is nothing to do.
            if lease is None or not has_ended(lease.expires_at, now):
                continue
            lease.delete()
            item = Item.objects.filter(pk=pk, status__in=list(OPEN)).first()
            if item is None:
                continue
            since = lease.claimed_at.isoformat(timespec="seconds")
            why = f"{lease.claimed_by} did not finish; claimed at {since}"
            _apply(item, Outcome.CRASHED, why=why, who="sweep", now=now)
            swept += 1
    return swept


# What a step leaves behind


def screening_detail(page_text: str, documents: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
    return {"page_excerpt": page_text[:EXCERPT_CHARACTERS], "documents": documents, "screened_at": now}


def verdict_detail(screened: Screened) -> dict[str, Any]:
    reason = redact(screened.reason, 1000)
    return {"verdict": screened.verdict, "verdict_reason": reason, **_usage_columns(screened.usage)}


def _usage_columns(usage: Usage) -> dict[str, Any]:
    """On top of what the item has used before."""
    return {
        "input_tokens": F("input_tokens") + usage.input_tokens,
        "output_tokens": F("output_tokens") + usage.output_tokens,
        "cost_usd": F("cost_usd") + usage.cost_usd,
    }


def save_summary(
    claimed: ClaimedItem,
    summarised: Summarised,
    page_text: str,
    documents: list[dict[str, Any]],
    now: datetime,
) -> None:
    """Store the summary before anything is posted: a crash from here on does not pay for it twice."""
    item, usage = claimed.item, summarised.usage
    columns = {
        "summary": summarised.summary,
        "summary_source": summarised.source,
        "summary_notes": summarised.notes,
        "summarised_at": now,
        "page_excerpt": page_text[:EXCERPT_CHARACTERS],
        "documents": documents,
        "model": usage.model,
    }
    why = f"{summarised.source.label}, {usage.model}, {len(summarised.summary)} characters"
    status = Status(item.status)
    with held(claimed, now):
        save_detail(item.pk, columns | _usage_columns(usage))
        write_event(item.pk, "summarised", status, status, why, claimed.claim.who, now)


def save_draft(claimed: ClaimedItem, text: str, now: datetime) -> Post:
    """The post's text and its key. A draft was never sent, so it may still change; what was sent stays."""
    with held(claimed, now):
        post, is_new = Post.objects.get_or_create(
            item_id=claimed.item.pk,
            defaults={"text": text, "idempotency_key": secrets.token_hex(16), "created_at": now},
        )
        if not is_new and post.state == Post.State.DRAFT and post.text != text:
            post.text, post.idempotency_key = text, secrets.token_hex(16)
            post.save(update_fields=["text", "idempotency_key"])
    return post


def mark_post(claimed: ClaimedItem, post: Post, state: Post.State, now: datetime) -> None:
    """``INTENT`` is committed before Mastodon is called: from then on the post may exist."""
    with held(claimed, now):
        post.state = state
        if state is Post.State.INTENT and post.intent_at is None:
            post.intent_at = now
        post.save(update_fields=["state", "intent_at"])
