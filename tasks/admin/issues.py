"""Issues: where each stands and why, and everything about one of them on one page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from broker_project.console.admin_base import (
    ActionReport,
    EvidenceAdmin,
    confirmed_action,
    record_action,
    who,
)
from broker_project.console.lists import DateRangeFilter, Tab
from broker_project.lib.errors import ActionRefused
from broker_project.lib.hidden_text import hidden_count
from tasks import selectors
from tasks.admin.differences import difference
from tasks.admin.shown import each_number, label_chips, outside_link, repository_of, short
from tasks.lifecycle import LIVE_STATES, PARKED
from tasks.models import Issue
from tasks.reasons import Reason, ReasonCode
from tasks.services import admin_actions, approvals

CHANGE_PAGE = "admin:tasks_issue_change"

STATES: dict[str, tuple[Any, Callable[[QuerySet[Issue]], QuerySet[Issue]]]] = {
    "open": (_("open"), lambda rows: rows.filter(is_open=True)),
    "on_offer": (_("on offer"), selectors.issues_on_offer),
    "at_work": (_("at work"), selectors.issues_at_work),
    "in_review": (_("in review"), selectors.issues_in_review),
    "parked": (_("parked"), selectors.parked_issues),
    "edited": (_("edited"), selectors.edited_issues),
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
    list_filter = [IssueStateFilter, "is_open", "priority", "repository", ("updated_at", DateRangeFilter)]
    empty_hint = _("The poller “issues” reads them from GitHub. Set GITHUB_REPOSITORY, or add a repository.")
    list_select_related = ["repository"]
    search_fields = ["=number", "title"]
    search_help_text = _("Number or title")
    ordering = ["-pk"]
    sortable_by = ["shown_number", "shown_priority", "updated_at", "lost_attempts"]
    actions = ["park", "offer_again"]

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
        reason: Reason | None = getattr(issue, "verdict", None)
        return reason.sentence if reason else ""

    # Actions

    @confirmed_action(
        description=_("Park: no longer on offer"),
        warning=_("An agent at work on it is told to stop, and the issue gets a label and a comment."),
    )
    def park(self, request: HttpRequest, queryset: QuerySet[Issue]) -> ActionReport:
        return each_number(map(repository_of, queryset), _("parked"), admin_actions.park, request)

    @confirmed_action(description=_("Offer again: label off, attempts forgotten"))
    def offer_again(self, request: HttpRequest, queryset: QuerySet[Issue]) -> ActionReport:
        return each_number(
            map(repository_of, queryset), _("offered again"), admin_actions.offer_again, request
        )

    # Pages

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.by_number)
        own = path("in/<int:repository_id>/<int:number>/", view, name="tasks_issue_by_number")
        seen = self.admin_site.admin_view(self.difference)
        difference = path("<int:issue_id>/difference/", seen, name="tasks_issue_difference")
        return [own, difference, *super().get_urls()]

    def difference(self, request: HttpRequest, issue_id: int) -> HttpResponse:
        """What changed since the approval, and the button that lets just this text through."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        issue = get_object_or_404(Issue.objects.select_related("repository").defer("raw"), pk=issue_id)
        if request.method == "POST":
            return self.approve(request, issue)
        edit = selectors.waiting_edit(issue)
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Edited after its approval"),
            "opts": self.opts,
            "issue": issue,
            "edit": edit,
            "hidden": hidden_count(issue.title) + hidden_count(issue.body),
            "title_lines": difference(edit.title, issue.title) if edit else [],
            "body_lines": difference(edit.body, issue.body) if edit else [],
            "digest": approvals.digest_of(issue),
            "may_approve": self.has_operate_permission(request),
        }
        return TemplateResponse(request, "admin/tasks/issue/difference.html", context)

    def approve(self, request: HttpRequest, issue: Issue) -> HttpResponse:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        page = CHANGE_PAGE
        seen = request.POST.get("digest", "")
        try:
            approvals.approve_edit(issue.pk, seen, who=who(request), now=timezone.now())
        except ActionRefused as refusal:
            text = gettext("Nothing was approved (%(why)s).") % {"why": refusal.sentence}
            self.message_user(request, text, messages.WARNING)
            if refusal.code == ReasonCode.EDITED_AGAIN:
                page = "admin:tasks_issue_difference"
        else:
            record_action(request, Issue, [issue], "approve")
            self.message_user(request, gettext("The new text is approved."), messages.SUCCESS)
        return HttpResponseRedirect(reverse(page, args=[issue.pk]))

    def by_number(self, request: HttpRequest, repository_id: int, number: int) -> HttpResponse:
        """A fix task's number is its pull request's; both kinds are found by it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = Issue.objects.filter(repository_id=repository_id, number=number).values_list("pk", flat=True)
        if pk := found.first():
            return HttpResponseRedirect(reverse(CHANGE_PAGE, args=[pk]))
        pull = get_object_or_404(selectors.pulls_numbered(repository_id, number))
        return HttpResponseRedirect(reverse("admin:tasks_pullrequest_change", args=[pull.pk]))

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        counts = selectors.issue_counts()
        return [
            Tab(label, counts[name], (("state", name),))
            for name, (label, _rows) in STATES.items()
            if name != "edited" or settings.BROKER.approval_gate
        ]

    def prepare_rows(self, rows: list[Issue]) -> list[Issue]:
        found = selectors.offer_reasons(rows, timezone.now())
        for row in rows:
            row.verdict = found.get(row.pk)  # type: ignore[attr-defined]
        return rows

    def page_context(self, request: HttpRequest, row: Issue) -> dict[str, Any]:
        reason = selectors.offer_reasons([row], timezone.now()).get(row.pk)
        code = reason.code if reason else None
        attempts = selectors.attempts(row.repository_id, row.number)
        live = next((row for row in attempts if row.state in LIVE_STATES), None)
        return {
            "issue": row,
            "hidden": hidden_count(row.title) + hidden_count(row.body),
            "reason": reason,
            "has_edit": code is ReasonCode.EDITED,
            "is_on_offer": code is ReasonCode.ON_OFFER,
            "attempts": attempts,
            "live": live,
            "pulls": selectors.linked_pulls(row),
            "timeline": selectors.timeline(row.repository_id, row.number),
            "github_link": outside_link(row.html_url, row.html_url),
            "label_chips": label_chips(row.labels),
            "allowed": self.allowed_actions(request, row, is_live=live is not None),
        }

    def allowed_actions(self, request: HttpRequest, issue: Issue, *, is_live: bool) -> list[tuple[str, Any]]:
        if not self.has_operate_permission(request) or not issue.is_open:
            return []
        found: list[tuple[str, Any]] = []
        if PARKED not in issue.labels:
            found.append(("park", _("Park")))
        if not is_live and (PARKED in issue.labels or issue.refusal):
            found.append(("offer_again", _("Offer again")))
        return found
