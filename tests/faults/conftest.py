"""The world to break, the choice between the short and the long form, and the table of outcomes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.report import PROPERTY, Recorder, write_report
from tests.faults.world import FaultWorld, fault_world

IS_LONG = os.environ.get("FAULTS") == "long"
REPORT = Path(__file__).parents[2] / "var" / "faults"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``make faults`` runs everything; elsewhere what is marked ``faults_long`` is not part of the suite."""
    if IS_LONG:
        return
    long = [item for item in items if item.get_closest_marker("faults_long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("faults_long")]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if any(name == PROPERTY for name, _ in report.user_properties)
    ]
    if IS_LONG and reports:
        written = write_report(REPORT, reports)
        terminalreporter.section("faults")
        terminalreporter.write_line(f"The table of outcomes is in {written.relative_to(REPORT.parents[1])}.")


@pytest.fixture(scope="session")
def _fault_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultWorld]:
    with fault_world(tmp_path_factory.mktemp("faults")) as world:
        yield world


@pytest.fixture
def world(_fault_world: FaultWorld) -> Iterator[FaultWorld]:
    """Whole stores and no process; both again after the test."""
    yield _fault_world
    _fault_world.end_processes()
    _fault_world.mend()


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Recorder:
    """Counts what became of each run; it travels with the test's report."""
    made = Recorder()
    request.node.user_properties.append((PROPERTY, made.rows))
    return made
