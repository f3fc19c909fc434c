"""One row of any model, so that a page of the admin has something to show: every required field gets something."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

from django.db import models
from django.utils import timezone

_numbers = itertools.count(1)
# What a field's type does not tell.
KNOWN: dict[str, dict[str, Any]] = {
    "broker.poller": {"name": "items"},
    "fixtures.report": {"object_name": "reports/2026-11-16/1.html"},
}


def make_row(model: type[models.Model]) -> models.Model:
    values = dict(KNOWN.get(model._meta.label_lower, {}))
    for field in model._meta.concrete_fields:
        if field.name in values or field.has_default() or field.null or (field.blank and not field.unique):
            continue
        if (
            isinstance(field, models.AutoField)
            or getattr(field, "auto_now", False)
            or getattr(field, "auto_now_add", False)
        ):
            continue
        values[field.name] = value_for(field)
    row, _made = model._default_manager.get_or_create(**values)
    return row


def value_for(field: models.Field[Any, Any]) -> Any:
    number = next(_numbers)
    if isinstance(field, models.ForeignKey):
        return make_row(field.remote_field.model)
    if field.choices:
        return field.flatchoices[0][0]
    if isinstance(field, models.DateTimeField):
        return timezone.now()
    if isinstance(field, models.DateField):
        return dt.date(2026, 11, 16)
    if isinstance(field, models.GenericIPAddressField):
        return "203.0.113.1"
    if isinstance(field, models.IntegerField | models.FloatField):
        return number
    if isinstance(field, models.BooleanField):
        return False
    if isinstance(field, models.JSONField):
        return {}
    return f"x{number}"[: field.max_length or 20]
