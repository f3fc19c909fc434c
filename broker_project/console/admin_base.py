"""How the admin behaves everywhere: evidence is read-only, actions ask first and report what really changed.

A model admin lists its actions as methods decorated with :func:`confirmed_action`; each calls a service for
the chosen rows by :func:`run_each` and returns an :class:`ActionReport`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from broker_project.console.lists import BaseAdmin, ListPage
from broker_project.lib.errors import ActionFailed, ActionRefused, OutsideError
from broker_project.lib.hidden_text import made_visible
from broker_project.lib.redaction import redact

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

ModelT = TypeVar("ModelT", bound=Model)
RowT = TypeVar("RowT")
CONFIRM_FIELD = "confirmed"
LOGGED_ROWS = 200  # an action on more rows leaves one entry for all of them
ACTION_SECONDS = 60.0  # no row is begun after this: a request that never ends helps nobody

__all__ = [
    "ActionReport",
    "BaseAdmin",
    "EvidenceAdmin",
    "ListPage",
    "OneRowAdmin",
    "TimelineAdmin",
    "confirmed_action",
    "in_time",
    "primary_keys",
    "run_each",
    "who",
]


@dataclass
class ActionReport:
    """What an action did: how many rows it did it to, where it failed, and why the others were left alone."""

    done: str | Promise  # e.g. "set to retry"
    changed: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    left_alone: Counter[str] = field(default_factory=Counter)

    def fail(self, reason: str | Promise) -> None:
        self.failed[str(reason)] += 1

    def leave(self, reason: str | Promise) -> None:
        self.left_alone[str(reason)] += 1

    def message(self, noun: str, noun_plural: str) -> str:
        """For instance: "2 items set to retry, 1 left alone (pending)"."""
        text = _("%(count)d %(noun)s %(done)s") % {
            "count": self.changed,
            "noun": noun if self.changed == 1 else noun_plural,
            "done": self.done,
        }
        if self.failed:
            text += ", " + _("%(count)d failed (%(reasons)s)") % counted(self.failed)
        if self.left_alone:
            text += ", " + _("%(count)d left alone (%(reasons)s)") % counted(self.left_alone)
        return text


def counted(reasons: Counter[str]) -> dict[str, Any]:
    """How many there are in all, and their reasons: with numbers if there is more than one."""
    named = (reason if len(reasons) == 1 else f"{reason}: {count}" for reason, count in reasons.most_common())
    return {"count": reasons.total(), "reasons": ", ".join(named)}


def in_time(rows: Iterable[RowT], report: ActionReport, seconds: float = ACTION_SECONDS) -> Iterator[RowT]:
    """The rows one by one until the time is up; the others are left alone and can be chosen again."""
    deadline = time.monotonic() + seconds
    for row in rows:
        if time.monotonic() > deadline:
            report.leave(_("no time left, choose it again"))
        else:
            yield row


def run_each(rows: Iterable[RowT], done: str | Promise, service: Callable[[RowT], object]) -> ActionReport:
    """Call a service for each row until the time is up, and count what came of it.

    Rows for which it raises :class:`ActionRefused` are left alone, and the report says why.
    """
    report = ActionReport(done)
    for row in in_time(rows, report):
        try:
            service(row)
        except ActionFailed as failure:
            report.fail(failure.sentence)
        except ActionRefused as refusal:
            report.leave(refusal.sentence)
        except OutsideError as error:
            report.leave(redact(str(error), 200))
        else:
            report.changed += 1
    return report


def primary_keys(queryset: QuerySet[Any]) -> list[Any]:
    """Of the chosen rows, before any of them changes and the filter no longer finds it."""
    return list(queryset.values_list("pk", flat=True))


def who(request: HttpRequest) -> str:
    """The person, as events and messages name them."""
    return request.user.get_username()


class EvidenceAdmin(ListPage[ModelT]):
    """Rows that the broker writes and people read. Only actions change them."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Who may run actions: those with the model's change permission, although nobody edits its rows."""
        options = self.opts
        return bool(request.user.has_perm(f"{options.app_label}.change_{options.model_name}"))


