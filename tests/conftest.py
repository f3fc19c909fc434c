"""Fixtures that every folder may use. What a machine lacks is skipped by name, and in CI that is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import redis
from django.conf import settings
from django.test import TransactionTestCase

from broker_project.lib import kept
from broker_project.lib.rate_limits import limits
from broker_project.lib.redis.client import redis_client
from sandbox.launcher import SandboxHandle, start_sandbox
from tests.support.databases import is_postgres
from tests.support.template_database import disconnect, use_copy_of_template

# ``ci`` looks at the same few examples every time; ``long`` (``make fuzz``) at thousands of new ones. No deadline: the
# machine may be busy, and what must be quick is measured elsewhere.
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=60, deadline=None, database=None)
hypothesis.settings.register_profile("long", max_examples=3000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _cheap_passwords() -> None:
    """The real hash is slow on purpose; here a hundred log-ins would wait for it."""
    assert settings.PASSWORD_HASHERS[0] == "django.contrib.auth.hashers.PBKDF2PasswordHasher"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", *settings.PASSWORD_HASHERS]


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: Any, django_db_modify_db_settings: None
) -> Iterator[None]:
    """The database of this process is a copy of a migrated one, and so it is again after every test that commits."""
    with django_db_blocker.unblock():
        database = use_copy_of_template()
    with pytest.MonkeyPatch.context() as patch:
        # Django would empty every table and make content types, permissions and groups anew.
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda self: database.restore())
        yield
    with django_db_blocker.unblock():
        disconnect()


@pytest.fixture(autouse=True)
def _as_after_a_start() -> None:
    """What this process kept and counted in the last test is forgotten."""
    kept.forget_all()
    limits.cache_clear()


@pytest.fixture
def store() -> Iterator[redis.Redis]:
    """An empty Redis, and its text client."""
    client = redis_client()
    client.flushall()
    kept.forget_all()
    yield client
    client.flushall()
    kept.forget_all()


# Fixtures whose tests talk to processes that are started for them.
PROCESS_FIXTURES = frozenset({"_broker_world", "_fault_world", "browser", "no_redis", "site"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts processes; on PostgreSQL run only what is marked `database`; begin with what takes long."""
    for item in items:
        if not PROCESS_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("process")
    if is_postgres():
        others = [item for item in items if not item.get_closest_marker("database")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.get_closest_marker("database")]
    # Else one worker may begin a minute's test when the other has nothing left to do.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("skipped here, by name")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"{report.nodeid}: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if (
        os.environ.get("CI") == "true"
        and call.excinfo is not None
        and call.excinfo.errisinstance(pytest.skip.Exception)
    ):
        reason = str(call.excinfo.value)
        call.excinfo = pytest.ExceptionInfo.from_exc_info(
            (AssertionError, AssertionError(f"a skip is a failure in CI: {reason}"), call.excinfo.tb)
        )


@pytest.fixture(scope="session")
def sandbox_server() -> Iterator[SandboxHandle]:
    """The stand-ins, in a process of their own at the address that the settings name."""
    port = int(settings.BROKER.sandbox_url.rpartition(":")[2])
    with start_sandbox(port=port) as handle:
        yield handle


@pytest.fixture
def sandbox(sandbox_server: SandboxHandle) -> SandboxHandle:
    """Freshly seeded stand-ins without faults."""
    sandbox_server.reset()
    return sandbox_server
