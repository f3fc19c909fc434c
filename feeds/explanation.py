"""Why an item is where it is, and what may be done with it now. The words are in the table WORDS."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.utils.functional import Promise
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_noop as _

from broker_project.console.explanation import Explanation, why_stopped
from broker_project.lib.config.outside import Source
from broker_project.lib.sentences import Words
from feeds.lifecycle import WAITING, Reason, Status, can_retry, can_skip
from feeds.models import Item, ItemDetail, ItemLease, Post


class ItemCode(StrEnum):
    POSTED = "posted"
    SKIPPED = "skipped"
    GIVEN_UP = "given_up"
    AT_WORK = "at_work"
    LEASE_LOST = "lease_lost"
    WAITS_FOR_SCREENING = "waits_for_screening"
    WAITS_FOR_SUMMARY = "waits_for_summary"
    UNCLEAR = "unclear"
    MASTODON_OFF = "mastodon_off"
    DRY_RUN = "dry_run"
    DEFERRED = "deferred"


WORDS: dict[ItemCode, Words] = {
    ItemCode.POSTED: Words(_("Posted. There is nothing left to do."), is_well=True),
    ItemCode.SKIPPED: Words(_("Ended without a post: a person skipped it."), is_well=True),
    ItemCode.GIVEN_UP: Words(
        _("Given up after %(count)d attempts."),
        _("The timeline says what went wrong each time. Mend that, then retry."),
    ),
    ItemCode.AT_WORK: Words(_("%(who)s works on it, until %(until)s at the latest."), is_well=True),
    ItemCode.LEASE_LOST: Words(
        _("%(who)s began and did not come back; its lease ended %(until)s."),
        _("Nothing to do: the next run counts that as an attempt and takes it."),
    ),
    ItemCode.WAITS_FOR_SCREENING: Words(
        _("It waits to be screened. Items to be posted come first, then the longest unchecked."),
        _("Nothing to do, or screen it now."),
        is_well=True,
    ),
    ItemCode.WAITS_FOR_SUMMARY: Words(
        _("It waits to be summarised and posted; the oldest is next."),
        _("Nothing to do, or summarise and post it now."),
        is_well=True,
    ),
    ItemCode.UNCLEAR: Words(
        _("Mastodon's answer was unclear."),
        _("Nothing to do: the next run looks whether the post is there before it posts again."),
    ),
    ItemCode.MASTODON_OFF: Words(_("Its post is a draft: Mastodon is off."), _("Set MASTODON_ACCESS_TOKEN.")),
    ItemCode.DRY_RUN: Words(
        _("Its post is a draft: its feed is on dry run."), _("Take the feed off dry run.")
    ),
    ItemCode.DEFERRED: Words(
        _("Deferred: %(reason)s. Tried %(count)d times, given up after %(limit)d."), "%(advice)s"
    ),
}
# What helps a deferred item, by what deferred it.
DEFERRED_ADVICE: dict[Reason, Promise] = {
    Reason.NOT_VALUABLE: gettext_lazy("Look at the verdict. If it is wrong, change the criteria and retry."),
    Reason.PAGE_NOT_READY: gettext_lazy("Nothing to do: the page is looked at again."),
    Reason.DOWNLOAD_FAILED: gettext_lazy("Open the address. If it answers, retry; if it is gone, skip it."),
    Reason.LARGE_FILE_SKIPPED: gettext_lazy(
        "Its documents are over the limit. Skip it, or write its post by hand."
    ),
    Reason.API_FAILED: gettext_lazy("Look at the timeline for what Gemini or Mastodon answered."),
}


def _explained(code: ItemCode, **parameters: Any) -> Explanation:
    return Explanation(code, WORDS[code], parameters)


def explain_item(
    item: Item, detail: ItemDetail | None, lease: ItemLease | None, post: Post | None, now: datetime
) -> Explanation:
    if item.status == Status.PROCESSED:
        return _ended(item)
    if lease is not None:
        code = ItemCode.AT_WORK if lease.expires_at > now else ItemCode.LEASE_LOST
        return _explained(code, who=lease.claimed_by, until=lease.expires_at)
    if stopped := why_stopped("items"):
        return stopped
    if item.status == Status.PENDING:
        return _explained(_pending(detail, post))
    if item.status == Status.DEFERRED and item.reason:
        return _deferred(item)
    return _explained(ItemCode.WAITS_FOR_SCREENING)


def _pending(detail: ItemDetail | None, post: Post | None) -> ItemCode:
    if post is not None and post.state == Post.State.UNCLEAR:
        return ItemCode.UNCLEAR
    if post is not None and post.state == Post.State.DRAFT:
        if settings.BROKER.mastodon.source is Source.OFF:
            return ItemCode.MASTODON_OFF
        if detail is not None and detail.feed is not None and detail.feed.is_dry_run:
            return ItemCode.DRY_RUN
    return ItemCode.WAITS_FOR_SUMMARY


def _deferred(item: Item) -> Explanation:
    reason = Reason(item.reason or 0)
    return _explained(
        ItemCode.DEFERRED,
        reason=reason.label,
        count=item.retry_count,
        limit=settings.BROKER.feed_max_retries + 1,
        advice=DEFERRED_ADVICE.get(reason, ""),
    )


def _ended(item: Item) -> Explanation:
    if item.reason == Reason.RETRY_LIMIT_EXCEEDED:
        return _explained(ItemCode.GIVEN_UP, count=item.retry_count)
    return _explained(ItemCode.POSTED if item.reason == Reason.NONE else ItemCode.SKIPPED)


def allowed_actions(item: Item, lease: ItemLease | None) -> list[tuple[str, str]]:
    """The admin's actions that would not be refused now, with their names."""
    if lease is not None:
        return []
    status, reason = Status(item.status), None if item.reason is None else Reason(item.reason)
    found = []
    if can_retry(status, reason):
        found.append(("retry", gettext("Retry")))
    if status in WAITING:
        found.append(("screen_now", gettext("Screen now")))
    if status is Status.PENDING:
        found.append(("summarise_now", gettext("Summarise and post now")))
    if can_skip(status):
        found.append(("skip", gettext("Skip")))
    return found
