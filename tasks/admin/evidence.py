"""What else is on record: pull requests, fix tasks, events and webhook deliveries."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from broker_project.console.admin_base import EvidenceAdmin, TimelineAdmin
from broker_project.console.lists import DateRangeFilter, Tab, choice_tabs
from broker_project.lib.hidden_text import made_visible
from tasks import selectors
from tasks.admin.shown import issue_link, label_chips, outside_link
from tasks.models import EVENT_KINDS, Event, FixTask, PullRequest, WebhookDelivery


@admin.register(PullRequest)
class PullRequestAdmin(EvidenceAdmin[PullRequest]):
    list_display = ["__str__", "repository", "is_open", "head_ref", "base_ref", "closed_issues", "updated_at"]
    list_filter = ["is_open", "repository", ("updated_at", DateRangeFilter)]
    empty_hint = _("The poller “issues” reads open pull requests together with the issues.")
    list_select_related = ["repository"]
    search_fields = ["=number", "title", "head_ref"]
    search_help_text = _("Number, title or branch")
    ordering = ["-pk"]
    sortable_by = ["updated_at"]
    exclude = ["title", "body", "labels", "html_url", "closes", "comments_digest", "comments_seen_at"]
    readonly_fields = ["shown_title", "address", "shown_labels", "closed_issues", "shown_body"]

    @admin.display(description=_("title"))
    def shown_title(self, pull: PullRequest) -> str:
        return made_visible(pull.title)

    @admin.display(description=_("body"))
    def shown_body(self, pull: PullRequest) -> str:
        return made_visible(pull.body)

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        counts = selectors.pull_counts()
        return [
            Tab(_("open"), counts[True], (("is_open__exact", "1"),)),
            Tab(_("closed"), counts[False], (("is_open__exact", "0"),)),
        ]

    @admin.display(description=_("closes"))
    def closed_issues(self, pull: PullRequest) -> str:
        return ", ".join(f"#{number}" for number in pull.closes)

    @admin.display(description=_("address"))
    def address(self, pull: PullRequest) -> str | SafeString:
        return outside_link(pull.html_url, pull.html_url)

    @admin.display(description=_("labels"))
    def shown_labels(self, pull: PullRequest) -> SafeString:
        return label_chips(pull.labels)


@admin.register(FixTask)
class FixTaskAdmin(EvidenceAdmin[FixTask]):
    list_display = ["__str__", "repository", "state", "lost_attempts", "created_at", "expires_at"]
    list_filter = ["state", "repository", ("created_at", DateRangeFilter)]
    empty_hint = _("They come from POST /api/v1/tasks/fix, or from review comments.")
    list_select_related = ["repository"]
    search_fields = ["=pull_number"]
    search_help_text = _("Number of the pull request")
    ordering = ["-pk"]
    exclude = ["comments"]
    readonly_fields = ["shown_comments", "pull_request"]

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        return choice_tabs("state__exact", FixTask.State.choices, selectors.fix_counts())

    @admin.display(description=_("review comments"))
    def shown_comments(self, fix: FixTask) -> str:
        return made_visible("\n".join(f"- {comment}" for comment in fix.comments))

    @admin.display(description=_("pull request"))
    def pull_request(self, fix: FixTask) -> SafeString:
        return issue_link(fix.repository_id, fix.pull_number)


class WhatFilter(admin.SimpleListFilter):
    """The words that events are called by; listing the column's own values would read every row."""

    title = _("what")
    parameter_name = "what"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(word, gettext(word)) for word in EVENT_KINDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        return queryset.filter(what=self.value()) if self.value() else queryset


@admin.register(Event)
class EventAdmin(TimelineAdmin[Event]):
    list_display = [
        "at",
        "shown_subject",
        "repository",
        "shown_what",
        "shown_from",
        "shown_to",
        "shown_reason",
        "who",
    ]
    fields = ["repository", "assignment", *TimelineAdmin.fields]
    list_filter = [WhatFilter, ("at", DateRangeFilter), "repository"]
    slow_lookups = ("q", "what")
    empty_hint = _("Everything that happens to an issue is written down here.")
    list_select_related = ["repository"]
    search_fields = ["=number", "who"]
    search_help_text = _("Issue number or who")

    @admin.display(description=_("issue"))
    def shown_subject(self, event: Event) -> SafeString:
        return issue_link(event.repository_id, event.number)


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(EvidenceAdmin[WebhookDelivery]):
    list_display = ["delivery_id", "event", "received_at"]
    list_filter = [("received_at", DateRangeFilter)]
    empty_hint = _("Set the webhook up on GitHub; the operator's guide says how.")
    search_fields = ["delivery_id", "=event"]
    ordering = ["-received_at"]
    sortable_by = []
