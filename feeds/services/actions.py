"""What people do with items in the admin."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from feeds.lifecycle import Reason, Status, can_retry, can_skip
from feeds.models import Item, ItemDetail, ItemLease, Post
from feeds.services.transitions import save_detail, write_event


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
        save_detail(
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
