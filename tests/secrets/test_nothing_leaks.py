"""Known secrets in every setting, far sides that repeat them in every failure, and a search of all that was written.

Allowed to hold a secret, and left out of the search for it:

- the process's own environment (``/proc/PID/environ``), which the system shows to its owner alone;
- ``feeds_feed.url``, the address that a feed is fetched from, token and all; no page, log or error shows the token;
- what ``create_agent`` prints, once, for the one who asked;
- ``django_session`` and the session keys in Redis, which are the log-ins themselves.

Passwords and agents' tokens are in the database as hashes only.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import httpx
import psycopg
import pytest
import redis

from sandbox.launcher import start_sandbox
from tests.secrets.echoing_proxy import MODES, PASS, EchoingProxy, echoing_proxy
from tests.secrets.planted import Planted, leaks, plant, plant_private_key
from tests.secrets.walk import log_in, walk
from tests.support.broker_process import BrokerProcess, run_manage
from tests.support.postgres_server import NoPostgres, postgres_server
from tests.support.redis_server import start_redis
from tests.support.warm_python import start_python

pytestmark = pytest.mark.process

SIGNS = "+/=&%\"'<\\@:"  # what addresses, JSON, HTML and Python each write differently
HEADER_SIGNS = "+/=&%\"'<"
# Seven kinds of failure for every system: what is done between two tries is not what this is about.
QUICK_RETRIES = {
    "broker_project.lib.gemini": {"POLICY.base_seconds": 0.01},
    "feeds.clients.mastodon": {"READ_POLICY.base_seconds": 0.01},
    "fixtures.clients.football": {"POLICY.base_seconds": 0.01},
    "fixtures.clients.storage": {"POLICY.base_seconds": 0.01},
}


class World:
    """Broker with everything set, on stores of its own, behind the proxy. ``written`` is what it left where."""

    def __init__(self, folder: Path, database: str, log_format: str, stack: ExitStack) -> None:
        self.var = folder / "var"
        self.var.mkdir()
        self.secrets = {
            secret.name: secret
            for secret in (
                plant("DJANGO_SECRET_KEY", SIGNS),
                plant("DATABASE_URL", SIGNS),
                plant("REDIS_URL", SIGNS),
                plant("GITHUB_TOKEN", HEADER_SIGNS),
                plant("GITHUB_WEBHOOK_SECRET", SIGNS),
                plant("GEMINI_API_KEY", HEADER_SIGNS),
                plant("MASTODON_ACCESS_TOKEN", HEADER_SIGNS),
                plant("API_FOOTBALL_KEY", HEADER_SIGNS),
                plant("BROKER_METRICS_TOKEN", HEADER_SIGNS),
                plant("FEED_URLS", "+/"),
                plant("admin password", SIGNS),
                plant_private_key("GITHUB_APP_PRIVATE_KEY"),
                plant_private_key("GOOGLE_APPLICATION_CREDENTIALS"),
            )
        }
        redis_server = start_redis()
        stack.callback(redis_server.stop)
        self.redis_server = redis_server
        self.redis = redis.Redis.from_url(redis_server.url)
        self.redis.config_set("requirepass", self.value("REDIS_URL"))
        self.redis = redis.Redis(port=redis_server.port, password=self.value("REDIS_URL"))
        sandbox = stack.enter_context(start_sandbox())
        self.proxy: EchoingProxy = stack.enter_context(echoing_proxy(sandbox.base_url))
        self.database = ""
        if database == "postgres":
            try:
                plain = stack.enter_context(postgres_server())
            except NoPostgres as lack:
                pytest.skip(f"PostgreSQL: {lack}")
            self.database = plain.replace("broker@", f"broker:{quote(self.value('DATABASE_URL'), safe='')}@")
        self.env = self.settings(folder, log_format)
        self.written: dict[str, str | bytes] = {}

    def value(self, name: str) -> str:
        return self.secrets[name].value

    def settings(self, folder: Path, log_format: str) -> dict[str, str]:
        credentials = folder / "credentials.json"
        credentials.write_text(
            json.dumps(
                {
                    "type": "service_account",
                    "project_id": "p",
                    "private_key_id": "1",
                    "private_key": self.value("GOOGLE_APPLICATION_CREDENTIALS"),
                    "client_email": "broker@example.org",
                    "client_id": "1",
                    "token_uri": f"{self.proxy.url}/token",
                }
            )
        )
        names = ("DJANGO_SECRET_KEY", "GITHUB_TOKEN", "GITHUB_WEBHOOK_SECRET", "GEMINI_API_KEY")
        names += ("MASTODON_ACCESS_TOKEN", "API_FOOTBALL_KEY", "BROKER_METRICS_TOKEN")  # type: ignore[assignment]
        url = self.proxy.url
        return {
            **{name: self.value(name) for name in names},
            **({"DATABASE_URL": self.database} if self.database else {}),
            "REDIS_URL": f"redis://:{quote(self.value('REDIS_URL'), safe='')}@127.0.0.1:{self.redis_server.port}/0",
            "GITHUB_REPOSITORY": "broker-sandbox/demo",
            "GITHUB_API_URL": f"{url}/github",
            "GEMINI_API_URL": f"{url}/gemini",
            "MASTODON_API_URL": f"{url}/mastodon",
            "API_FOOTBALL_URL": f"{url}/football",
            "FEED_URLS": f"{url}/feed/news.rdf?api_key={quote(self.value('FEED_URLS'), safe='')}",
            "BROKER_ALLOWED_PRIVATE_HOSTS": url.removeprefix("http://"),
            "GCS_BUCKET": "broker-planted",
            "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
            "BROKER_AGENT_AUTH": "token",
            "BROKER_LOG_LEVEL": "DEBUG",
            "BROKER_LOG_FORMAT": log_format,
            "BROKER_PRIORITY_GATE": "assignable",
            "FEED_MAX_RETRIES": "1000",
            "DJANGO_SUPERUSER_PASSWORD": self.value("admin password"),
        }

    # What was written

    def keep(self, where: str, text: str | bytes) -> None:
        before = self.written.get(where, type(text)())
        self.written[where] = before + text  # type: ignore[operator]

    def tables(self) -> Iterator[tuple[str, str, str]]:
        """Table, column and all of its values."""
        if self.database:
            with psycopg.connect(self.database) as connection:
                columns = connection.execute(
                    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
                ).fetchall()
                for table, column in columns:
                    rows = connection.execute(f'SELECT "{column}"::text FROM "{table}"').fetchall()
                    yield table, column, "\n".join(str(row[0]) for row in rows)
            return
        with closing(sqlite3.connect(self.var / "broker.sqlite3", timeout=20)) as database:
            tables = [
                row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            for table in tables:
                for column in [row[1] for row in database.execute(f"PRAGMA table_info('{table}')")]:
                    rows = database.execute(f'SELECT "{column}" FROM "{table}"').fetchall()
                    yield table, column, "\n".join(str(row[0]) for row in rows)

    def keep_tables(self) -> None:
        for table, column, text in self.tables():
            if table != "django_session":
                self.keep(f"{table}.{column}", text)

    def keep_redis(self) -> None:
        for key in self.redis.scan_iter(count=1000):
            self.keep("Redis key names", key + b"\n")
            kind: Any = self.redis.type(key)
            value: Any = {
                b"string": lambda name: self.redis.get(name),
                b"hash": lambda name: self.redis.hgetall(name),
                b"set": lambda name: self.redis.smembers(name),
                b"zset": lambda name: self.redis.zrange(name, 0, -1),
                b"list": lambda name: self.redis.lrange(name, 0, -1),
                b"stream": lambda name: self.redis.xrange(name),
            }[kind](key)
            self.keep(f"Redis {key!r}", value if isinstance(value, bytes) else repr(value))

    def keep_files(self) -> None:
        for path in self.var.rglob("*"):
            if path.is_file():
                self.keep(f"file {path.relative_to(self.var)}", path.read_bytes())

    def keep_processes(self, broker: BrokerProcess) -> None:
        lines = [" ".join(process.cmdline()) for process in broker.family()]
        assert len(lines) >= 7, lines
        self.keep("process list", "\n".join(lines))
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        pids = {str(process.pid) for process in broker.family()}
        self.keep("process list", "\n".join(line for line in listed.splitlines() if line.split()[0] in pids))


class Provoker:
    def __init__(self, world: World, broker: BrokerProcess, log: IO[bytes], **settings: str) -> None:
        self.world = world
        self.process = start_python(
            "-m",
            "tests.secrets.provoke",
            env={**broker.env, "REDIS_URL": world.env["REDIS_URL"], **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            constants=QUICK_RETRIES,
        )

    def round(self, *pollers: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(pollers) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.strip() == "round done":
                return
            self.world.keep("what poll prints", line)
        raise AssertionError(f"the process ended in the round {pollers}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database", "log_format"),
    [
        ("sqlite", "text"),
        pytest.param("postgres", "json", marks=[pytest.mark.postgres, pytest.mark.xdist_group("postgres")]),
    ],
)
def test_no_secret_is_written_anywhere(tmp_path: Path, database: str, log_format: str) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, database, log_format, stack)
        broker = BrokerProcess(world.var, **world.env)
        stack.callback(broker.close)
        broker.wait_until_greeted()
        made = run_manage(
            "createsuperuser", "--noinput", "--username", "boss", "--email", "b@example.org", env=broker.env
        )
        assert made.returncode == 0, made.stderr
        world.keep("createsuperuser", made.stdout + made.stderr)
        made = run_manage("create_agent", "agent-1", env=broker.env)
        world.secrets["agent token"] = Planted("agent token", made.stdout.strip().splitlines()[-1])
        world.keep("create_agent", made.stderr)
        planted = list(world.secrets.values())

        provoke_pollers(world, broker, tmp_path)
        session = use_the_web(world, broker)
        world.keep_tables()
        world.keep_redis()
        world.keep_processes(broker)
        lose_redis(world, broker)
        broker.close()
        world.keep_files()
        session_pages = {
            where: text
            for where, text in world.written.items()
            if where.startswith(("page", "file broker.log"))
        }

    # The search can find something: the proxy was sent the secrets, and every system has answered with them.
    for name in ("GITHUB_TOKEN", "GEMINI_API_KEY", "MASTODON_ACCESS_TOKEN", "API_FOOTBALL_KEY"):
        assert world.value(name) in world.proxy.seen, f"{name} was never sent"
    assert set(world.proxy.echoed) >= {"github", "gemini", "mastodon", "football", "feed"}, world.proxy.echoed
    assert len(world.written["file broker.log"]) > 10_000
    assert any(where.startswith("page /admin/feeds/item/") for where in world.written)
    assert leaks("itself", world.value("GITHUB_TOKEN")[:-3], planted)

    allowed = {("FEED_URLS", "feeds_feed.url"), ("FEED_URLS", "file broker.sqlite3")}
    allowed.add(("FEED_URLS", "file broker.sqlite3-wal"))
    found = [
        leak
        for where, text in world.written.items()
        for leak in leaks(where, text, [secret for secret in planted if (secret.name, where) not in allowed])
    ]
    for where, text in session_pages.items():
        found += leaks(where, text, [Planted("session", session)])
    assert found == [], "\n".join(found[:40])


def provoke_pollers(world: World, broker: BrokerProcess, folder: Path) -> None:
    proxy = world.proxy
    with (folder / "provoked.log").open("wb") as log:
        # A stand-in for the bucket, so that runs get as far as the football; the other process has Google's file.
        by_token = Provoker(world, broker, log, STORAGE_EMULATOR_HOST=f"{proxy.url}/gcs")
        by_token.round("issues", "feeds", "zombies", *["items"] * 8)
        for mode in MODES:
            proxy.fail(mode)
            by_token.round("issues", "feeds")
            proxy.fail(mode, "gemini")
            by_token.round("items")
            proxy.fail(mode, "mastodon")
            by_token.round("items", "items")
        for mode in ("401", "text"):
            proxy.fail(mode, "football")
            by_token.round("fixtures")
            proxy.fail(mode, "gcs")
            by_token.round("dispatch")
        proxy.fail(PASS)
        by_token.round("fixtures", "items", "cleanup")
        by_token.close()
        app = {
            "GITHUB_TOKEN": "",
            "GITHUB_APP_ID": "1",
            "GITHUB_APP_PRIVATE_KEY": world.value("GITHUB_APP_PRIVATE_KEY"),
        }
        by_app = Provoker(world, broker, log, **app)
        for mode in (PASS, "401", "redirect"):
            proxy.fail(mode)
            by_app.round("issues", "dispatch")
        by_app.close()
    proxy.fail(PASS)
    world.keep("provoked.log", (folder / "provoked.log").read_bytes())


def use_the_web(world: World, broker: BrokerProcess) -> str:
    """As an agent, as GitHub, as a stranger and as a superuser; the superuser's session."""
    token = world.value("agent token")
    by_token = {"Authorization": f"Bearer {token}"}

    def keep(name: str, answer: httpx.Response) -> httpx.Response:
        world.keep(f"answer {name}", answer.text + str(answer.headers))
        return answer

    with httpx.Client(base_url=broker.url(""), timeout=60, trust_env=False) as client:
        ask = {"agent_id": "agent-1", "timeout": 0}
        world.proxy.fail(PASS)
        task = keep("request-task", client.post("/api/v1/request-task", json=ask, headers=by_token))
        assert task.status_code == 200, task.text
        path = f"/api/v1/assignments/{task.json()['assignment_id']}"
        told = {"progress": f"I use {token} and {world.value('GITHUB_TOKEN')}"}
        assert (
            keep("heartbeat", client.post(f"{path}/heartbeat", json=told, headers=by_token)).status_code
            == 200
        )
        for mode in ("500", "401"):
            world.proxy.fail(mode)
            result = {
                "result": {"log": f"Authorization: Bearer {token}", "token": world.value("GEMINI_API_KEY")}
            }
            keep("complete", client.post(f"{path}/complete", json=result, headers=by_token))
            fix = {"pull_request_number": 1, "review_comments": [world.value("MASTODON_ACCESS_TOKEN")]}
            keep("fix", client.post("/api/v1/tasks/fix", json=fix, headers=by_token))
        for mode in MODES:
            world.proxy.fail(mode)
            keep("request-task", client.post("/api/v1/request-task", json=ask, headers=by_token))
        world.proxy.fail(PASS)
        keep("explain", client.get("/api/v1/explain?agent_id=agent-1", headers=by_token))
        for bad in ({"Authorization": f"Bearer {token}x"}, {"Authorization": f"Basic {token}"}, {}):
            keep("refused", client.post("/api/v1/request-task", json=ask, headers=bad))
        keep("bad body", client.post("/api/v1/request-task", content=b"{" + token.encode(), headers=by_token))
        keep("in the address", client.get(f"/api/v1/explain?token={token}&agent_id=agent-1"))
        heads = {
            "X-GitHub-Event": "issues",
            "X-GitHub-Delivery": "1",
            "X-Hub-Signature-256": "sha256=" + "0" * 64,
        }
        keep(
            "webhook",
            client.post(
                "/webhooks/github", json={"secret": world.value("GITHUB_WEBHOOK_SECRET")}, headers=heads
            ),
        )
        keep(
            "metrics",
            client.get(
                "/metrics", headers={"Authorization": f"Bearer {world.value('BROKER_METRICS_TOKEN')}"}
            ),
        )
        keep("nowhere", client.get(f"/nowhere?password={quote(world.value('admin password'))}"))

        assert log_in(client, "boss", world.value("admin password") + "x").status_code == 200
        assert log_in(client, "boss", world.value("admin password")).status_code == 302
        pages = walk(client)
        assert len(pages) > 60, sorted(pages)
        for address, text in pages.items():
            world.keep(f"page {address}", text)
        return client.cookies["sessionid"]


def lose_redis(world: World, broker: BrokerProcess) -> None:
    """Redis goes, and comes back asking for another password: errors about Redis itself, tracebacks included."""
    world.redis.config_set("requirepass", "another password")
    world.redis.close()
    redis.Redis(port=world.redis_server.port, password="another password").client_kill_filter(
        _type="normal", skipme=True
    )
    headers = {"Authorization": f"Bearer {world.value('agent token')}"}
    with httpx.Client(base_url=broker.url(""), timeout=60, trust_env=False, headers=headers) as client:
        for path in ("/readyz", "/status/", "/admin/login/", "/metrics"):
            world.keep(f"answer {path} without Redis", client.get(path).text)
        for _ in range(2):
            answer = client.post("/api/v1/request-task", json={"agent_id": "agent-1", "timeout": 0})
            world.keep("answer request-task without Redis", answer.text)
    started = run_manage("broker", env={**broker.env, "PORT": str(broker.port - 1)})
    assert started.returncode == 1
    world.keep("a start without Redis", started.stdout + started.stderr)
