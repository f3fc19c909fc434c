from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.scale.site import Site
from tests.support.databases import SERVER, is_postgres
from tests.support.postgres_server import NoPostgres, start_postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if is_postgres():
        yield os.environ[SERVER]
        return
    try:
        server = start_postgres()
    except NoPostgres as lack:
        pytest.skip(f"PostgreSQL: {lack}")
    yield server.url
    server.stop()


@pytest.fixture
def postgres(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases of worlds are PostgreSQL's in this test; in others of the same process what the run works with."""
    monkeypatch.setenv(SERVER, postgres_url)


@pytest.fixture
def site(postgres: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two web servers and no cluster yet, on one database, one Redis and one GitHub."""
    with Site.opened(tmp_path_factory.mktemp("site")) as opened:
        yield opened
