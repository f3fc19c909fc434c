"""Loaded before Django's settings: a folder, a Redis and settings of its own for every test process.

Nothing of the developer's machine leaks in: no ``.env``, no credentials, no running Redis. With
``BROKER_TEST_DATABASE=postgres`` the whole run has one PostgreSQL, and each of its processes a database there.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile

from broker_project.lib.redis.embedded_server import free_port
from tests.support.databases import SERVER
from tests.support.postgres_server import NoPostgres, start_postgres
from tests.support.redis_server import start_redis

_wants_postgres = os.environ.get("BROKER_TEST_DATABASE", "sqlite") == "postgres"
for _name in list(os.environ):
    if _name.startswith(
        ("BROKER_", "DJANGO_", "GITHUB_", "GEMINI_", "MASTODON_", "API_FOOTBALL_", "FEED_", "FIXTURE_")
    ):
        del os.environ[_name]
for _name in ("DATABASE_URL", "GCS_BUCKET", "STORAGE_EMULATOR_HOST", "PORT", "HOST"):
    os.environ.pop(_name, None)

# Bytecode is kept whatever the shell says: a run starts a hundred processes that would each compile the project.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts us in the background has SIGINT ignored, here and in everything that we start.
signal.signal(signal.SIGINT, signal.default_int_handler)

VAR = tempfile.mkdtemp(prefix="broker-test-")
atexit.register(shutil.rmtree, VAR, ignore_errors=True)
REDIS = start_redis()
if _wants_postgres:
    # Again for the workers of this run, whose environment is ours.
    os.environ["BROKER_TEST_DATABASE"] = "postgres"
    if SERVER not in os.environ:
        try:
            _server = start_postgres()
        except NoPostgres as lack:
            print(f"skipped here, by name: the database tests on PostgreSQL: {lack}", file=sys.stderr)
            sys.exit(1 if os.environ.get("CI") == "true" else 0)
        atexit.register(_server.stop)
        os.environ[SERVER] = _server.url
    os.environ["DATABASE_URL"] = f"{os.environ[SERVER]}/postgres"
os.environ.update(
    BROKER_ENV_FILE="",
    BROKER_VAR=VAR,
    DJANGO_SETTINGS_MODULE="broker_project.settings",
    REDIS_URL=REDIS.url,
    # Nothing answers here until a test asks for the fixture `sandbox`.
    BROKER_SANDBOX_URL=f"http://127.0.0.1:{free_port()}",
)
