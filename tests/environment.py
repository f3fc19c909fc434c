"""Loaded before Django's settings: a folder, a Redis and settings of its own for every test process.

Nothing of the developer's machine leaks in: no ``.env``, no credentials, no running Redis.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from broker_project.lib.embedded_redis import free_port
from tests.support.redis_server import start_redis

for _name in list(os.environ):
    if _name.startswith(
        ("BROKER_", "DJANGO_", "GITHUB_", "GEMINI_", "MASTODON_", "API_FOOTBALL_", "FEED_", "FIXTURE_")
    ):
        del os.environ[_name]
for _name in ("DATABASE_URL", "GCS_BUCKET", "STORAGE_EMULATOR_HOST", "PORT", "HOST"):
    os.environ.pop(_name, None)

VAR = tempfile.mkdtemp(prefix="broker-test-")
atexit.register(shutil.rmtree, VAR, ignore_errors=True)
REDIS = start_redis()
os.environ.update(
    BROKER_ENV_FILE="",
    BROKER_VAR=VAR,
    DJANGO_SETTINGS_MODULE="broker_project.settings",
    REDIS_URL=REDIS.url,
    # Nothing answers here until a test asks for the fixture `sandbox`.
    BROKER_SANDBOX_URL=f"http://127.0.0.1:{free_port()}",
)
