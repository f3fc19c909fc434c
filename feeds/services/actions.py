"""What people do with items in the admin.

Each raises :class:`ActionRefused`, and changes nothing, where the state does not allow it.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from broker_project.lib.errors import ActionRefused
from feeds.lifecycle import Reason, Status, can_retry, can_skip
from feeds.models import Item, ItemDetail, ItemLease, Post
from feeds.services.transitions import save_detail, write_event


def _open_item(item_id: int) -> Item:
    """The row, locked. Raises :class:`ActionRefused` while it is being worked on. The caller's transaction is open."""
    item = Item.objects.select_for_update().get(pk=item_id)
    if ItemLease.objects.filter(item_id=item_id).exists():
        raise ActionRefused(_("being worked on"))
    return item


def retry_item(item_id: int, who: str, now: datetime) -> None:
    """Back to the beginning: status 0, counter 0, no summary. A post that may exist stays on record."""
    with transaction.atomic():
        item = _open_item(item_id)
        state = item.state
        if not can_retry(state.status, state.reason):
            raise ActionRefused(_state_word(item))
        Item.objects.filter(pk=item_id).update(
            status=Status.UNPROCESSED, reason=None, retry_count=0, last_checked_at=now
        )
        ItemDetail.objects.filter(item_id=item_id).update(
            summary="", summary_source="", summary_notes={}, summarised_at=None
        )
        Post.objects.filter(item_id=item_id, state=Post.State.DRAFT).delete()
        write_event(item_id, "retry", state.status, Status.UNPROCESSED, "set to retry", who, now)


def skip_item(item_id: int, who: str, now: datetime) -> None:
    """Never to be posted: status 3, reason 1."""
    with transaction.atomic():
        item = _open_item(item_id)
        state = item.state
        if not can_skip(state.status):
            raise ActionRefused(_state_word(item))
        Item.objects.filter(pk=item_id).update(
            status=Status.PROCESSED, reason=Reason.NOT_VALUABLE, last_checked_at=now
        )
        Post.objects.filter(item_id=item_id, state=Post.State.DRAFT).delete()
        write_event(item_id, "skip", state.status, Status.PROCESSED, "skipped by a person", who, now)


def edit_summary(item_id: int, summary: str, who: str, now: datetime) -> None:
    """A person's own words, until the post is on its way."""
    with transaction.atomic():
        item = _open_item(item_id)
        if item.status == Status.PROCESSED:
            raise ActionRefused(_state_word(item))
        if Post.objects.filter(item_id=item_id).exclude(state=Post.State.DRAFT).exists():
            raise ActionRefused(_("on its way to Mastodon"))
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


def _state_word(item: Item) -> str | Promise:
    if item.status == Status.PROCESSED and item.reason == Reason.NONE:
        return _("posted")
    return Status(item.status).label
