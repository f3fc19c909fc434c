"""What every list of the admin has: state tabs, ranges of dates, a bounded look back, a hint when it is empty."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IS_POPUP_VAR, IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ERROR_FLAG, PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import DateTimeField, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext as in_djangos_words
from django.utils.translation import gettext_lazy

from broker_project.console.export import export_csv

ModelT = TypeVar("ModelT", bound=Model)
COUNTED_ROWS = 10_000
WINDOW_ROWS = 20_000

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


class LinkedRows(ChangeList):
    """Rows whose links carry the list's filters along from the beginning.

    Django adds them to each link by looking up in all URL patterns where it leads, a fifth of what a row costs.
    A row's link always leads to that row's page.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._carried = f"?{self.preserved_filters}" if self.preserved_filters else ""
        self.preserved_filters = ""  # nothing is left for Django to add

    def url_for_result(self, result: Model) -> str:
        return f"{super().url_for_result(result)}{self._carried}"


@dataclass(frozen=True)
class Tab:
    """A state that rows can be in, how many are, and the parameters that show them."""

    label: str | Promise
    count: int | None
    params: tuple[tuple[str, str], ...]
    query: str = ""
    is_current: bool = False


class ListPage(BaseAdmin[ModelT]):
    """The list of a model. ``state_tabs`` and ``empty_hint`` are for its admin to fill in."""

    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = LimitedPaginator
    change_list_template = "admin/tabbed_change_list.html"
    empty_hint: ClassVar[str | Promise] = ""
    # Lookups that no index helps with: with one of them only the newest rows are looked at, unless told otherwise.
    slow_lookups: ClassVar[tuple[str, ...]] = ()

    def state_tabs(self, request: HttpRequest) -> Sequence[Tab]:
        return ()

    @classmethod
    def looks_slowly(cls, request: HttpRequest) -> bool:
        return any(request.GET.get(name) for name in cls.slow_lookups)

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        found = list(super().get_list_filter(request))
        return [*found, NewestRows] if self.slow_lookups else found

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Whoever sees a list may take it along."""
        actions = super().get_actions(request)
        if not self.has_view_permission(request) or IS_POPUP_VAR in request.GET:
            return actions
        return {**actions, "export_csv": (export_csv, "export_csv", _("Export as CSV"))}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LinkedRows

    def action_checkbox(self, obj: Model) -> SafeString:
        """The same as Django's, which renders two templates for it: a third of what a row costs."""
        return format_html(
            '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
            ACTION_CHECKBOX_NAME,
            str(obj.pk),
            format_html(in_djangos_words("Select this object for an action - {}"), str(obj)),
        )

    def prepare_rows(self, rows: list[ModelT]) -> list[ModelT]:
        """A place to add what columns need and the database does not have, for many rows at once."""
        return rows

    def page_context(self, request: HttpRequest, row: ModelT) -> dict[str, Any]:
        """What the page of one row shows beside its fields."""
        return {}

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        context = self.page_context(request, row) if row is not None else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        tabs = linked(self.state_tabs(request), request)
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            "tabs": tabs,
            "empty_hint": self.empty_hint,
            "counted_rows": COUNTED_ROWS,
            **(extra_context or {}),
        }
        response = super().changelist_view(request, context)
        shown = getattr(response, "context_data", None) or {}
        if "cl" in shown:
            cl = shown["cl"]
            cl.result_list = self.prepare_rows(list(cl.result_list))
            in_tabs = {name for tab in tabs for name, _value in tab.params}
            # What the tabs choose is not offered a second time.
            cl.filter_specs = [s for s in cl.filter_specs if in_tabs.isdisjoint(s.expected_parameters())]
            cl.has_filters = bool(cl.filter_specs)
            named = {name for spec in cl.filter_specs for name in spec.expected_parameters()}
            shown["is_narrowed"] = not named.isdisjoint(cl.params)
        return response


def choice_tabs(lookup: str, choices: Iterable[tuple[Any, Any]], counts: Mapping[Any, int]) -> list[Tab]:
    """A tab for each choice of a field."""
    return [Tab(label, counts.get(value, 0), ((lookup, str(value)),)) for value, label in choices]


def linked(tabs: Iterable[Tab], request: HttpRequest) -> list[Tab]:
    """The tabs with their addresses, "all" first. Other filters and the search stay."""
    found = list(tabs)
    if not found:
        return []
    names = {name for tab in found for name, _value in tab.params}
    rest = request.GET.copy()
    for name in (*names, PAGE_VAR, ERROR_FLAG, NewestRows.parameter_name):
        rest.pop(name, None)
    given = {name: request.GET[name] for name in names if name in request.GET}
    everything = Tab(_("all"), None, (), rest.urlencode(), not given)
    result = [everything]
    for tab in found:
        query = rest.copy()
        query.update(dict(tab.params))
        result.append(Tab(tab.label, tab.count, tab.params, query.urlencode(), given == dict(tab.params)))
    return result


