"""How the admin behaves everywhere: evidence is read-only, actions ask first and report what really changed.

A model admin lists its actions as methods decorated with :func:`confirmed_action`; each calls a service for
the chosen rows and returns an :class:`ActionReport`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from broker_project.admin_export import export_csv

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

ModelT = TypeVar("ModelT", bound=Model)
CONFIRM_FIELD = "confirmed"
COUNTED_ROWS = 10_000
LOGGED_ROWS = 200  # an action on more rows leaves one entry for all of them

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin
else:

    class BaseAdmin(admin.ModelAdmin):
        """``ModelAdmin`` is generic for the type checker only; this one takes a model in brackets, too."""

        def __class_getitem__(cls, model: object) -> type:
            return cls


class LimitedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than anybody pages: a full count of a million rows takes seconds."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[:COUNTED_ROWS].count()
        return len(rows)


@dataclass
class ActionReport:
    """What an action did: how many rows changed, and why the others were left alone."""

    done: str | Promise  # e.g. "set to retry"
    changed: int = 0
    left_alone: Counter[str] = field(default_factory=Counter)

    def leave(self, reason: str | Promise) -> None:
        self.left_alone[str(reason)] += 1

    def message(self, noun: str, noun_plural: str) -> str:
        """For instance: "2 items set to retry, 1 left alone (pending)"."""
        text = _("%(count)d %(noun)s %(done)s") % {
            "count": self.changed,
            "noun": noun if self.changed == 1 else noun_plural,
            "done": self.done,
        }
        if self.left_alone:
            total = self.left_alone.total()
            reasons = ", ".join(
                reason if len(self.left_alone) == 1 else f"{reason}: {count}"
                for reason, count in self.left_alone.most_common()
            )
            text += ", " + _("%(count)d left alone (%(reasons)s)") % {"count": total, "reasons": reasons}
        return text


class EvidenceAdmin(BaseAdmin[ModelT]):
    """Rows that the broker writes and people read. Only actions change them."""

    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = LimitedPaginator

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Whoever sees a list may take it along."""
        actions = super().get_actions(request)
        if not self.has_view_permission(request) or IS_POPUP_VAR in request.GET:
            return actions
        return {**actions, "export_csv": (export_csv, "export_csv", _("Export as CSV"))}

    def prepare_rows(self, rows: list[ModelT]) -> list[ModelT]:
        """A place to add what columns need and the database does not have, for many rows at once."""
        return rows

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Who may run actions: those with the model's change permission, although nobody edits its rows."""
        options = self.opts
        return bool(request.user.has_perm(f"{options.app_label}.change_{options.model_name}"))


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
