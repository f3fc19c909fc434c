"""This app's figures at ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric


def metric_families() -> Iterable[Metric]:
    return ()
