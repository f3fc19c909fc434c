"""A plugin: a test that starts a process says so with its marker, since the quick lane has none of them.

Not in a ``conftest.py``: those do not hear of fixtures for the whole session.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Each PDF is read in a process of its own; a tenth of a second.
OF_THE_PRODUCT = "feeds.reading.pdf_reader"
_may_start = True


class ProcessStarted(AssertionError):
    """A test without the marker `process` started one."""


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and not _may_start and OF_THE_PRODUCT not in arguments[1]:  # type: ignore[operator]
        raise ProcessStarted(f"mark this test with `process`: it starts {arguments[:2]!r}")


sys.addaudithook(_refuse)  # for good: a hook cannot be taken away


@contextmanager
def _processes(may_start: bool) -> Iterator[None]:
    global _may_start
    before, _may_start = _may_start, may_start
    try:
        yield
    finally:
        _may_start = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with _processes(item.get_closest_marker("process") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """What is started once for all tests of a worker belongs to none of them."""
    if fixturedef.scope != "session":
        return (yield)
    with _processes(True):
        return (yield)
