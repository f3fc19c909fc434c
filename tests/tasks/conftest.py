from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from sandbox.launcher import SandboxHandle
from tests.tasks.world import World, new_world


@pytest.fixture
def world(transactional_db: None, sandbox: SandboxHandle, store: redis.Redis) -> Iterator[World]:
    with new_world(sandbox, store) as found:
        yield found
