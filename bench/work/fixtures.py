"""One scheduled run over so many matches, with everything in its window."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.core.cache import caches

from broker_project.pollers import PollOptions
from fixtures.models import FixtureSettings, Report
from fixtures.services import run_fixtures


def run_matches(count: int) -> dict[str, Any]:
    """A discovery and at most ``count`` guides; what the run counted."""
    caches["default"].clear()
    FixtureSettings.objects.update_or_create(pk=FixtureSettings.ONLY, defaults={"matches_per_run": count})
    started = time.perf_counter()
    counts = run_fixtures(PollOptions(by="bench", report=lambda text: None), discover=True)
    return {
        "seconds": time.perf_counter() - started,
        "counts": dict(counts),
        "reports": Report.objects.count(),
        "bucket": settings.BROKER.storage.bucket,
    }


COMMANDS = {"run_matches": run_matches}
