"""The admin's pages about Redis: usage, keys, flags and settings, and the check.

All work is bounded: the figures of a large database are those of a sample, and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import redis
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from broker_project.lib.config.dynamic import load_snapshot, read_rate_limit
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.lib.redis.client import raw_client
from broker_project.ops.redis_console import switches as redis_switches
from broker_project.ops.redis_console.check import check_keys
from broker_project.ops.redis_console.scanning import (
    BadPattern,
    Place,
    Walk,
    browse,
    explain,
    find_key,
    look_up,
    printable,
)
from broker_project.ops.redis_console.usage import measure_usage
from broker_project.ops.redis_console.values import view_key

log = get_logger(__name__)

SAMPLE_KEYS, SAMPLE_CALLS = 5_000, 40
CHECKED_KEYS, CHECK_CALLS = 20_000, 200
PAGE_KEYS, PAGE_CALLS = 100, 40
VIEW, CHANGE_PERMISSION = "broker.view_redis", "broker.change_redis"

View = Callable[[HttpRequest], HttpResponse]


def may_view(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(VIEW))


def may_change(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(CHANGE_PERMISSION))


def redis_view(allowed: Callable[[HttpRequest], bool]) -> Callable[[View], View]:
    """Refuse those without the permission; a Redis that is away is a page that says so, not a traceback."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest) -> HttpResponse:
            if not allowed(request):
                raise PermissionDenied
            try:
                return view(request)
            except redis.exceptions.RedisError as error:
                log.warning("redis page", error=str(error))
                context = {"error": redact(str(error), 300)}
                return page(request, "down", _("Redis does not answer"), context, status=503)

        return guarded

    return decorate


def page(
    request: HttpRequest, template: str, title: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    shared = {**admin.site.each_context(request), "title": title, "may_change": may_change(request)}
    return TemplateResponse(request, f"admin/redis/{template}.html", {**shared, **context}, status=status)


@require_safe
@redis_view(may_view)
def overview(request: HttpRequest) -> HttpResponse:
    client = raw_client()
    usage = measure_usage(client, Walk(client, max_keys=SAMPLE_KEYS, max_calls=SAMPLE_CALLS))
    found = load_snapshot()
    context = {
        "usage": usage,
        "database_keys": client.dbsize(),
        "flags": redis_switches.flag_rows(found),
        "settings": redis_switches.setting_rows(found),
        "rate_limit": read_rate_limit(),
    }
    return page(request, "overview", "Redis", context)


@require_safe
@redis_view(may_view)
def browse_keys(request: HttpRequest) -> HttpResponse:
    pattern = request.GET.get("pattern", "").strip()
    place = Place.parse(request.GET.get("from", ""))
    client = raw_client()
    following: Place | None = None
    rows: list[dict[str, Any]] = []
    try:
        keys, following = browse(client, pattern or None, place, wanted=PAGE_KEYS, max_calls=PAGE_CALLS)
    except BadPattern:
        messages.error(request, _("This is not a pattern: use printable characters, for instance issue:*"))
        keys = []
    for facts in look_up(client, keys):
        spec = explain(facts.name)
        is_text = printable(facts.name) == facts.name
        rows.append({"facts": facts, "name": printable(facts.name), "spec": spec, "has_link": is_text})
    rows.sort(key=lambda row: row["name"])
    context = {"rows": rows, "pattern": pattern, "following": following, "is_start": place == Place()}
    return page(request, "browse", _("Redis keys"), context)


@require_safe
@redis_view(may_view)
def show_key(request: HttpRequest) -> HttpResponse:
    client = raw_client()
    try:
        view = view_key(client, find_key(client, request.GET.get("name", "")))
    except BadPattern:
        view = None
    if view is None:
        messages.warning(request, _("There is no such key of ours, or it has expired."))
        return HttpResponseRedirect(reverse("admin:redis_browse"))
    name = printable(view.facts.name)
    notes = [note.translated for note in view.notes]
    return page(request, "key", name, {"view": view, "name": name, "notes": notes})


@require_safe
@redis_view(may_view)
def show_check(request: HttpRequest) -> HttpResponse:
    client = raw_client()
    result = check_keys(client, Walk(client, max_keys=CHECKED_KEYS, max_calls=CHECK_CALLS))
    findings = [
        {
            "problem": _(str(finding.problem)),
            "key": printable(finding.key),
            "has_link": printable(finding.key) == finding.key,
            "detail": redact(finding.detail.translated, 300),
        }
        for finding in result.findings[:200]
    ]
    context = {"result": result, "findings": findings, "left_out": result.problems - len(findings)}
    return page(request, "check", _("Redis check"), context)


@require_POST
@redis_view(may_change)
def change(request: HttpRequest) -> HttpResponse:
    """Switch a flag or change a setting, after a page that asks for confirmation."""
    try:
        step = redis_switches.parse_change(request.POST)
    except ValueError as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(reverse("admin:redis_overview"))
    if request.POST.get("confirmed") != "yes":
        return page(request, "confirm", _("Are you sure?"), {"step": step, "fields": step.fields})
    step.apply()
    record(request, step)
    messages.success(request, step.sentence)
    return HttpResponseRedirect(reverse("admin:redis_overview"))


def record(request: HttpRequest, step: redis_switches.Change) -> None:
    """Record who did what in the history of the admin."""
    user: User = request.user  # type: ignore[assignment]
    LogEntry.objects.create(
        user_id=user.pk, object_id=step.key, object_repr=step.key[:200], action_flag=CHANGE,
        change_message=step.record,
    )  # fmt: skip
    log.info("redis switched", key=step.key, what=step.record, who=user.get_username())


def urls(site: admin.AdminSite) -> list[URLPattern]:
    return [
        path("redis/", site.admin_view(overview), name="redis_overview"),
        path("redis/keys/", site.admin_view(browse_keys), name="redis_browse"),
        path("redis/key/", site.admin_view(show_key), name="redis_key"),
        path("redis/check/", site.admin_view(show_check), name="redis_check"),
        path("redis/change/", site.admin_view(change), name="redis_change"),
    ]
