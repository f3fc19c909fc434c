"""``/health``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from redis.exceptions import RedisError

from broker_project.lib.logs import get_logger
from broker_project.lib.redis.client import redis_client
from broker_project.ops.clock.poller_states import late_pollers
from broker_project.ops.metrics import registry

log = get_logger(__name__)


@require_safe
@never_cache
def health(request: HttpRequest) -> JsonResponse:
    """The process answers. Nothing else is checked: a restart would not repair a database."""
    return JsonResponse({"status": "ok"})


@require_safe
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """Whether work can be done, part by part. Late pollers only count where the supervisor runs them beside us."""
    parts = {"database": probe("database", check_database), "redis": probe("redis", check_redis)}
    ready = all(answer == "ok" for answer in parts.values())
    late = late_pollers() if parts["database"] == "ok" else set()
    parts["pollers"] = "ok" if not late else "late: " + ", ".join(sorted(late))
    if os.environ.get("BROKER_SUPERVISED") == "1" and late:
        ready = False
    body = {"status": "ok" if ready else "unavailable", **parts}
    return JsonResponse(body, status=200 if ready else 503)


def probe(name: str, check: Callable[[], None]) -> str:
    try:
        check()
    except (DatabaseError, RedisError, OSError) as error:
        log.warning("not ready", part=name, error=str(error))
        return "down"
    return "ok"


def check_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()


def check_redis() -> None:
    redis_client().ping()


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus metrics: open on this machine, by ``BROKER_METRICS_TOKEN`` from elsewhere."""
    if not may_read_metrics(request):
        message = "Send the metrics token as a bearer token."
        return JsonResponse({"error": "unauthorised", "message": message}, status=401)
    return HttpResponse(generate_latest(registry()), content_type=CONTENT_TYPE_LATEST)


def may_read_metrics(request: HttpRequest) -> bool:
    token = settings.BROKER.metrics_token
    given = request.headers.get("Authorization", "")
    if token and hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return True
    # A proxy on this machine also connects from loopback; what it forwards is not from here.
    forwarded = any(name in request.headers for name in ("X-Forwarded-For", "Forwarded", "X-Real-Ip"))
    return not forwarded and is_loopback(request.META.get("REMOTE_ADDR", ""))


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
