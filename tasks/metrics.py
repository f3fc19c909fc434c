"""This app's figures at ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from broker_project.lib.dynamic_config import read_rate_limit
from tasks import selectors


def metric_families() -> Iterable[Metric]:
    assignments = GaugeMetricFamily("broker_assignments", "Assignments by state.", labels=["state"])
    for state, count in selectors.assignment_counts().items():
        assignments.add_metric([state], count)
    yield assignments
    yield GaugeMetricFamily("broker_open_issues", "Open issues.", value=selectors.open_issue_count())
    limit = read_rate_limit()
    if limit is not None:
        yield GaugeMetricFamily(
            "broker_github_requests_remaining",
            "What is left of GitHub's hourly requests.",
            value=limit.remaining,
        )
