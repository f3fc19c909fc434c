"""A clock that the application and the sandbox share, and both kinds of storage."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings
from django.core.cache import caches

from broker_project.lib.config.outside import FootballConfig, GeminiConfig, Source, StorageConfig
from broker_project.lib.gemini import Gemini
from broker_project.lib.retry import RetryPolicy
from broker_project.ops.clock.pollers import PollOptions
from fixtures.clients.football import FootballClient
from fixtures.clients.storage import BucketStorage, FolderStorage, Storage
from fixtures.services.reporting import Outside
from sandbox.launcher import SandboxHandle

# 20:00 in Japan on a Wednesday: the sandbox has a match every hour.
START = dt.datetime(2026, 3, 11, 11, 0, tzinfo=dt.UTC)
QUICK = RetryPolicy(max_attempts=3, base_seconds=0.001, cap_seconds=0.01)
NO_GEMINI = GeminiConfig(Source.OFF, "", "", "")


class SharedClock:
    """Now, for both sides of the network."""

    def __init__(self, sandbox: SandboxHandle, now: dt.datetime = START) -> None:
        self.sandbox = sandbox
        self.set(now)

    def set(self, now: dt.datetime) -> None:
        self.now = now
        self.sandbox.set_clock((now - dt.datetime.now(dt.UTC)).total_seconds())

    def forward(self, **step: float) -> None:
        self.set(self.now + dt.timedelta(**step))

    def __call__(self) -> dt.datetime:
        return self.now


@pytest.fixture
def clock(sandbox: SandboxHandle) -> SharedClock:
    return SharedClock(sandbox)


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    caches["default"].clear()
    yield
    caches["default"].clear()


def football_config(base_url: str, *leagues: int, key: str = "sandbox-football") -> FootballConfig:
    chosen = leagues or settings.BROKER.football.leagues
    return FootballConfig(Source.SANDBOX, f"{base_url}/football", tuple(chosen), key)


@pytest.fixture
def football(sandbox: SandboxHandle, clock: SharedClock) -> FootballClient:
    return FootballClient(football_config(sandbox.base_url), policy=QUICK, clock=clock)


@pytest.fixture
def bucket(sandbox: SandboxHandle) -> BucketStorage:
    return BucketStorage(StorageConfig(Source.REAL, "guides", f"{sandbox.base_url}/gcs"), policy=QUICK)


@pytest.fixture
def folder(tmp_path: Path) -> FolderStorage:
    return FolderStorage(tmp_path / "gcs")


@pytest.fixture(params=["bucket", "folder"])
def storage(request: pytest.FixtureRequest) -> Storage:
    found: Storage = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def outside(football: FootballClient, bucket: BucketStorage, clock: SharedClock) -> Outside:
    """The real clients, with Gemini off: most tests are not about the preview."""
    return Outside(football=football, storage=bucket, gemini=Gemini(NO_GEMINI), clock=clock)


@pytest.fixture
def with_gemini(outside: Outside) -> Outside:
    return replace(outside, gemini=Gemini(settings.BROKER.gemini, policy=QUICK))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def options(said: list[str]) -> Callable[..., PollOptions]:
    def make(**given: object) -> PollOptions:
        return PollOptions(by="test", report=said.append, **given)  # type: ignore[arg-type]

    return make
