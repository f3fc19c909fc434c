"""A Redis that is gone: the page and the command say so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker_project.lib.redis.embedded_server import free_port
from tests.support.broker_process import run_manage
from tests.support.databases import database_url
from tests.support.template_database import make_migrated_database
from tests.support.warm_python import run_python

pytestmark = pytest.mark.process

CODE = """
import django
django.setup()
from django.contrib.auth.models import User
from django.test import Client
client = Client(headers={"accept-language": "en"})
user = User.objects.create_superuser("boss")
from django.conf import settings
settings.ALLOWED_HOSTS = ["testserver"]
client.force_login(user)
for page in ("", "keys/", "check/", "key/?name=issue:1"):
    answer = client.get(f"/admin/redis/{page}")
    print(answer.status_code, b"Redis does not answer" in answer.content)
for page in OTHERS:
    print(page, client.get(page).status_code)
client.raise_request_exception = False
print("log-out", client.post("/admin/logout/").status_code)
"""
# Whoever is logged in goes on seeing where things stand: sessions are in the database.
OTHERS = (
    "/status/",
    "/status/tasks/",
    "/status/feeds/",
    "/status/fixtures/",
    "/admin/",
    "/admin/tasks/assignment/",
    "/admin/tasks/issue/",
    "/admin/feeds/item/",
    "/admin/fixtures/fixturestatus/",
)


@pytest.mark.database
def test_the_pages_say_that_redis_is_away(tmp_path: Path) -> None:
    make_migrated_database(tmp_path)
    environ = {
        **os.environ,
        "DATABASE_URL": database_url(tmp_path),
        "REDIS_URL": f"redis://:pass-word-9@127.0.0.1:{free_port()}/0",
        "BROKER_VAR": str(tmp_path),
    }
    done = run_python("-c", f"OTHERS = {OTHERS!r}\n{CODE}", env=environ)
    # Only log-out is refused: the session would be good again once Redis is back.
    shown = [*(f"{page} 200" for page in OTHERS), "log-out 500"]
    assert done.stdout.splitlines() == ["503 True"] * 4 + shown, done.stdout + done.stderr[-2000:]
    assert "pass-word-9" not in done.stderr


def test_the_command_says_that_redis_is_away(tmp_path: Path) -> None:
    environ = {**os.environ, "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0", "BROKER_VAR": str(tmp_path)}
    done = run_manage("keys", "usage", env=environ)
    assert done.returncode == 1
    assert done.stderr.startswith("CommandError: ")
    assert len(done.stderr.strip().splitlines()) == 1
