"""Feeds in the admin: evidence is read-only, actions call services and report what really changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from broker_project.console.admin_base import (
    ActionReport,
    EvidenceAdmin,
    ListPage,
    OneRowAdmin,
    TimelineAdmin,
    confirmed_action,
    primary_keys,
    run_each,
    who,
)
from broker_project.console.lists import DateRangeFilter, Tab, choice_tabs
from broker_project.lib.claims import LeaseLost
from broker_project.lib.errors import ActionFailed, ActionRefused
from broker_project.lib.http import Fetcher
from broker_project.lib.redaction import redact
from feeds import explanation, selectors
from feeds.lifecycle import EVENT_WORDS, FAILURES, WAITING, Outcome, Status
from feeds.models import Feed, FeedSettings, Item, ItemDetail, ItemEvent, Post
from feeds.services.actions import edit_summary, retry_item, skip_item
from feeds.services.ingest import fetch_feed, pause_feed, resume_feed
from feeds.services.processing import (
    DEFAULT_LIMITS,
    Tools,
    make_tools,
    post_text,
    screen_item,
    summarise_item,
)

MAX_SUMMARY_LENGTH = 4000
FEW_DAYS = 7


class ItemDates(DateRangeFilter):
    """A few days by the index over status and time: ``items`` has none over the time alone.

    More days are many rows, which the index would have to be sorted for; going back by number finds some at once.
    """

    def narrow(self, queryset: QuerySet[Any], conditions: dict[str, Any]) -> QuerySet[Any]:
        few_days = self.first and self.last and (self.last - self.first).days < FEW_DAYS
        return queryset.filter(**conditions, **({"status__in": Status.values} if few_days else {}))


class ItemStatus(admin.ChoicesFieldListFilter):
    """Django's own, but that a stretch of numbers, once chosen, is what the database follows.

    SQLite prefers the index of the status and would visit every row of it. A sum is in no index.
    """

    def queryset(self, request: HttpRequest, queryset: QuerySet[Item]) -> QuerySet[Item] | None:
        chosen = request.GET.getlist(self.lookup_kwarg)
        if not chosen or not ItemAdmin.looks_slowly(request):
            return super().queryset(request, queryset)
        wanted = [value for value in Status.values if str(value) in chosen]
        return queryset.alias(status_sum=F("status") + 0).filter(status_sum__in=wanted)


@admin.register(Item)
class ItemAdmin(EvidenceAdmin[Item]):
    list_display = [
        "shown_title",
        "status",
        "reason",
        "retry_count",
        "feed",
        "published_at",
        "last_checked_at",
        "post_link",
    ]
    list_display_links = ["shown_title"]
    list_filter = [("status", ItemStatus), "reason", "detail__feed", ("published_at", ItemDates)]
    slow_lookups = ("q", "reason__exact", "detail__feed__id__exact")
    empty_hint = _("The poller “feeds” adds them. Set FEED_URLS, or add a feed.")
    list_select_related = ["detail__feed", "post"]
    search_fields = ["title", "url"]
    search_help_text = _("Title or address")
    ordering = ["-pk"]
    sortable_by = ["shown_title", "published_at", "last_checked_at", "retry_count"]
    actions = ["retry", "screen_now", "summarise_now", "skip"]
    fields = [
        "url_link",
        "title",
        "published_at",
        "status",
        "reason",
        "retry_count",
        "created_at",
        "last_checked_at",
    ]
    readonly_fields = ["url_link"]

    @admin.display(description=_("title"), ordering="pk")
    def shown_title(self, item: Item) -> str:
        return item.title if len(item.title) <= 80 else item.title[:79] + "…"

    @admin.display(description=_("feed"))
    def feed(self, item: Item) -> Feed | None:
        detail = _detail_of(item)
        return detail.feed if detail else None

    @admin.display(description=_("post"))
    def post_link(self, item: Item) -> str | SafeString:
        post = _post_of(item)
        if post is None:
            return ""
        if post.state == Post.State.POSTED:
            return _outside_link(post.url, str(_("posted")))
        return str(Post.State(post.state).label)

    @admin.display(description=_("address"))
    def url_link(self, item: Item) -> str | SafeString:
        return _outside_link(item.url, item.url)

    # Actions

    @confirmed_action(
        description=_("Retry: back to unprocessed, counter to 0"),
        warning=_("Summaries that were not posted are thrown away."),
    )
    def retry(self, request: HttpRequest, queryset: QuerySet[Item]) -> ActionReport:
        return run_each(
            primary_keys(queryset),
            _("set to retry"),
            lambda pk: retry_item(pk, who(request), timezone.now()),
        )

    @confirmed_action(description=_("Skip: never to be posted"))
    def skip(self, request: HttpRequest, queryset: QuerySet[Item]) -> ActionReport:
        return run_each(
            primary_keys(queryset),
            _("skipped"),
            lambda pk: skip_item(pk, who(request), timezone.now()),
        )

    @confirmed_action(
        description=_("Screen now"), warning=_("Every item is fetched and judged while you wait.")
    )
    def screen_now(self, request: HttpRequest, queryset: QuerySet[Item]) -> ActionReport:
        return _run_steps(queryset, _("screened"), who(request), list(WAITING), screen_item)

    @confirmed_action(
        description=_("Summarise and post now"),
        warning=_("Every item is summarised and posted while you wait."),
    )
    def summarise_now(self, request: HttpRequest, queryset: QuerySet[Item]) -> ActionReport:
        return _run_steps(queryset, _("summarised"), who(request), [Status.PENDING], summarise_item)

    # Pages

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.save_summary))
        own = path("<int:item_id>/summary/", view, name="feeds_item_summary")
        return [own, *super().get_urls()]

    def save_summary(self, request: HttpRequest, item_id: int) -> HttpResponse:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        item = get_object_or_404(Item, pk=item_id)
        text = request.POST.get("summary", "")
        if len(text) > MAX_SUMMARY_LENGTH:
            self.message_user(request, gettext("The summary is too long."), messages.ERROR)
        else:
            try:
                edit_summary(item.pk, text, who(request), timezone.now())
            except ActionRefused as refusal:
                why = gettext("The summary was left alone (%(why)s).") % {"why": refusal.sentence}
                self.message_user(request, why, messages.WARNING)
            else:
                self.message_user(request, gettext("The summary was saved."), messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:feeds_item_change", args=[item.pk]))

    def get_ordering(self, request: HttpRequest) -> list[Any]:
        # An index has each status in the order of publication; by number it would be sorted anew.
        is_indexed = request.GET.get("status__exact") and not self.looks_slowly(request)
        return ["-published_at"] if is_indexed else ["-pk"]

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        counts = selectors.counts_by_status()
        by_value = {status.value: counts[status.name.lower()] for status in Status}
        return choice_tabs("status__exact", Status.choices, by_value)

    def page_context(self, request: HttpRequest, row: Item) -> dict[str, Any]:
        detail, post = _detail_of(row), _post_of(row)
        is_editable = row.status != Status.PROCESSED and (post is None or post.state == Post.State.DRAFT)
        preview = ""
        if post is not None:
            preview = post.text
        elif detail is not None and detail.summary:
            preview = post_text(row, FeedSettings.current(), DEFAULT_LIMITS)
        lease = getattr(row, "lease", None)
        may_act = self.has_operate_permission(request)
        return {
            "item": row,
            "explanation": explanation.explain_item(row, detail, lease, post, timezone.now()),
            "allowed": explanation.allowed_actions(row, lease) if may_act else [],
            "detail": detail,
            "post": post,
            "post_address": _outside_link(post.url, post.url) if post else "",
            "post_preview": preview,
            "timeline": selectors.item_timeline(row.pk),
            "can_edit_summary": is_editable and may_act,
            "max_summary_length": MAX_SUMMARY_LENGTH,
            "lease": lease,
        }


def _outside_link(address: str, text: str) -> str | SafeString:
    """A link out, if the address is one that a browser should follow: the instance may say anything."""
    if not address.startswith(("http://", "https://")):
        return text
    return format_html('<a href="{}" rel="noopener noreferrer">{}</a>', address, text)


def _detail_of(item: Item) -> ItemDetail | None:
    return getattr(item, "detail", None)


def _post_of(item: Item) -> Post | None:
    return getattr(item, "post", None)


def _run_steps(
    queryset: QuerySet[Item],
    done: Any,
    who: str,
    statuses: list[Status],
    step: Callable[[int, Tools], Outcome | None],
) -> ActionReport:
    """A step for each chosen row in the right status, until the time is up."""
    tools = make_tools(who)

    def take_step(row: tuple[int, int]) -> None:
        pk, status = row
        if status not in statuses:
            raise ActionRefused(Status(status).label)
        try:
            outcome = step(pk, tools)
        except LeaseLost:
            outcome = None
        if outcome is None:
            raise ActionRefused(_("being worked on"))
        if outcome in FAILURES:
            raise ActionFailed(EVENT_WORDS[outcome.value])

    with tools.fetcher:
        return run_each(list(queryset.values_list("pk", "status")), done, take_step)


@admin.register(Feed)
class FeedAdmin(ListPage[Feed]):
    READ_ONLY: ClassVar[list[str]] = [
        "source",
        "last_fetch_at",
        "next_fetch_at",
        "failures",
        "last_error",
        "last_added",
        "last_skipped",
        "etag",
        "last_modified",
        "created_at",
    ]
    list_display = [
        "__str__",
        "shown_url",
        "is_enabled",
        "is_dry_run",
        "source",
        "last_fetch_at",
        "next_fetch_at",
        "failures",
        "last_added",
    ]
    list_filter = ["is_enabled", "is_dry_run", "source", ("last_fetch_at", DateRangeFilter)]
    search_fields = ["title", "url"]
    search_help_text = _("Title or address")
    empty_hint = _("Set FEED_URLS, or add a feed here.")
    actions = ["fetch_now", "pause", "resume"]
    readonly_fields = READ_ONLY

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        counts = selectors.feed_counts()
        return [
            Tab(_("enabled"), counts["enabled"], (("is_enabled__exact", "1"),)),
            Tab(_("paused"), counts["paused"], (("is_enabled__exact", "0"),)),
            Tab(_("failing"), counts["failing"], (("failures__gt", "0"),)),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Feed | None = None) -> list[str]:
        # Another address would be another feed; its items would belong to neither.
        return [*self.READ_ONLY, "shown_url"] if obj else self.READ_ONLY

    def get_fields(self, request: HttpRequest, obj: Feed | None = None) -> Any:
        return ["shown_url" if obj else "url", "title", "is_enabled", "is_dry_run", *self.READ_ONLY]

    @admin.display(description=_("address"), ordering="url")
    def shown_url(self, feed: Feed) -> str:
        """Without the token that it may need."""
        return redact(feed.url)

    @confirmed_action(description=_("Fetch now"), permission="change")
    def fetch_now(self, request: HttpRequest, queryset: QuerySet[Feed]) -> ActionReport:
        def fetch(feed: Feed) -> None:
            if not feed.is_enabled:
                raise ActionRefused(_("paused"))
            if error := fetch_feed(feed, fetcher, timezone.now()).error:
                raise ActionRefused(error[:200])

        with Fetcher(settings.BROKER.allowed_private_hosts) as fetcher:
            return run_each(list(queryset), _("fetched"), fetch)

    @confirmed_action(description=_("Pause"), permission="change")
    def pause(self, request: HttpRequest, queryset: QuerySet[Feed]) -> ActionReport:
        return run_each(primary_keys(queryset), _("paused"), pause_feed)

    @confirmed_action(description=_("Resume"), permission="change")
    def resume(self, request: HttpRequest, queryset: QuerySet[Feed]) -> ActionReport:
        return run_each(primary_keys(queryset), _("resumed"), lambda pk: resume_feed(pk, timezone.now()))


class EventFilter(admin.SimpleListFilter):
    title = _("what")
    parameter_name = "what"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(EVENT_WORDS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[ItemEvent]) -> QuerySet[ItemEvent]:
        return queryset.filter(what=self.value()) if self.value() else queryset


@admin.register(ItemEvent)
class ItemEventAdmin(TimelineAdmin[ItemEvent]):
    list_filter = [EventFilter, ("at", DateRangeFilter)]
    list_select_related = ["item"]
    search_fields = ["=item__id", "who"]
    search_help_text = _("Number of the item or who")
    slow_lookups = ("q", "what")
    empty_hint = _("Everything that happens to an item is written down here.")

    @admin.display(description=_("item"))
    def shown_subject(self, event: ItemEvent) -> SafeString:
        address = reverse("admin:feeds_item_change", args=[event.item_id])
        return format_html('<a href="{}"><bdi>{}</bdi></a>', address, event.item.title[:80])


@admin.register(FeedSettings)
class FeedSettingsAdmin(OneRowAdmin[FeedSettings]):
    readonly_fields = ["changed_at"]
