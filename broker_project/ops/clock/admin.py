"""Pollers in the admin: pause, resume, run now, and what each run did."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django_q.tasks import async_task

from broker_project.console.admin_base import ActionReport, EvidenceAdmin, confirmed_action, run_each, who
from broker_project.console.lists import DateRangeFilter, Tab, choice_tabs
from broker_project.lib.config.dynamic import maintenance
from broker_project.lib.errors import ActionRefused
from broker_project.lib.kept import figure
from broker_project.models import Poller, PollerRun
from broker_project.ops.clock import poller_states
from broker_project.ops.clock.pollers import poller_table
from broker_project.ops.clock.schedules import ENTRY_POINT

__all__ = ["PollerAdmin", "PollerRunAdmin"]


@admin.register(Poller)
class PollerAdmin(EvidenceAdmin[Poller]):
    list_display = [
        "name",
        "purpose",
        "schedule",
        "shown_state",
        "last_started",
        "duration",
        "outcome",
        "next_run",
        "progress",
    ]
    search_fields = ["name"]
    search_help_text = _("Name of the poller")
    list_filter = [("paused_at", DateRangeFilter)]
    actions = ["run_now", "pause", "resume"]
    fields = ["name", "purpose", "schedule", "shown_state", "paused_at", "paused_by", "next_run"]
    readonly_fields = ["purpose", "schedule", "shown_state", "next_run"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Poller]:
        self._states = poller_states.LazyStates()
        # Rows of pollers that no longer exist are history.
        return super().get_queryset(request).filter(name__in=poller_table())

    @admin.display(description=_("what it does"))
    def purpose(self, poller: Poller) -> str:
        return self._states[poller.name].purpose

    @admin.display(description=_("schedule"))
    def schedule(self, poller: Poller) -> str:
        return self._states[poller.name].schedule

    @admin.display(description=_("state"))
    def shown_state(self, poller: Poller) -> str:
        return self._states[poller.name].shown_condition

    @admin.display(description=_("last run"))
    def last_started(self, poller: Poller) -> str:
        run = self._states[poller.name].last_run
        return formats.localize(timezone.localtime(run.started_at)) if run else ""

    @admin.display(description=_("took"))
    def duration(self, poller: Poller) -> str:
        return self._states[poller.name].duration

    @admin.display(description=_("outcome"))
    def outcome(self, poller: Poller) -> str:
        run = self._states[poller.name].last_run
        return str(run.get_outcome_display()) if run else ""

    @admin.display(description=_("next run"))
    def next_run(self, poller: Poller) -> str:
        moment = self._states[poller.name].next_run_at
        return formats.localize(timezone.localtime(moment)) if moment else ""

    @admin.display(description=_("progress"))
    def progress(self, poller: Poller) -> str:
        run = self._states[poller.name].last_run
        return run.progress if run and run.outcome == PollerRun.Outcome.RUNNING else ""

    # Actions

    @confirmed_action(
        description=_("Run now"), warning=_("It runs in the background; its page shows how far it is.")
    )
    def run_now(self, request: HttpRequest, queryset: QuerySet[Poller]) -> ActionReport:
        stopped = maintenance().is_on

        def run(poller: Poller) -> None:
            if stopped:
                raise ActionRefused(_("maintenance"))
            if poller.paused_at is not None:
                raise ActionRefused(_("paused"))
            async_task(ENTRY_POINT, poller.name, by=who(request))

        return run_each(queryset, _("about to run"), run)

    @confirmed_action(description=_("Pause"), warning=_("It stands still until somebody resumes it."))
    def pause(self, request: HttpRequest, queryset: QuerySet[Poller]) -> ActionReport:
        def pause(poller: Poller) -> None:
            rows = Poller.objects.filter(pk=poller.pk, paused_at__isnull=True)
            if not rows.update(paused_at=timezone.now(), paused_by=who(request)):
                raise ActionRefused(_("paused already"))

        return run_each(queryset, _("paused"), pause)

    @confirmed_action(description=_("Resume"))
    def resume(self, request: HttpRequest, queryset: QuerySet[Poller]) -> ActionReport:
        def resume(poller: Poller) -> None:
            rows = Poller.objects.filter(pk=poller.pk, paused_at__isnull=False)
            if not rows.update(paused_at=None, paused_by=""):
                raise ActionRefused(_("not paused"))

        return run_each(queryset, _("resumed"), resume)

    # Pages

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        paused = Poller.objects.filter(name__in=poller_table(), paused_at__isnull=False).count()
        return [
            Tab(_("on the clock"), len(poller_table()) - paused, (("paused_at__isnull", "True"),)),
            Tab(_("paused"), paused, (("paused_at__isnull", "False"),)),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        poller_states.ensure_rows(poller_table())
        return super().changelist_view(request, extra_context)

    def page_context(self, request: HttpRequest, row: Poller) -> dict[str, Any]:
        is_paused = row.paused_at is not None
        second = ("resume", _("Resume")) if is_paused else ("pause", _("Pause"))
        choices = [second] if is_paused else [("run_now", _("Run now")), second]
        return {
            "runs": PollerRun.objects.filter(name=row.name).order_by("-started_at")[:20],
            "allowed": choices if self.has_operate_permission(request) else [],
        }


class NameFilter(admin.SimpleListFilter):
    title = _("poller")
    parameter_name = "poller"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in poller_table()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[PollerRun]) -> QuerySet[PollerRun]:
        return queryset.filter(name=self.value()) if self.value() else queryset


@admin.register(PollerRun)
class PollerRunAdmin(EvidenceAdmin[PollerRun]):
    list_display = ["started_at", "name", "by", "outcome", "duration", "shown_counts", "shown_error"]
    list_filter = ["outcome", NameFilter, ("started_at", DateRangeFilter)]
    slow_lookups = ("q", "outcome__exact")
    empty_hint = _("Pollers write here how each run went.")
    search_fields = ["=name", "by"]
    search_help_text = _("Poller or who started it")
    ordering = ["-pk"]
    sortable_by = []

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        rows = PollerRun.objects.values_list("outcome").annotate(Count("pk")).order_by()
        counts = figure("poller-runs", lambda _: dict(rows))
        return choice_tabs("outcome__exact", PollerRun.Outcome.choices, counts)

    @admin.display(description=_("took"))
    def duration(self, run: PollerRun) -> str:
        return poller_states.duration_in_words(run)

    @admin.display(description=_("counts"))
    def shown_counts(self, run: PollerRun) -> str:
        return ", ".join(f"{name} {count}" for name, count in run.counts.items() if count)

    @admin.display(description=_("error"))
    def shown_error(self, run: PollerRun) -> str:
        return run.error[:120]


@admin.register(LogEntry)
class LogEntryAdmin(EvidenceAdmin[LogEntry]):
    """Who did what: every action and change that was made in the admin."""

    list_display = ["action_time", "user", "content_type", "shown_object", "shown_message"]
    list_display_links = None
    list_filter = [("action_time", DateRangeFilter), "action_flag"]
    list_select_related = ["user", "content_type"]
    search_fields = ["user__username", "object_repr", "change_message"]
    search_help_text = _("Who, on what, or what was done")
    empty_hint = _("Every action in the admin leaves an entry here.")
    ordering = ["-pk"]
    sortable_by = []

    @admin.display(description=_("object"))
    def shown_object(self, entry: LogEntry) -> str | SafeString:
        address = entry.get_admin_url()
        if entry.is_deletion() or not entry.object_id or not address:
            return entry.object_repr[:80]
        return format_html('<a href="{}"><bdi>{}</bdi></a>', address, entry.object_repr[:80])

    @admin.display(description=_("what"))
    def shown_message(self, entry: LogEntry) -> str:
        return entry.get_change_message()[:300]
