"""Issues: where each stands and why, and everything about one of them on one page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from broker_project.admin_base import ActionReport, EvidenceAdmin, confirmed_action
from broker_project.lib.hidden_text import hidden_count
from tasks import issue_states, selectors
from tasks.admin.shown import each_number, label_chips, outside_link, repository_of, short
from tasks.lifecycle import LIVE_STATES, PARKED
from tasks.models import Issue
from tasks.services import operating
from tasks.words import advice_for, reason_in_words

STATES: dict[str, tuple[Any, Callable[[QuerySet[Issue]], QuerySet[Issue]]]] = {
    "open": (_("open"), lambda rows: rows.filter(is_open=True)),
    "on_offer": (_("on offer"), issue_states.on_offer),
    "at_work": (_("at work"), issue_states.at_work),
    "in_review": (_("in review"), issue_states.in_review),
    "parked": (_("parked"), issue_states.parked),
    "closed": (_("closed"), lambda rows: rows.filter(is_open=False)),
}


class IssueStateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, (label, _rows) in STATES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Issue]) -> QuerySet[Issue]:
        chosen = STATES.get(self.value() or "")
        return chosen[1](queryset) if chosen else queryset


@admin.register(Issue)
class IssueAdmin(EvidenceAdmin[Issue]):
    list_display = [
        "shown_number",
        "shown_title",
        "why",
        "shown_priority",
        "shown_labels",
        "updated_at",
        "lost_attempts",
        "repository",
    ]
    list_display_links = ["shown_number", "shown_title"]
    list_filter = [IssueStateFilter, "is_open", "priority", "repository", "updated_at"]
    list_select_related = ["repository"]
    search_fields = ["=number", "title"]
    search_help_text = _("Number or title")
    ordering = ["-pk"]
    sortable_by = ["shown_number", "shown_priority", "updated_at", "lost_attempts"]
    actions = ["park", "offer_again"]
    change_list_template = "admin/tabbed_change_list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Issue]:
        return super().get_queryset(request).defer("raw")

    @admin.display(description=_("number"), ordering="number")
    def shown_number(self, issue: Issue) -> str:
        return f"#{issue.number}"

    @admin.display(description=_("title"))
    def shown_title(self, issue: Issue) -> str:
        return short(issue.title)

    @admin.display(description=_("priority"), ordering="priority")
    def shown_priority(self, issue: Issue) -> str:
        return "" if issue.priority is None else f"P{issue.priority}"

    @admin.display(description=_("labels"))
    def shown_labels(self, issue: Issue) -> SafeString:
        return label_chips(issue.labels)

    @admin.display(description=_("where it stands"))
    def why(self, issue: Issue) -> str:
        return reason_in_words(getattr(issue, "verdict", ""))

    # Actions

    @confirmed_action(
        description=_("Park: no longer on offer"),
        warning=_("An agent at work on it is told to stop, and the issue gets a label and a comment."),
    )
    def park(self, request: HttpRequest, queryset: QuerySet[Issue]) -> ActionReport:
        return each_number(map(repository_of, queryset), _("parked"), operating.park, request)

    @confirmed_action(description=_("Offer again: label off, attempts forgotten"))
    def offer_again(self, request: HttpRequest, queryset: QuerySet[Issue]) -> ActionReport:
        return each_number(map(repository_of, queryset), _("offered again"), operating.offer_again, request)

    # Pages

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.by_number)
        own = path("in/<int:repository_id>/<int:number>/", view, name="tasks_issue_by_number")
        return [own, *super().get_urls()]

    def by_number(self, request: HttpRequest, repository_id: int, number: int) -> HttpResponse:
        """A fix task's number is its pull request's; both kinds are found by it."""
        found = Issue.objects.filter(repository_id=repository_id, number=number).values_list("pk", flat=True)
        if pk := found.first():
            return HttpResponseRedirect(reverse("admin:tasks_issue_change", args=[pk]))
        pull = get_object_or_404(selectors.pulls_numbered(repository_id, number))
        return HttpResponseRedirect(reverse("admin:tasks_pullrequest_change", args=[pull.pk]))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        counts = selectors.issue_counts()
        tabs = [(f"state={name}", label, counts[name]) for name, (label, _rows) in STATES.items()]
        response = super().changelist_view(request, {**(extra_context or {}), "tabs": tabs})
        context = getattr(response, "context_data", None) or {}
        if "cl" in context:
            context["cl"].result_list = self.prepare_rows(list(context["cl"].result_list))
        return response

    def prepare_rows(self, rows: list[Issue]) -> list[Issue]:
        found = issue_states.reasons(rows, timezone.now())
        for row in rows:
            row.verdict = found.get(row.pk, "")  # type: ignore[attr-defined]
        return rows

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        issue = self.get_object(request, object_id)
        context = {**(extra_context or {})}
        if issue is not None:
            reason = issue_states.reasons([issue], timezone.now()).get(issue.pk, "")
            attempts = selectors.attempts(issue.repository_id, issue.number)
            live = next((row for row in attempts if row.state in LIVE_STATES), None)
            context |= {
                "issue": issue,
                "hidden": hidden_count(issue.title) + hidden_count(issue.body),
                "reason": reason_in_words(reason),
                "advice": advice_for(reason),
                "is_on_offer": reason == issue_states.ON_OFFER,
                "attempts": attempts,
                "live": live,
                "pulls": selectors.linked_pulls(issue),
                "timeline": selectors.timeline(issue.repository_id, issue.number),
                "github_link": outside_link(issue.html_url, issue.html_url),
                "label_chips": label_chips(issue.labels),
                "allowed": self.allowed_actions(request, issue, is_live=live is not None),
            }
        return super().change_view(request, object_id, form_url, context)

    def allowed_actions(self, request: HttpRequest, issue: Issue, *, is_live: bool) -> list[tuple[str, Any]]:
        if not self.has_operate_permission(request) or not issue.is_open:
            return []
        found: list[tuple[str, Any]] = []
        if PARKED not in issue.labels:
            found.append(("park", _("Park")))
        if not is_live and (PARKED in issue.labels or issue.refused_reason):
            found.append(("offer_again", _("Offer again")))
        return found
