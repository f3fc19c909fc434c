"""The two steps of an item: screening, and summary and post.

All slow work (pages, Gemini, Mastodon) is done outside transactions, with the lease renewed before each piece
of it. Every way out of a step ends the claim with an outcome of :mod:`feeds.lifecycle`; only a lost lease does
not, since then the item is somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from broker_project.lib.claims import LeaseLost
from broker_project.lib.errors import BadAnswer, Missing, OutsideError, Rejected, Unauthorised
from broker_project.lib.gemini import Gemini
from broker_project.lib.http import Fetcher
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from feeds.clients.mastodon import MastodonAccount, PostedStatus, PostLimits
from feeds.lifecycle import WAITING, Outcome, Status
from feeds.models import FeedSettings, Item, ItemDetail, Post
from feeds.reading.documents import DocumentsFailed, fetch_page, fetched_material
from feeds.services import transitions
from feeds.services.transitions import ClaimedItem
from feeds.writing.posting import compose
from feeds.writing.summaries import Summariser, choose_summariser

log = get_logger(__name__)

OFFLINE_MARK = "【自動抽出】"
DEFAULT_LIMITS = PostLimits()


@dataclass
class Tools:
    """The outside systems of one run, made from the settings and shared by its steps."""

    options: FeedSettings
    summariser: Summariser
    account: MastodonAccount
    fetcher: Fetcher
    downloads: Path
    who: str
    clock: Callable[[], datetime] = field(default=timezone.now)


def make_tools(who: str) -> Tools:
    config = settings.BROKER
    options = FeedSettings.current()
    return Tools(
        options=options,
        summariser=choose_summariser(Gemini(config.gemini), options),
        account=MastodonAccount(config.mastodon),
        fetcher=Fetcher(config.allowed_private_hosts),
        downloads=config.var / "downloads",
        who=who,
    )


@dataclass(frozen=True)
class StepResult:
    outcome: Outcome
    why: str
    detail: dict[str, Any] = field(default_factory=dict)
    post: dict[str, Any] = field(default_factory=dict)


def screen_item(item_id: int, tools: Tools) -> Outcome | None:
    """Claim and screen one item. None if it could not be claimed. Raises :class:`LeaseLost`."""
    return _run_step(item_id, WAITING, tools, _screen)


def summarise_item(item_id: int, tools: Tools) -> Outcome | None:
    """Claim, summarise and post one pending item. None if it could not be claimed. Raises :class:`LeaseLost`."""
    return _run_step(item_id, [Status.PENDING], tools, _summarise_and_post)


def _run_step(
    item_id: int,
    statuses: Collection[Status],
    tools: Tools,
    step: Callable[[ClaimedItem, Tools], StepResult],
) -> Outcome | None:
    claimed = transitions.claim_item(item_id, statuses, tools.who, tools.clock())
    if claimed is None:
        return None
    try:
        try:
            result = step(claimed, tools)
        except LeaseLost:
            raise
        except Exception as error:  # a defect of ours counts like a crash, at once and by its name
            log.exception("step failed", item=item_id)
            result = StepResult(Outcome.CRASHED, f"{type(error).__name__}: {error}")
        transitions.complete_claim(
            claimed, result.outcome, why=result.why, now=tools.clock(), detail=result.detail, post=result.post
        )
    except LeaseLost as error:
        log.warning("lease lost", item=item_id, error=str(error))
        raise
    return result.outcome


# Screening


def _screen(claimed: ClaimedItem, tools: Tools) -> StepResult:
    item = claimed.item
    if Post.objects.filter(item_id=item.pk, state__in=[Post.State.INTENT, Post.State.UNCLEAR]).exists():
        return StepResult(Outcome.YES, "judged before; whether its post exists is to be cleared up")
    try:
        page = fetch_page(tools.fetcher, item.url, max_characters=tools.options.page_characters)
    except OutsideError as error:
        return StepResult(Outcome.FETCH_FAILED, f"page not fetched: {error}")
    transitions.renew_claim(claimed, tools.clock())
    documents = [{"url": link.url, "title": link.title, "state": "linked"} for link in page.documents]
    detail = transitions.screening_detail(page.text, documents, tools.clock())
    if not page.text.strip() and not page.documents:
        detail |= {"verdict": ItemDetail.Verdict.WAIT, "verdict_reason": "本文も文書もないため。"}
        return StepResult(Outcome.WAIT, "the page has neither text nor documents", detail)
    try:
        screened = tools.summariser.screen(item.title, page)
    except OutsideError as error:
        return StepResult(Outcome.API_FAILED, f"screening failed: {error}", detail)
    detail |= transitions.verdict_detail(screened)
    return StepResult(Outcome(screened.verdict.lower()), f"{screened.usage.model}: {screened.reason}", detail)


# Summary and post


def _summarise_and_post(claimed: ClaimedItem, tools: Tools) -> StepResult:
    post = Post.objects.filter(item_id=claimed.item.pk).first()
    if post is None or post.state == Post.State.DRAFT:
        failed = _ensure_summary(claimed, tools)
        if failed is not None:
            return failed
        try:
            limits = tools.account.limits if tools.account.is_available else DEFAULT_LIMITS
        except OutsideError as error:
            return StepResult(Outcome.API_FAILED, f"the instance's limits are not known: {error}")
        text = post_text(claimed.item, tools.options, limits)
        post = transitions.save_draft(claimed, text, tools.clock())
    if post.state == Post.State.POSTED:
        return StepResult(Outcome.POSTED, post.url)
    if not tools.account.is_available:
        return StepResult(Outcome.DRAFTED, f"Mastodon is off: the post stays as it is ({post.state})")
    if post.state == Post.State.DRAFT and _is_dry_run(claimed.item):
        return StepResult(Outcome.DRAFTED, "dry run: the post stays a draft")
    return _deliver(claimed, post, tools)


def _is_dry_run(item: Item) -> bool:
    return ItemDetail.objects.filter(item_id=item.pk, feed__is_dry_run=True).exists()


def _ensure_summary(claimed: ClaimedItem, tools: Tools) -> StepResult | None:
    """Make a summary unless there is one. None if there is one now, else how it failed."""
    item, options = claimed.item, tools.options
    if ItemDetail.objects.filter(item_id=item.pk).exclude(summary="").exists():
        return None
    try:
        with fetched_material(
            tools.fetcher,
            url=item.url,
            title=item.title,
            folder=tools.downloads,
            page_characters=options.page_characters,
            max_documents=options.max_documents,
            between=lambda: transitions.renew_claim(claimed, tools.clock()),
        ) as material:
            if not material.has_text and not material.documents:
                return StepResult(Outcome.FETCH_FAILED, "the page has no text any more")
            try:
                summarised = tools.summariser.summarise(material)
            except OutsideError as error:
                return StepResult(Outcome.API_FAILED, f"summary failed: {error}")
            transitions.save_summary(
                claimed, summarised, material.page.text, material.outcomes, tools.clock()
            )
    except DocumentsFailed as error:
        outcome = Outcome.ALL_TOO_LARGE if error.all_too_large else Outcome.FETCH_FAILED
        return StepResult(outcome, str(error), {"documents": error.outcomes})
    except OutsideError as error:
        return StepResult(Outcome.FETCH_FAILED, f"not fetched: {error}")
    return None


def post_text(item: Item, options: FeedSettings, limits: PostLimits) -> str:
    """What would be posted now."""
    detail = ItemDetail.objects.filter(item_id=item.pk).first()
    summary = detail.summary if detail is not None else ""
    if detail is not None and detail.summary_source == ItemDetail.SummarySource.OFFLINE:
        summary = OFFLINE_MARK + summary
    return compose(options.post_template, title=item.title, summary=summary, url=item.url, **asdict(limits))


def _deliver(claimed: ClaimedItem, post: Post, tools: Tools) -> StepResult:
    """Exactly one post: before anything is sent, a post that may already exist is looked for."""
    item = claimed.item
    try:
        # Also before the first try: after a restored backup, the account knows more than we do.
        transitions.renew_claim(claimed, tools.clock())
        found = _find_before(item, post, tools)
        if found is not None:
            return _posted(found, tools, "found among our own posts")
        transitions.mark_post(claimed, post, Post.State.INTENT, tools.clock())
        try:
            return _posted(tools.account.post(post.text, post.idempotency_key), tools, "posted")
        except OutsideError as error:
            if error.may_have_happened:
                transitions.mark_post(claimed, post, Post.State.UNCLEAR, tools.clock())
                # Often the post exists and only the answer was lost.
                found = tools.account.find_post(item.url, post.intent_at or post.created_at)
                if found is not None:
                    return _posted(found, tools, f"found after an unclear answer ({error})")
                raise
            # Certainly refused: the next attempt may have another text, which needs another key.
            transitions.mark_post(claimed, post, Post.State.DRAFT, tools.clock())
            if isinstance(error, Rejected):
                log.warning("post rejected", item=item.pk, error=redact(str(error), 200))
            raise
    except OutsideError as error:
        return StepResult(Outcome.API_FAILED, f"not posted: {error}")


def _find_before(item: Item, post: Post, tools: Tools) -> PostedStatus | None:
    try:
        return tools.account.find_post(item.url, post.intent_at or min(item.published_at, post.created_at))
    except (Missing, Unauthorised, Rejected, BadAnswer):
        # Some tokens may only write, some servers have no lists. Without a look only a draft may be sent.
        if post.state == Post.State.DRAFT:
            return None
        raise


def _posted(status: PostedStatus, tools: Tools, how: str) -> StepResult:
    post = {
        "state": Post.State.POSTED,
        "status_id": status.id[:64],
        "url": status.url[:2000],
        "posted_at": tools.clock(),
    }
    return StepResult(Outcome.POSTED, f"{how}: {status.url}", post=post)
