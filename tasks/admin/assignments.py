"""Assignments: who works on what, since when, and how each attempt ended."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from broker_project.console.admin_base import ActionReport, EvidenceAdmin, confirmed_action, run_each, who
from broker_project.console.lists import DateRangeFilter, Tab, choice_tabs
from tasks import selectors
from tasks.admin.shown import RoleFilter, each_number, issue_link, local_time, outside_link, short
from tasks.lifecycle import AssignmentState
from tasks.models import STATE_CHOICES, Assignment
from tasks.offers.heartbeat import lease_expires_at
from tasks.services import admin_actions


@admin.register(Assignment)
class AssignmentAdmin(EvidenceAdmin[Assignment]):
    list_display = [
        "id",
        "issue",
        "shown_title",
        "agent",
        "state",
        "shown_reason",
        "task_type",
        "role",
        "attempt",
        "created_at",
        "last_heartbeat_at",
        "ended_at",
    ]
    list_filter = [
        "state",
        "task_type",
        RoleFilter,
        "repository",
        ("created_at", DateRangeFilter),
        "is_cancelled",
    ]
    slow_lookups = ("q", "role", "task_type__exact", "is_cancelled__exact")
    empty_hint = _("Agents get a task by asking: POST /api/v1/request-task.")
    list_select_related = ["agent", "repository"]
    search_fields = ["=number", "agent__name", "branch", "request_id"]
    search_help_text = _("Issue number, agent, branch or request id")
    sortable_by = ["id", "created_at", "last_heartbeat_at"]
    actions = ["release", "park", "offer_again"]
    exclude = ["answer", "labels_due", "number"]
    readonly_fields = ["issue", "lease_expires", "labels_waiting"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Assignment]:
        return super().get_queryset(request).defer("result", "progress")

    @admin.display(description=_("issue"), ordering="number")
    def issue(self, row: Assignment) -> SafeString:
        return issue_link(row.repository_id, row.number)

    @admin.display(description=_("title"))
    def shown_title(self, row: Assignment) -> str:
        return short(str(row.answer.get("title", "")), 60)

    @admin.display(description=_("reason"))
    def shown_reason(self, row: Assignment) -> str:
        return short(row.shown_reason, 80)

    @admin.display(description=_("lease until"))
    def lease_expires(self, row: Assignment) -> str:
        return "" if row.ended_at else local_time(lease_expires_at(row.last_heartbeat_at))

    @admin.display(description=_("labels GitHub has not taken yet"))
    def labels_waiting(self, row: Assignment) -> str:
        if not row.labels_due:
            return gettext("none")
        return ", ".join(
            [f"+{name}" for name in row.labels_due["add"]] + [f"-{n}" for n in row.labels_due["remove"]]
        )

    # Actions

    @confirmed_action(
        description=_("Release: take it back, the issue is on offer at once"),
        warning=_("Its agent is told to stop with its next heartbeat."),
    )
    def release(self, request: HttpRequest, queryset: QuerySet[Assignment]) -> ActionReport:
        rows = list(queryset.select_related("agent", "repository"))
        return run_each(
            rows,
            _("released"),
            lambda row: admin_actions.release(row, who=who(request), now=timezone.now()),
        )

    @confirmed_action(
        description=_("Park the issue: no longer on offer"),
        warning=_("An agent at work on it is told to stop, and the issue gets a label and a comment."),
    )
    def park(self, request: HttpRequest, queryset: QuerySet[Assignment]) -> ActionReport:
        return each_number(self.pairs(queryset), _("parked"), admin_actions.park, request)

    @confirmed_action(description=_("Offer the issue again: label off, attempts forgotten"))
    def offer_again(self, request: HttpRequest, queryset: QuerySet[Assignment]) -> ActionReport:
        return each_number(self.pairs(queryset), _("offered again"), admin_actions.offer_again, request)

    @staticmethod
    def pairs(queryset: QuerySet[Assignment]) -> list[tuple[Any, int]]:
        """The issues of the chosen attempts, each once."""
        return list(
            dict.fromkeys((row.repository, row.number) for row in queryset.select_related("repository"))
        )

    # Pages

    def get_ordering(self, request: HttpRequest) -> list[Any]:
        # An index has each state in the order of its heartbeats; by number it would be sorted anew.
        is_indexed = request.GET.get("state__exact") and not self.looks_slowly(request)
        return ["-last_heartbeat_at"] if is_indexed else ["-pk"]

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        return choice_tabs("state__exact", STATE_CHOICES, selectors.assignment_counts())

    def page_context(self, request: HttpRequest, row: Assignment) -> dict[str, Any]:
        may_act = self.has_operate_permission(request)
        is_live = row.state == AssignmentState.LIVE
        return {
            "answer": row.answer,
            "issue_address": outside_link(str(row.answer.get("issue_url", "")), gettext("On GitHub")),
            "timeline": selectors.assignment_timeline(row.pk),
            "allowed": [("release", _("Release")), ("park", _("Park"))] if may_act and is_live else [],
        }
