"""`/health`, `/healthz`, `/readyz` and `/metrics`: what each says, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client, RequestFactory, override_settings
from django.utils import timezone

from broker_project.models import Poller, PollerRun
from broker_project.ops.clock.pollers import poller_table
from broker_project.ops.health import is_loopback, may_read_metrics
from tests.environment import REDIS

pytestmark = pytest.mark.database


@pytest.fixture
def no_redis() -> Iterator[None]:
    """This test process's own Redis is killed, and comes back afterwards."""
    REDIS.process.kill()
    REDIS.process.wait()
    yield
    REDIS.restart()


@pytest.mark.parametrize("path", ["/health", "/healthz"])
def test_alive_says_nothing_about_the_stores(client: Client, path: str, no_redis: None) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert "no-store" in answer.headers["Cache-Control"]
    assert client.post(path).status_code == 405


@pytest.mark.django_db
def test_ready_names_each_part(client: Client) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "database": "ok", "redis": "ok", "pollers": "ok"}


@pytest.mark.django_db
def test_not_ready_while_redis_is_down(client: Client, no_redis: None) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable", "database": "ok", "redis": "down", "pollers": "ok"}


@pytest.mark.django_db
def test_late_pollers_count_only_under_the_supervisor(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, spec = next(iter(poller_table().items()))
    long_ago = timezone.now() - timedelta(seconds=4 * spec.every_seconds)
    PollerRun.objects.create(name=name, by="test", started_at=long_ago)
    alone = client.get("/readyz")
    assert (alone.status_code, alone.json()["pollers"]) == (200, f"late: {name}")
    monkeypatch.setenv("BROKER_SUPERVISED", "1")
    assert client.get("/readyz").status_code == 503
    Poller.objects.create(name=name, paused_at=timezone.now())
    assert client.get("/readyz").status_code == 200


TOKEN = "metrics-token"


@pytest.mark.parametrize(
    ("address", "headers", "token", "is_let_in"),
    [
        ("127.0.0.1", {}, "", True),
        ("::1", {}, "", True),
        ("127.0.0.1", {}, TOKEN, True),
        ("192.0.2.7", {}, "", False),
        ("192.0.2.7", {}, TOKEN, False),
        ("", {}, "", False),
        ("192.0.2.7", {"Authorization": f"Bearer {TOKEN}"}, TOKEN, True),
        ("192.0.2.7", {"Authorization": "Bearer wrong"}, TOKEN, False),
        ("192.0.2.7", {"Authorization": "Bearer "}, "", False),
        ("192.0.2.7", {"Authorization": "Bearer ü"}, TOKEN, False),
        # What a proxy on this machine hands on does not come from this machine.
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}, "", False),
        ("127.0.0.1", {"Forwarded": "for=192.0.2.7"}, "", False),
        ("127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, "", False),
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7", "Authorization": f"Bearer {TOKEN}"}, TOKEN, True),
    ],
)
def test_who_may_read_metrics(address: str, headers: dict[str, str], token: str, is_let_in: bool) -> None:
    request = RequestFactory().get("/metrics", headers=headers, REMOTE_ADDR=address)
    with override_settings(BROKER=replace(settings.BROKER, metrics_token=token)):
        assert may_read_metrics(request) is is_let_in


def test_others_are_told_how(client: Client) -> None:
    answer = client.get("/metrics", REMOTE_ADDR="192.0.2.7")
    assert answer.status_code == 401
    assert answer.json()["error"] == "unauthorised"


@pytest.mark.django_db
def test_metrics_are_in_prometheus_form(client: Client) -> None:
    started_at = timezone.now()
    PollerRun.objects.create(name="issues", by="test", started_at=started_at)
    answer = client.get("/metrics", REMOTE_ADDR="127.0.0.1")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    line = 'broker_poller_last_start_timestamp_seconds{poller="issues"}'
    assert line in answer.content.decode()


def test_loopback() -> None:
    assert is_loopback("127.8.9.1")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("testclient")
