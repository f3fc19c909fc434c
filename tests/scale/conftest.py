from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.scale.site import Site
from tests.support.databases import SERVER, is_postgres
from tests.support.postgres_server import NoPostgres, start_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[None]:
    """Databases of worlds are PostgreSQL's here, whatever the rest of the run works with."""
    if is_postgres():
        yield
        return
    try:
        server = start_postgres()
    except NoPostgres as lack:
        pytest.skip(f"PostgreSQL: {lack}")
    os.environ[SERVER] = server.url
    try:
        yield
    finally:
        del os.environ[SERVER]
        server.stop()


@pytest.fixture
def site(postgres: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two web servers and no cluster yet, on one database, one Redis and one GitHub."""
    with Site.opened(tmp_path_factory.mktemp("site")) as opened:
        yield opened
