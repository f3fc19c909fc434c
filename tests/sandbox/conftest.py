"""One sandbox process per test worker; each test begins with the seeded state and no faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.launcher import SandboxHandle, start_sandbox


@pytest.fixture(scope="session")
def sandbox_process() -> Iterator[SandboxHandle]:
    with start_sandbox() as running:
        yield running


@pytest.fixture
def sandbox(sandbox_process: SandboxHandle) -> SandboxHandle:
    sandbox_process.reset()
    return sandbox_process