class DateRangeFilter(admin.FieldListFilter):
    """From a day until a day, both included, in local time: ``?created_at_from=2026-05-01&created_at_until=…``.

    Works on times and on texts that begin with a date.
    """

    template = "admin/includes/date_range.html"

    def __init__(self, field: Any, request: Any, params: Any, model: Any, model_admin: Any, field_path: str):
        self.names = (f"{field_path}_from", f"{field_path}_until")
        super().__init__(field, request, params, model, model_admin, field_path)
        self.first, self.last = (self._day(name) for name in self.names)
        self.others: list[tuple[str, str]] = []

    def expected_parameters(self) -> list[str | None]:
        return list(self.names)

    def _day(self, name: str) -> dt.date | None:
        given = self.used_parameters.get(name) or [""]
        text = str(given[-1] if isinstance(given, list) else given)
        try:
            return dt.date.fromisoformat(text) if text else None
        except ValueError as error:
            raise IncorrectLookupParameters(error) from None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        conditions: dict[str, Any] = {}
        if self.first is not None:
            conditions[f"{self.field_path}__gte"] = self._bound(self.first)
        if self.last is not None and self.last < dt.date.max:
            conditions[f"{self.field_path}__lt"] = self._bound(self.last + dt.timedelta(days=1))
        return self.narrow(queryset, conditions) if conditions else queryset

    def narrow(self, queryset: QuerySet[Any], conditions: dict[str, Any]) -> QuerySet[Any]:
        return queryset.filter(**conditions)

    def _bound(self, day: dt.date) -> dt.datetime | str:
        if isinstance(self.field, DateTimeField):
            return dt.datetime.combine(day, dt.time.min, timezone.get_current_timezone())
        return day.isoformat()

    def choices(self, changelist: Any) -> Iterator[Any]:
        self.others = [
            (name, value)
            for name, value in changelist.params.items()
            if name not in (*self.names, PAGE_VAR, ERROR_FLAG)
        ]
        today = timezone.localdate()
        first, last = self.names
        spans = (
            (None, gettext_lazy("any")),
            (today, gettext_lazy("today")),
            (today - dt.timedelta(days=6), gettext_lazy("7 days")),
            (today - dt.timedelta(days=29), gettext_lazy("30 days")),
        )
        for since, label in spans:
            new = {first: since.isoformat()} if since else {}
            yield {
                "selected": self.first == since and self.last is None,
                "query_string": changelist.get_query_string(new, [first, last]),
                "display": label,
            }


class NewestRows(admin.SimpleListFilter):
    """How far a search looks back where no index helps: a bounded stretch of rows at a time, newest first."""

    title = gettext_lazy("how far back")
    parameter_name = "older"
    EVERYTHING = "all"

    def __init__(self, request: Any, params: Any, model: Any, model_admin: Any):
        self.is_needed = bool(model_admin.looks_slowly(request))
        super().__init__(request, params, model, model_admin)
        self.newest = 0
        if self.is_needed:
            self.newest = model.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        given = str(self.value() or "")
        self.step = int(given) if given.isdecimal() and len(given) < 7 else 0
        self.is_everything = given == self.EVERYTHING

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("0", "")]  # the choices below are what is shown

    def has_output(self) -> bool:
        return self.is_needed

    @property
    def upper(self) -> int:
        return self.newest - self.step * WINDOW_ROWS

    @property
    def has_older(self) -> bool:
        return self.upper - WINDOW_ROWS > 0

    @property
    def note(self) -> str:
        if self.is_everything or (self.step == 0 and not self.has_older):
            return ""
        return _(
            "Looked through %(count)s rows, up to number %(upper)s. “How far back” shows older ones."
        ) % {
            "count": f"{WINDOW_ROWS:,}",
            "upper": f"{max(self.upper, 0):,}",
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.is_everything or (self.step == 0 and not self.has_older):
            return queryset
        return queryset.filter(pk__gt=self.upper - WINDOW_ROWS, pk__lte=self.upper)

    def choices(self, changelist: Any) -> Iterator[Any]:
        size = f"{WINDOW_ROWS:,}"
        rows: list[tuple[str, str]] = [("", _("the newest %(count)s") % {"count": size})]
        if self.step:
            rows.append((str(self.step), _("up to number %(upper)s") % {"upper": f"{max(self.upper, 0):,}"}))
        if self.has_older and not self.is_everything:
            rows.append((str(self.step + 1), _("the %(count)s before") % {"count": size}))
        rows.append((self.EVERYTHING, _("everything (slow)")))
        current = self.EVERYTHING if self.is_everything else (str(self.step) if self.step else "")
        for value, label in rows:
            new = {self.parameter_name: value} if value else {}
            yield {
                "selected": value == current,
                "query_string": changelist.get_query_string(new, [self.parameter_name]),
                "display": label,
            }
