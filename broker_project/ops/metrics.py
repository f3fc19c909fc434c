"""Prometheus metrics, read from rows at each request, so that every process answers the same."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from django.db.models import Max
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from broker_project.models import PollerRun

# Each offers ``metric_families() -> Iterable[Metric]``.
SOURCES = ("broker_project.ops.metrics", "tasks.metrics", "feeds.metrics", "fixtures.metrics")


class RowsCollector:
    def collect(self) -> Iterable[Metric]:
        for source in SOURCES:
            yield from import_module(source).metric_families()


def registry() -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    found.register(RowsCollector())
    return found


def metric_families() -> Iterable[Metric]:
    last = GaugeMetricFamily(
        "broker_poller_last_start_timestamp_seconds", "When each poller last began.", labels=["poller"]
    )
    for name, started_at in PollerRun.objects.values_list("name").annotate(Max("started_at")):
        last.add_metric([name], started_at.timestamp())
    yield last
