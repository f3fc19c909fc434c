"""This app's figures at ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from redis.exceptions import RedisError

from broker_project.lib.config.dynamic import read_rate_limit
from broker_project.lib.logs import get_logger
from tasks import selectors

log = get_logger(__name__)


def metric_families() -> Iterable[Metric]:
    assignments = GaugeMetricFamily("broker_assignments", "Assignments by state.", labels=["state"])
    for state, count in selectors.assignment_counts().items():
        assignments.add_metric([state], count)
    yield assignments
    yield GaugeMetricFamily("broker_open_issues", "Open issues.", value=selectors.open_issue_count())
    try:
        limit = read_rate_limit()
    except RedisError as error:  # the figures of the database are worth having all the same
        log.warning("Redis does not answer", error=str(error))
        return
    if limit is not None:
        yield GaugeMetricFamily(
            "broker_github_requests_remaining",
            "What is left of GitHub's hourly requests.",
            value=limit.remaining,
        )
