"""Why an item is where it is, and what may be done with it now."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.utils import formats, timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from broker_project.console.explanation import Standing, standstill
from broker_project.lib.config.outside import Source
from feeds.lifecycle import WAITING, Reason, Status, can_retry, can_skip
from feeds.models import Item, ItemDetail, ItemLease, Post

ADVICE: dict[Reason, Promise] = {
    Reason.NOT_VALUABLE: gettext_lazy("Look at the verdict. If it is wrong, change the criteria and retry."),
    Reason.PAGE_NOT_READY: gettext_lazy("Nothing to do: the page is looked at again."),
    Reason.DOWNLOAD_FAILED: gettext_lazy("Open the address. If it answers, retry; if it is gone, skip it."),
    Reason.LARGE_FILE_SKIPPED: gettext_lazy(
        "Its documents are over the limit. Skip it, or write its post by hand."
    ),
    Reason.API_FAILED: gettext_lazy("Look at the timeline for what Gemini or Mastodon answered."),
}


def item_standing(
    item: Item, detail: ItemDetail | None, lease: ItemLease | None, post: Post | None, now: datetime
) -> Standing:
    if item.status == Status.PROCESSED:
        return _ended(item)
    if lease is not None:
        until = formats.localize(timezone.localtime(lease.expires_at))
        if lease.expires_at > now:
            words = _("%(who)s works on it, until %(until)s at the latest.")
            return Standing(words % {"who": lease.claimed_by, "until": until}, is_well=True)
        words = _("%(who)s began and did not come back; its lease ended %(until)s.")
        advice = _("Nothing to do: the next run counts that as an attempt and takes it.")
        return Standing(words % {"who": lease.claimed_by, "until": until}, advice)
    if stopped := standstill("items"):
        return stopped
    if item.status == Status.PENDING:
        return _pending(detail, post)
    if item.status == Status.DEFERRED and item.reason:
        return _deferred(item)
    words = _("It waits to be screened. Items to be posted come first, then the longest unchecked.")
    return Standing(words, _("Nothing to do, or screen it now."), is_well=True)


def _pending(detail: ItemDetail | None, post: Post | None) -> Standing:
    if post is not None and post.state == Post.State.UNCLEAR:
        words = _("Mastodon's answer was unclear.")
        return Standing(
            words, _("Nothing to do: the next run looks whether the post is there before it posts again.")
        )
    if post is not None and post.state == Post.State.DRAFT:
        if settings.BROKER.mastodon.source is Source.OFF:
            return Standing(_("Its post is a draft: Mastodon is off."), _("Set MASTODON_ACCESS_TOKEN."))
        if detail is not None and detail.feed is not None and detail.feed.is_dry_run:
            return Standing(
                _("Its post is a draft: its feed is on dry run."), _("Take the feed off dry run.")
            )
    words = _("It waits to be summarised and posted; the oldest is next.")
    return Standing(words, _("Nothing to do, or summarise and post it now."), is_well=True)


def _deferred(item: Item) -> Standing:
    reason = Reason(item.reason or 0)
    words = _("Deferred: %(reason)s. Tried %(count)d times, given up after %(limit)d.") % {
        "reason": reason.label,
        "count": item.retry_count,
        "limit": settings.BROKER.feed_max_retries + 1,
    }
    return Standing(words, str(ADVICE.get(reason, "")))


def _ended(item: Item) -> Standing:
    if item.reason == Reason.RETRY_LIMIT_EXCEEDED:
        words = _("Given up after %(count)d attempts.") % {"count": item.retry_count}
        return Standing(words, _("The timeline says what went wrong each time. Mend that, then retry."))
    if item.reason == Reason.NONE:
        return Standing(_("Posted. There is nothing left to do."), is_well=True)
    return Standing(_("Ended without a post: a person skipped it."), is_well=True)


def allowed_actions(item: Item, lease: ItemLease | None) -> list[tuple[str, str]]:
    """The admin's actions that would not be refused now, with their names."""
    if lease is not None:
        return []
    status, reason = Status(item.status), None if item.reason is None else Reason(item.reason)
    found = []
    if can_retry(status, reason):
        found.append(("retry", _("Retry")))
    if status in WAITING:
        found.append(("screen_now", _("Screen now")))
    if status is Status.PENDING:
        found.append(("summarise_now", _("Summarise and post now")))
    if can_skip(status):
        found.append(("skip", _("Skip")))
    return found
