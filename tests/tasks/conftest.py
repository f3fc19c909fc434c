from __future__ import annotations

import pytest
import redis

from sandbox.launcher import SandboxHandle
from tasks.agents_api.agent_cache import directory
from tests.tasks.world import World, make_world


@pytest.fixture
def world(transactional_db: None, sandbox: SandboxHandle, store: redis.Redis) -> World:
    directory.forget()  # the rows of the last test are gone
    return make_world(sandbox, store)
