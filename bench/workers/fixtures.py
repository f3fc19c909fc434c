"""One scheduled run over so many matches, with everything in its window."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.cache import caches

from bench.json_lines import Command
from broker_project.ops.clock.pollers import PollOptions
from fixtures.models import FixtureSettings, Report
from fixtures.services.reporting import Outside
from fixtures.services.runs import run_fixtures


def run_matches(count: int) -> dict[str, Any]:
    """A discovery and at most ``count`` guides, on empty tables and an empty bucket."""
    caches["default"].clear()
    for model in apps.get_app_config("fixtures").get_models():
        model._default_manager.all().delete()
    FixtureSettings.objects.create(pk=FixtureSettings.ONLY, matches_per_run=count)
    storage = replace(settings.BROKER.storage, bucket=f"guides-{count}")
    outside = Outside.configured(replace(settings.BROKER, storage=storage))
    started = time.perf_counter()
    counts = run_fixtures(PollOptions(by="bench", report=lambda text: None), discover=True, outside=outside)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "counts": dict(counts), "reports": Report.objects.count()}


COMMANDS: dict[str, Command] = {"run_matches": run_matches}
