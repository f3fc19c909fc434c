"""Under another namespace every key is called differently: what exists is run in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis

from tests.support.databases import database_url
from tests.support.redis_server import start_redis
from tests.support.template_database import make_migrated_database
from tests.support.warm_python import run_python

pytestmark = pytest.mark.process

CODE = """
import datetime as dt
import django
django.setup()
from django.conf import settings
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from broker_project.lib.config import dynamic as dynamic_config
from broker_project.lib.config.dynamic import clear_flag, set_flag
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.key_config import sample_keys
from broker_project.lib.redis.locks import held_lock, new_owner
from broker_project.lib.redis.client import keyspace, redis_client
from broker_project.ops.clock.pollers import run_poller
from broker_project.ops.backups.keys import backup_keys
from broker_project.lib.redis.client import raw_client
import pathlib, sys

settings.ALLOWED_HOSTS = ["testserver"]
call_command("sync_schedules", stdout=open("/dev/null", "w"))
cache.set("answer", {"a": b"\\xff"}, 60)
assert cache.get("answer") == {"a": b"\\xff"}
User.objects.create_superuser("boss", password="a-long-password")
client = Client()
client.force_login(User.objects.get(username="boss"))
assert client.get("/admin/redis/").status_code == 200
form = {"what": "maintenance", "to": "on", "confirmed": "yes"}
assert client.post("/admin/redis/change/", form).status_code == 302
clear_flag(k.FLAG_MAINTENANCE)
set_flag(k.FLAG_DEBUG, "why")
for setting in dynamic_config.SETTINGS.values():
    dynamic_config.store_setting(setting, str(setting.high))
dynamic_config.record_rate_limit(1, 1, timezone.now())
names = []
for poller in ("issues", "zombies", "metrics", "cleanup"):
    print(poller, run_poller(poller).outcome, file=sys.stderr)
    names.append(poller)
with held_lock(redis_client(), keyspace().key(k.LOCK_PROCESS, name="migration"), new_owner("m"), 30):
    backup_keys(raw_client(), pathlib.Path(sys.argv[1]))
    for spec, fields in sample_keys(keyspace()):
        key = keyspace().key(spec, **fields)
        assert key.startswith(sys.argv[2]), key
"""


@pytest.mark.parametrize(
    ("environ", "prefix"),
    [({"BROKER_NAMESPACE": "elsewhere"}, "elsewhere:"), ({"BROKER_REDIS_CONFIG": "file"}, "by-file:")],
)
def test_no_key_is_outside_the_namespace(tmp_path: Path, environ: dict[str, str], prefix: str) -> None:
    if "BROKER_REDIS_CONFIG" in environ:
        path = tmp_path / "redis.json"
        path.write_text('{"redis": {"namespace": "by-file"}}')
        environ = {"BROKER_REDIS_CONFIG": str(path)}
    make_migrated_database(tmp_path)
    server = start_redis()
    watcher = redis.Redis(port=server.port, decode_responses=True)
    watcher.set("poppo:temp:foreign", "not ours here")
    settings = {"REDIS_URL": server.url, "BROKER_VAR": str(tmp_path), "DATABASE_URL": database_url(tmp_path)}
    done = run_python("-c", CODE, str(tmp_path / "backup"), prefix, env={**os.environ, **environ, **settings})
    found = set(watcher.scan_iter())
    server.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    assert {key for key in found if not key.startswith(prefix)} == {"poppo:temp:foreign"}
    kinds = {key.removeprefix(prefix).split(":")[0] for key in found}
    assert {"cache", "session", "flags", "config"} <= kinds
