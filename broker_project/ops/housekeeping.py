"""What is too old to be of use, in the tables that all apps share the shape of."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.apps import apps
from django_q.models import Task

from broker_project.models import PollerRun, StatusEvent

EVENTS_KEPT = timedelta(days=180)
RUNS_KEPT = timedelta(days=14)


def remove_old_history(now: datetime) -> int:
    """Old events of every app, old runs of pollers and their failures. Returns how many rows went."""
    removed: int = PollerRun.objects.filter(started_at__lt=now - RUNS_KEPT).delete()[0]
    removed += Task.objects.filter(stopped__lt=now - RUNS_KEPT).delete()[0]
    for model in apps.get_models():
        if issubclass(model, StatusEvent):
            removed += model._default_manager.filter(at__lt=now - EVENTS_KEPT).delete()[0]
    return removed
