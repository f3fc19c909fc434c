"""Every setting: what it is without being set, and the sentence for each bad value."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from broker_project.lib.config import loader as config_module
from broker_project.lib.config.access import LOOPBACK
from broker_project.lib.config.loader import Config, load, sandbox_url_file
from broker_project.lib.config.outside import Source
from broker_project.lib.environment import ConfigError
from tasks.agents_api.long_poll import WORKERS

SECRET = "s" * 40
# Settings that take any text: there is no bad value.
FREE_TEXT = {
    "GITHUB_WEBHOOK_SECRET",
    "GEMINI_SCREENING_MODEL",
    "GEMINI_SUMMARY_MODEL",
    "GCS_BUCKET",
    "DJANGO_ALLOWED_HOSTS",
    "HOST",  # judged when it is listened on
}

# setting, bad value, what else must be set for it to be looked at
BAD: list[tuple[str, str, dict[str, str]]] = [
    ("PORT", "eight", {}),
    ("PORT", "0", {}),
    ("PORT", "65536", {}),
    ("PORT", "8000.5", {}),
    ("WEB_WORKERS", "0", {}),
    ("WEB_WORKERS", "many", {}),
    ("DJANGO_SECRET_KEY", "short", {}),
    ("DJANGO_DEBUG", "perhaps", {}),
    ("DJANGO_CSRF_TRUSTED_ORIGINS", "broker.example.org", {}),
    ("DATABASE_URL", "mysql://somewhere/name", {}),
    ("DATABASE_URL", "nonsense", {}),
    ("DATABASE_URL", "postgres://host:port/name", {}),
    ("REDIS_URL", "http://127.0.0.1:6379", {}),
    ("REDIS_URL", "redis://host:port/0", {}),
    ("REDIS_URL", "redis+sentinel://:very-secret@s1:26379", {}),
    ("REDIS_URL", "rediss+sentinel://s1:26379/m?wrong=1", {}),
    ("BROKER_DATABASE_POOL_SIZE", "0", {"DATABASE_URL": "postgres://u@h/n"}),
    ("BROKER_NAMESPACE", "two words", {}),
    ("BROKER_TASK_KEY_PREFIX", "line\nbreak", {}),
    ("BROKER_REDIS_CONFIG", "no-such-file.json", {}),
    ("BROKER_SANDBOX", "perhaps", {}),
    ("BROKER_SANDBOX_URL", "ftp://127.0.0.1:8001", {}),
    ("BROKER_AGENT_AUTH", "closed", {}),
    ("BROKER_AGENTS_FILE", "no-such-file.yml", {}),
    ("BROKER_PRIORITY_GATE", "shut", {}),
    ("BROKER_AUTHOR_GATE", "friends", {}),
    ("BROKER_APPROVAL_GATE", "perhaps", {}),
    ("BROKER_POLL_SECONDS", "0", {}),
    ("BROKER_POLL_SECONDS", "5 minutes", {}),
    ("BROKER_LONG_POLL_SECONDS", "601", {}),
    ("BROKER_LONG_POLL_SECONDS", "-1", {}),
    ("BROKER_REVIEW_DELAY_MINUTES", "-1", {}),
    ("BROKER_REVIEW_TIMEOUT_MINUTES", "soon", {}),
    ("BROKER_MAX_ATTEMPTS", "0", {}),
    ("BROKER_LOG_FORMAT", "xml", {}),
    ("BROKER_LOG_LEVEL", "loud", {}),
    ("BROKER_CLUSTER_HANG_SECONDS", "1", {}),
    ("BROKER_CALL_SECONDS", "0", {}),
    ("BROKER_ALLOWED_PRIVATE_HOSTS", "127.0.0.1", {}),
    ("BROKER_ALLOWED_PRIVATE_HOSTS", "host:0", {}),
    ("BROKER_ALLOWED_PRIVATE_HOSTS", "host:http", {}),
    ("BROKER_VAR", "/dev/null/var", {}),
    ("BROKER_TOKEN_PEPPER", "short", {}),
    ("BROKER_TOKEN_PEPPER", "two words, but long enough for a pepper", {}),
    ("BROKER_TRUSTED_PROXIES", "proxy.example.org", {}),
    ("BROKER_TRUSTED_PROXIES", "10.0.0.1/8", {}),
    ("BROKER_RATE_EXEMPT", "everybody", {}),
    ("BROKER_RATE_EXEMPT", "none,127.0.0.1", {}),
    ("BROKER_RATE_AGENT_PER_MINUTE", "-1", {}),
    ("BROKER_RATE_ADDRESS_PER_MINUTE", "many", {}),
    ("BROKER_RATE_REFUSED_PER_MINUTE", "1.5", {}),
    ("BROKER_RATE_WEBHOOK_PER_MINUTE", "-1", {}),
    ("BROKER_RATE_FIX_PER_MINUTE", "none", {}),
    ("BROKER_RATE_EXPLAIN_PER_MINUTE", "100000000", {}),
    ("BROKER_RATE_LOGIN_PER_MINUTE", "-1", {}),
    ("BROKER_LOGIN_FAILURES", "0", {}),
    ("BROKER_LOGIN_LOCK_MINUTES", "0", {}),
    ("BROKER_ADMIN_2FA", "on", {}),
    ("GITHUB_REPOSITORY", "just-a-name", {}),
    ("GITHUB_REPOSITORY", "a/b/c", {}),
    ("GITHUB_REPOSITORY", "", {"GITHUB_TOKEN": "t"}),
    ("BROKER_METRICS_TOKEN", "two words", {}),
    ("GEMINI_API_KEY", "キー", {}),
    ("API_FOOTBALL_KEY", "two words", {}),
    ("GITHUB_TOKEN", "two\nlines", {"GITHUB_REPOSITORY": "a/b"}),
    ("GITHUB_API_URL", "api.github.com", {}),
    ("GITHUB_APP_ID", "12", {}),
    ("GITHUB_APP_ID", "name", {"GITHUB_APP_PRIVATE_KEY": "-----BEGIN PRIVATE KEY-----"}),
    ("GITHUB_APP_PRIVATE_KEY", "no-such-file.pem", {"GITHUB_APP_ID": "12"}),
    ("FEED_URLS", "https://good.example.org/rss,ftp://bad.example.org/rss", {}),
    ("FEED_MAX_RETRIES", "-1", {}),
    ("FEED_LEASE_SECONDS", "0", {}),
    ("GEMINI_API_URL", "generativelanguage", {}),
    ("MASTODON_VISIBILITY", "everyone", {}),
    ("MASTODON_API_URL", "mastodon.example.org", {}),
    ("MASTODON_API_URL", "", {"MASTODON_ACCESS_TOKEN": "t"}),
    ("MASTODON_ACCESS_TOKEN", "two\nlines", {"MASTODON_API_URL": "https://m.example.org"}),
    ("API_FOOTBALL_URL", "football", {}),
    ("FIXTURE_LEAGUES", "39,premier", {}),
    ("STORAGE_EMULATOR_HOST", "gcs:4443", {"GCS_BUCKET": "bucket"}),
    ("FIXTURE_BEFORE_MINUTES", "-1", {}),
    ("FIXTURE_AFTER_MINUTES", "an hour", {}),
    ("FIXTURE_MAX_ATTEMPTS", "0", {}),
    ("FIXTURE_CATCH_UP_MINUTES", "-5", {}),
    ("FIXTURE_STALE_MINUTES", "0", {}),
    ("FIXTURE_RETENTION_DAYS", "0", {}),
]


def read(var: Path, **environ: str) -> Config:
    return load({"BROKER_ENV_FILE": "", "BROKER_VAR": str(var), **environ})


@pytest.mark.parametrize(("name", "value", "others"), BAD, ids=[f"{n}={v[:20]!r}" for n, v, _ in BAD])
def test_a_bad_value_is_refused_with_a_sentence_that_names_the_setting(
    tmp_path: Path, name: str, value: str, others: dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, **{**others, name: value})
    sentence = str(refused.value)
    assert name in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_every_setting_is_in_the_table() -> None:
    """A setting that is read and neither in the table nor free text has no test for its bad values."""
    source = "".join(path.read_text() for path in Path(str(config_module.__file__)).parent.glob("*.py"))
    read_names = set(
        re.findall(r'(?:env\.\w+|outer\.get|rate|integer|boolean|choice)\(\s*"([A-Z][A-Z_0-9]+)"', source)
    ) - {"BROKER_ENV_FILE"}
    assert len(read_names) > 40
    assert read_names - FREE_TEXT == {name for name, _, _ in BAD}


def test_a_pool_has_a_connection_for_every_thread(tmp_path: Path) -> None:
    """A thread keeps its connection while it speaks to GitHub: with fewer, others would wait for one in vain."""
    pool = read(tmp_path, DATABASE_URL="postgres://u@h/n").database["OPTIONS"]["pool"]
    assert pool["max_size"] >= WORKERS + 4
    chosen = read(tmp_path, DATABASE_URL="postgres://u@h/n", BROKER_DATABASE_POOL_SIZE="40")
    assert chosen.database["OPTIONS"]["pool"]["max_size"] == 40


def test_a_sentinels_passwords_are_hidden(tmp_path: Path) -> None:
    url = "redis+sentinel://:one-secret-word@s1,s2/m/0?sentinel_password=another-secret"
    assert {"one-secret-word", "another-secret"} <= read(tmp_path, REDIS_URL=url).secret_values()


def test_without_any_setting_the_sandbox_serves_on_loopback(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.host, config.port, config.debug, config.sandbox) == ("127.0.0.1", 8000, False, True)
    assert config.sandbox_url == "http://127.0.0.1:8001"
    assert config.agent_auth == "open"
    assert config.priority_gate == "open"
    assert (config.poll_seconds, config.long_poll_seconds) == (300, 120)
    assert (config.review_delay_minutes, config.review_timeout_minutes, config.max_attempts) == (5, 10, 3)
    assert (config.feed_max_retries, config.feed_lease_seconds) == (3, 600)
    assert (config.fixture_before_minutes, config.fixture_after_minutes) == (60, 60)
    assert (config.fixture_max_attempts, config.fixture_catch_up_minutes) == (3, 1440)
    assert config.football.leagues == (39, 2, 140, 45, 143, 48, 32)
    assert config.mastodon.visibility == "unlisted"
    assert config.redis_names.namespace == "poppo"
    assert config.allowed_private_hosts == {("127.0.0.1", 8001)}
    assert config.database["NAME"] == str(tmp_path / "broker.sqlite3")
    assert config.database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert config.redis_url == ""
    systems = (config.github, config.gemini, config.mastodon, config.football)
    assert {system.source for system in systems} == {Source.SANDBOX}
    assert config.storage.source is Source.OFF
    assert not config.is_public


def test_the_secret_key_is_made_once_and_private(tmp_path: Path) -> None:
    first = read(tmp_path)
    assert len(first.secret_key) >= 50
    assert read(tmp_path).secret_key == first.secret_key
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert read(tmp_path, DJANGO_SECRET_KEY=SECRET).secret_key == SECRET
    (tmp_path / "secret_key").write_text("cut")
    with pytest.raises(ConfigError, match="DJANGO_SECRET_KEY"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"DJANGO_SECRET_KEY": SECRET, "BROKER_SANDBOX": "1"}, "BROKER_SANDBOX"),
        ({"DJANGO_SECRET_KEY": SECRET, "BROKER_SANDBOX": "0", "DJANGO_DEBUG": "1"}, "DJANGO_DEBUG"),
        ({"BROKER_SANDBOX": "0"}, "DJANGO_SECRET_KEY"),
    ],
)
def test_a_host_that_others_reach_is_refused_what_belongs_on_a_desk(
    tmp_path: Path, given: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        read(tmp_path, DJANGO_ALLOWED_HOSTS="broker.example.org", **given)


def test_production_settings_are_accepted(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        DJANGO_ALLOWED_HOSTS="broker.example.org",
        DJANGO_SECRET_KEY=SECRET,
        BROKER_SANDBOX="0",
        DATABASE_URL="postgres://user:p%40ss@db.example.org:5433/broker",
        REDIS_URL="rediss://:word@redis.example.org:6380/1",
        DJANGO_CSRF_TRUSTED_ORIGINS="https://broker.example.org",
        GITHUB_TOKEN="token",
        GITHUB_REPOSITORY="owner/name",
    )
    assert config.is_public
    assert config.agent_auth == "token"
    assert config.database["PASSWORD"] == "p@ss"
    assert config.github.source is Source.REAL
    assert config.gemini.source is Source.OFF


CREDENTIALS: list[tuple[str, dict[str, str]]] = [
    ("github", {"GITHUB_TOKEN": "t", "GITHUB_REPOSITORY": "a/b"}),
    ("gemini", {"GEMINI_API_KEY": "key"}),
    ("mastodon", {"MASTODON_ACCESS_TOKEN": "t", "MASTODON_API_URL": "https://m.example.org"}),
    ("football", {"API_FOOTBALL_KEY": "key"}),
    ("storage", {"GCS_BUCKET": "bucket"}),
]


@pytest.mark.parametrize(("system", "given"), CREDENTIALS, ids=[name for name, _ in CREDENTIALS])
def test_each_system_is_real_by_its_own_credentials(
    tmp_path: Path, system: str, given: dict[str, str]
) -> None:
    alone: Any = getattr(read(tmp_path, **given), system)
    beside: Any = getattr(read(tmp_path, BROKER_SANDBOX="1", **given), system)
    assert alone.source is beside.source is Source.REAL
    config = read(tmp_path, BROKER_SANDBOX="1", **given)
    for other, _ in CREDENTIALS:
        if other not in (system, "storage"):
            assert getattr(config, other).source is Source.SANDBOX
    assert not read(tmp_path, **given).sandbox


def test_the_environment_wins_over_the_file_and_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    file = tmp_path / "settings.env"
    file.write_text("PORT=9001\nBROKER_MAX_ATTEMPTS='7'\n# a comment\nexport BROKER_POLL_SECONDS=60\n")
    environ = {"BROKER_ENV_FILE": str(file), "BROKER_VAR": str(tmp_path), "PORT": "9002"}
    config = load({**environ, "BROKER_MAX_ATTEMPTS": " "})
    assert (config.port, config.max_attempts, config.poll_seconds) == (9002, 7, 60)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PORT 8000\n", None),
        (b"PORT='8000\n", "line 1: this is not NAME=value."),
        (b"\xff\xfe\x00", "is not UTF-8 text."),
    ],
)
def test_a_broken_env_file_is_named(tmp_path: Path, content: bytes, sentence: str | None) -> None:
    file = tmp_path / "settings.env"
    file.write_bytes(content)
    environ = {"BROKER_ENV_FILE": str(file), "BROKER_VAR": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"^settings\.env") as refused:
        load(environ)
    assert sentence is None or str(refused.value).endswith(sentence)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "must hold a list 'agents'"),
        ("agents: []", "must hold a list 'agents'"),
        ("agents: coder", "must hold a list 'agents'"),
        ("agents: [{persona: x}]", "entry 1 has no 'role'"),
        ("agents: [{role: 7}]", "entry 1 has no 'role'"),
        ("agents: [coder]", "entry 1 has no 'role'"),
        ("agents: [{role: a}, {role: a}]", "'a' is listed twice"),
        ("agents: [{role: needs-review}]", "has another meaning as a label"),
        ("agents: [{role: P2}]", "has another meaning as a label"),
        (f"agents: [{{role: {'x' * 51}}}]", "at most 50 characters"),
        ("agents: [{role: a, persona: [b]}]", "'persona' must be text"),
        ("agents: [", "is not valid YAML in line"),
        ("agents: [{role: !!python/object:os.system x}]", "is not valid YAML"),
    ],
)
def test_a_broken_agents_file_is_named(tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "agents.yml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"^BROKER_AGENTS_FILE \(agents\.yml\)") as refused:
        read(tmp_path, BROKER_AGENTS_FILE=str(file))
    assert expected in str(refused.value)


def test_description_is_accepted_for_persona(tmp_path: Path) -> None:
    file = tmp_path / "agents.yml"
    file.write_text("agents: [{role: 開発, description: ていねいに書く}]", encoding="utf-8")
    (role,) = read(tmp_path, BROKER_AGENTS_FILE=str(file)).agent_roles
    assert (role.role, role.persona) == ("開発", "ていねいに書く")


def test_the_key_names_of_a_file_and_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "redis.json"
    file.write_text(json.dumps({"redis": {"namespace": "fromfile"}}))
    assert read(tmp_path, BROKER_REDIS_CONFIG=str(file)).redis_names.namespace == "fromfile"
    both = read(tmp_path, BROKER_REDIS_CONFIG=str(file), BROKER_NAMESPACE="fromenv")
    assert both.redis_names.namespace == "fromenv"
    file.write_text("{")
    with pytest.raises(ConfigError, match="BROKER_REDIS_CONFIG"):
        read(tmp_path, BROKER_REDIS_CONFIG=str(file))


def test_the_address_that_the_supervisor_wrote_down_is_found(tmp_path: Path) -> None:
    path = sandbox_url_file(tmp_path)
    path.parent.mkdir()
    path.write_text("http://127.0.0.1:34567\n")
    assert read(tmp_path).sandbox_url == "http://127.0.0.1:34567"
    assert read(tmp_path, BROKER_SANDBOX_URL="http://127.0.0.1:1").sandbox_url == "http://127.0.0.1:1"
    path.write_text("http://elsewhere.example.org:80")
    assert read(tmp_path).sandbox_url == "http://127.0.0.1:8001"


def test_no_secret_shows_in_the_representation(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        DJANGO_SECRET_KEY=SECRET,
        REDIS_URL="redis://:redis-word-1@127.0.0.1:1/0",
        DATABASE_URL="postgres://u:database-word@127.0.0.1/d",
        GITHUB_TOKEN="github-word",
        GITHUB_REPOSITORY="a/b",
        GITHUB_WEBHOOK_SECRET="webhook-word",
        GEMINI_API_KEY="gemini-word",
        API_FOOTBALL_KEY="football-word",
        MASTODON_ACCESS_TOKEN="mastodon-word",
        MASTODON_API_URL="https://m.example.org",
        BROKER_METRICS_TOKEN="metrics-word",
    )
    words = {SECRET, "redis-word-1"} | {
        f"{name}-word"
        for name in ("database", "github", "webhook", "gemini", "football", "mastodon", "metrics")
    }
    assert not [word for word in words if word in repr(config)]
    assert words <= config.secret_values()


def test_this_machine_is_not_counted_unless_the_host_is_public(tmp_path: Path) -> None:
    """Behind the proxy of a public host every call may seem to come from this machine."""
    assert read(tmp_path).access.rate_exempt == LOOPBACK
    public = {
        "DJANGO_ALLOWED_HOSTS": "broker.example.org",
        "DJANGO_SECRET_KEY": SECRET,
        "BROKER_SANDBOX": "0",
    }
    assert read(tmp_path, **public).access.rate_exempt == ()
    assert read(tmp_path, BROKER_RATE_EXEMPT="none").access.rate_exempt == ()
    assert read(tmp_path, **public).access.trusted_proxies == LOOPBACK
    assert read(tmp_path, BROKER_TRUSTED_PROXIES="none").access.trusted_proxies == ()
