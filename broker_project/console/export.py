"""The rows of a list as a CSV file: the list's own columns, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import label_for_field, lookup_field
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import strip_tags
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from broker_project.lib.hidden_text import made_visible

MAX_ROWS = 20_000
CHUNK = 500
# Spreadsheets run a cell that begins like this; Japanese ones also take the full-width signs.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@admin.action(description=_("Export as CSV"))
def export_csv(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
    columns = [name for name in model_admin.get_list_display(request) if name != "action_checkbox"]
    text = io.StringIO()
    text.write("\ufeff")  # spreadsheets in Japan take it for Shift_JIS otherwise
    writer = csv.writer(text)
    labels = [label_for_field(name, model_admin.model, model_admin) for name in columns]
    writer.writerow([cell(str(label)) for label in labels])
    for row in rows_of(model_admin, queryset):
        writer.writerow([cell(value_of(name, row, model_admin)) for name in columns])
    name = f"{model_admin.opts.model_name}-{timezone.localtime():%Y%m%d-%H%M}.csv"
    return HttpResponse(
        text.getvalue(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"},
    )


def rows_of(model_admin: Any, queryset: QuerySet[Any]) -> Iterator[Any]:
    related = model_admin.list_select_related
    if related and related is not True:
        queryset = queryset.select_related(*related)
    rows = queryset[:MAX_ROWS].iterator(chunk_size=CHUNK)
    while chunk := list(islice(rows, CHUNK)):
        yield from model_admin.prepare_rows(chunk)


def value_of(name: str, row: Any, model_admin: Any) -> Any:
    field, _attribute, value = lookup_field(name, row, model_admin)
    if field is not None and getattr(field, "flatchoices", None):
        return dict(field.flatchoices).get(value, value)
    return value


def cell(value: Any) -> Any:
    """A value as a cell. Text that a spreadsheet would take for a formula begins with an apostrophe."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return timezone.localtime(value).isoformat(timespec="seconds")
    text = made_visible(html.unescape(strip_tags(value)) if isinstance(value, SafeString) else str(value))
    return f"'{text}" if text.startswith(FORMULA) else text
