"""Status pages for people who only look. Each is a whole page that renews its middle by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from broker_project.console.status import figures, throughput
from broker_project.lib.kept import figure
from broker_project.ops.clock.poller_states import poller_states
from broker_project.people.access import status_page
from feeds import selectors as feed_selectors
from feeds.lifecycle import Reason
from fixtures import selectors as match_selectors
from tasks import selectors as task_selectors
from tasks.models import Repository


def show(request: HttpRequest, page: str, title: str, context: dict[str, Any]) -> HttpResponse:
    shared = {
        "title": title,
        "page": page,
        "now": timezone.now(),
        "may_admin": request.user.is_staff,
        "live_seconds": 5,
    }
    return render(request, f"status/{page}.html", {**shared, **context})


def overview_context() -> dict[str, Any]:
    """What the overview and the admin's first page have in common."""
    now = timezone.now()
    pipelines = [figures.tasks_pipeline(), figures.feeds_pipeline(), figures.fixtures_pipeline()]
    pollers = poller_states()
    budgets = figures.budgets()
    kinds = {"tasks": throughput.tasks(), "feeds": throughput.items(), "fixtures": throughput.matches()}
    return {
        "now": now,
        "kinds": [(pipeline, throughput.charts(kinds[pipeline.name], now)) for pipeline in pipelines],
        "needs": figures.needs(now, pollers, pipelines, budgets),
        "pollers": pollers,
        "budgets": budgets,
        "at_work": figures.agents_at_work(),
    }


@require_safe
@status_page
@never_cache
def overview(request: HttpRequest) -> HttpResponse:
    return show(request, "overview", _("Overview"), overview_context())


@require_safe
@status_page
@never_cache
def tasks(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    context = {
        "pipeline": figures.tasks_pipeline(),
        "charts": throughput.charts(throughput.tasks(), now),
        "at_work": figures.agents_at_work(),
        "agents": task_selectors.agents_seen(),
        "events": task_selectors.recent_events(),
        "repositories": Repository.objects.filter(is_enabled=True),
        "budgets": [budget for budget in figures.budgets() if budget.system == "GitHub"],
    }
    return show(request, "tasks", _("Tasks"), context)


@require_safe
@status_page
@never_cache
def feeds(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    week = now - timedelta(days=7)
    reasons = figure("items:reasons", lambda _: feed_selectors.reasons_since(week))
    context = {
        "pipeline": figures.feeds_pipeline(),
        "charts": throughput.charts(throughput.items(), now),
        "feeds": feed_selectors.feeds_overview()[:100],
        "reasons": [(reason.label, reasons[reason.name.lower()]) for reason in Reason],
        "posts": feed_selectors.recent_posts(15),
        "events": feed_selectors.recent_events(20),
        "leases": feed_selectors.live_leases(now),
        "usage": figure("items:usage", lambda _: feed_selectors.usage_since(now)),
    }
    return show(request, "feeds", _("Feeds"), context)


@require_safe
@status_page
@never_cache
def fixtures(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    context = {
        "pipeline": figures.fixtures_pipeline(),
        "charts": throughput.charts(throughput.matches(), now),
        "matches": match_selectors.matches_around(now),
        "failed": match_selectors.failed_matches(),
        "csv": match_selectors.csv_state(),
        "budgets": [budget for budget in figures.budgets() if budget.system == "API-Football"],
    }
    return show(request, "fixtures", _("Matches"), context)