class TimelineAdmin(EvidenceAdmin[ModelT]):
    """What happened to the things of an app, newest first. ``shown_subject`` leads to the thing."""

    list_display = ["at", "shown_subject", "shown_what", "shown_from", "shown_to", "shown_reason", "who"]
    fields = ["at", "shown_subject", "shown_what", "shown_from", "shown_to", "reason", "who"]
    readonly_fields = ["shown_subject", "shown_what", "shown_from", "shown_to"]
    ordering = ["-pk"]
    sortable_by = []

    @admin.display(description=gettext_lazy("what"))
    def shown_what(self, event: Any) -> str:
        return str(event.shown_what)

    @admin.display(description=gettext_lazy("from"))
    def shown_from(self, event: Any) -> str:
        return str(event.shown_from)

    @admin.display(description=gettext_lazy("to"))
    def shown_to(self, event: Any) -> str:
        return str(event.shown_to)

    @admin.display(description=gettext_lazy("reason"))
    def shown_reason(self, event: Any) -> str:
        return made_visible(event.shown_reason)[:120]


class OneRowAdmin(BaseAdmin[ModelT]):
    """Settings in one row: its page is the list, and the row is made when somebody first looks."""

    only_pk = 1

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        self.model._default_manager.get_or_create(pk=self.only_pk)
        options = self.opts
        return HttpResponseRedirect(
            reverse(f"admin:{options.app_label}_{options.model_name}_change", args=[self.only_pk])
        )


ActionMethod = Callable[[Any, HttpRequest, QuerySet[Any]], ActionReport]


def confirmed_action(
    *, description: str | _StrPromise, warning: str | Promise = "", permission: str = "operate"
) -> Callable[[ActionMethod], Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]]:
    """An admin action that shows a confirmation page first and then the true numbers."""

    def decorate(method: ActionMethod) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]:
        @admin.action(description=description, permissions=[permission])
        @wraps(method)
        def action(self: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
            if not getattr(self, f"has_{permission}_permission")(request):
                raise PermissionDenied
            if CONFIRM_FIELD not in request.POST:
                return confirmation_page(self, request, queryset, method.__name__, description, warning)
            chosen = list(queryset[: LOGGED_ROWS + 1])
            report = method(self, request, queryset)
            options = self.opts
            text = report.message(str(options.verbose_name), str(options.verbose_name_plural))
            record_action(request, options.model, chosen, f"{method.__name__}: {text}")
            level = messages.SUCCESS if report.changed else messages.WARNING
            self.message_user(request, text, level)
            return None

        return action

    return decorate


def record_action(request: HttpRequest, model: type[Model], chosen: list[Any], text: str) -> None:
    """Who did what, where Django's admin keeps such things."""
    user_id = request.user.pk
    assert user_id is not None
    if 0 < len(chosen) <= LOGGED_ROWS:
        LogEntry.objects.log_actions(user_id, chosen, CHANGE, text)
        return
    LogEntry.objects.create(
        user_id=user_id,
        content_type=ContentType.objects.get_for_model(model),
        object_repr=str(model._meta.verbose_name_plural)[:200],
        action_flag=CHANGE,
        change_message=text,
    )


def confirmation_page(
    model_admin: Any,
    request: HttpRequest,
    queryset: QuerySet[Any],
    name: str,
    description: str | _StrPromise,
    warning: str | Promise,
) -> HttpResponse:
    selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
    across = request.POST.get("select_across") == "1"
    context = {
        **model_admin.admin_site.each_context(request),
        "title": description,
        "warning": warning,
        "action_name": name,
        "selected": selected,
        "select_across": across,
        "count": queryset.count() if across else len(selected),
        "examples": list(queryset[:20]),
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "confirm_field": CONFIRM_FIELD,
        "opts": model_admin.opts,
        "media": model_admin.media,
    }
    return TemplateResponse(request, "admin/confirm_action.html", context)
