"""Every setting of the application, read once, typed and checked (DESIGN: settings).

``load()`` returns a frozen :class:`Config` or raises :class:`ConfigError` with one sentence that names the
setting. Nothing else in the project reads the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from broker_project.lib.config.access import AccessConfig, read_access
from broker_project.lib.config.agents import AgentRole, read_agents
from broker_project.lib.config.outside import (
    FootballConfig,
    GeminiConfig,
    GitHubConfig,
    MastodonConfig,
    StorageConfig,
    read_football,
    read_gemini,
    read_github,
    read_mastodon,
    read_storage,
)
from broker_project.lib.config.stores import make_var, read_database, read_redis_url, read_secret_key
from broker_project.lib.environment import ConfigError, Environment, check_url, read_env_file
from broker_project.lib.redaction import SECRET_FIELD
from broker_project.lib.redis.key_config import load_redis_names
from broker_project.lib.redis.keyspace import RedisNames
from broker_project.lib.redis.urls import passwords_of

BASE_DIR = Path(__file__).resolve().parents[3]
MIC_FEED = "https://www.soumu.go.jp/news.rdf"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def integer(name: str, default: int, low: int, high: int) -> Any:
    return field(metadata={"read": lambda env: env.integer(name, default, low=low, high=high)})


def boolean(name: str, default: bool) -> Any:
    return field(metadata={"read": lambda env: env.boolean(name, default)})


def choice(name: str, default: str, *others: str) -> Any:
    return field(metadata={"read": lambda env: env.choice(name, default, (default, *others))})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Fields that name a setting, its default and its range are read as they stand; ``load`` works out the others."""

    # The server and its stores
    var: Path
    host: str
    port: int = integer("PORT", 8000, 1, 65535)
    web_workers: int = integer("WEB_WORKERS", 1, 1, 64)
    cluster_hang_seconds: int = integer("BROKER_CLUSTER_HANG_SECONDS", 45, 2, 3600)
    call_seconds: int = integer("BROKER_CALL_SECONDS", 60, 1, 60)
    secret_key: str = field(repr=False)
    secret_key_is_given: bool
    debug: bool = boolean("DJANGO_DEBUG", default=False)
    allowed_hosts: tuple[str, ...]
    csrf_trusted_origins: tuple[str, ...]
    access: AccessConfig
    database: dict[str, Any] = field(repr=False)
    redis_url: str = field(repr=False)  # empty: embedded
    redis_names: RedisNames
    metrics_token: str = field(repr=False)
    log_format: str = choice("BROKER_LOG_FORMAT", "text", "json")
    log_level: str = choice("BROKER_LOG_LEVEL", "INFO", "DEBUG", "WARNING", "ERROR")
    # Agents and tasks
    sandbox: bool
    sandbox_url: str
    sandbox_url_is_given: bool
    agent_auth: str
    agents_file: Path
    agent_roles: tuple[AgentRole, ...]
    priority_gate: str = choice("BROKER_PRIORITY_GATE", "open", "assignable")
    author_gate: str = choice("BROKER_AUTHOR_GATE", "anyone", "writers")
    approval_gate: bool = boolean("BROKER_APPROVAL_GATE", default=False)
    poll_seconds: int = integer("BROKER_POLL_SECONDS", 300, 10, 86400)
    long_poll_seconds: int = integer("BROKER_LONG_POLL_SECONDS", 120, 0, 600)
    review_delay_minutes: int = integer("BROKER_REVIEW_DELAY_MINUTES", 5, 0, 1440)
    review_timeout_minutes: int = integer("BROKER_REVIEW_TIMEOUT_MINUTES", 10, 0, 1440)
    max_attempts: int = integer("BROKER_MAX_ATTEMPTS", 3, 1, 1000)
    github: GitHubConfig
    # Feeds
    feed_urls: tuple[str, ...]
    feed_max_retries: int = integer("FEED_MAX_RETRIES", 3, 0, 1000)
    feed_lease_seconds: int = integer("FEED_LEASE_SECONDS", 600, 1, 86400)
    allowed_private_hosts: frozenset[tuple[str, int]]
    gemini: GeminiConfig
    mastodon: MastodonConfig
    # Fixtures
    football: FootballConfig
    storage: StorageConfig
    fixture_before_minutes: int = integer("FIXTURE_BEFORE_MINUTES", 60, 0, 10080)
    fixture_after_minutes: int = integer("FIXTURE_AFTER_MINUTES", 60, 0, 10080)
    fixture_max_attempts: int = integer("FIXTURE_MAX_ATTEMPTS", 3, 1, 1000)
    fixture_catch_up_minutes: int = integer("FIXTURE_CATCH_UP_MINUTES", 1440, 0, 43200)
    fixture_stale_minutes: int = integer("FIXTURE_STALE_MINUTES", 30, 1, 10080)
    fixture_retention_days: int = integer("FIXTURE_RETENTION_DAYS", 30, 1, 36500)

    @property
    def is_public(self) -> bool:
        """Whether other machines are let in. Then nothing of the sandbox is allowed."""
        return lets_others_in(self.allowed_hosts)

    @cached_property
    def role_names(self) -> frozenset[str]:
        return frozenset(entry.role for entry in self.agent_roles)

    def secret_values(self) -> frozenset[str]:
        """Every secret in use, for the log filter: these never appear in a log, an error column or a page."""
        found = {
            self.secret_key,
            self.metrics_token,
            self.access.token_pepper,
            self.github.token,
            self.github.app_private_key,
            self.github.webhook_secret,
            self.gemini.api_key,
            self.mastodon.access_token,
            self.football.api_key,
            str(self.database.get("PASSWORD") or ""),
            *self.storage.credentials,
            *(secret for url in self.feed_urls for secret in secrets_in_query(url)),
            *passwords_of(self.redis_url),
        }
        # The sandbox's tokens are ordinary words; hiding them would mangle ordinary text.
        return frozenset(value for value in found if len(value) >= 8 and not value.startswith("sandbox-"))


def secrets_in_query(url: str) -> list[str]:
    """Values of query parameters that are named like ``token`` or ``api_key``."""
    return [value for name, value in parse_qsl(urlsplit(url).query) if SECRET_FIELD.search(name)]


def lets_others_in(allowed_hosts: tuple[str, ...]) -> bool:
    return any(host not in LOOPBACK_HOSTS for host in allowed_hosts)


def load(environ: Mapping[str, str] | None = None, base_dir: Path = BASE_DIR) -> Config:
    """Read the ``.env`` file and the environment, which wins."""
    outer = dict(os.environ if environ is None else environ)
    env_file = outer.get("BROKER_ENV_FILE", str(base_dir / ".env"))
    inner = read_env_file(Path(env_file)) if env_file else {}
    # An empty variable is not set: it does not hide what the file says.
    env = Environment({**inner, **{name: value for name, value in outer.items() if value.strip()}})

    var = Path(env.text("BROKER_VAR", str(base_dir / "var"))).absolute()
    make_var(var)
    plain = {entry.name: entry.metadata["read"](env) for entry in fields(Config) if "read" in entry.metadata}
    secret_key, secret_key_is_given = read_secret_key(env, var)
    sandbox = env.boolean("BROKER_SANDBOX", default=not any(env.is_set(name) for name in CREDENTIALS))
    sandbox_url = env.url(
        "BROKER_SANDBOX_URL", recorded_sandbox_url(var) or default_sandbox_url(plain["port"])
    )
    allowed_hosts = env.listing("DJANGO_ALLOWED_HOSTS") or LOOPBACK_HOSTS
    agent_roles, agents_file = read_agents(env, base_dir)
    config = Config(
        **plain,
        var=var,
        host=env.text("HOST", "127.0.0.1"),
        secret_key=secret_key,
        secret_key_is_given=secret_key_is_given,
        allowed_hosts=allowed_hosts,
        csrf_trusted_origins=read_origins(env),
        access=read_access(env, is_public=lets_others_in(allowed_hosts)),
        database=read_database(env, var),
        redis_url=read_redis_url(env),
        redis_names=load_redis_names(
            namespace=env.text("BROKER_NAMESPACE"),
            # An empty prefix is a valid choice, so this one setting is read before empty values are dropped.
            task_prefix=outer.get("BROKER_TASK_KEY_PREFIX", inner.get("BROKER_TASK_KEY_PREFIX")),
            config_file=env.text("BROKER_REDIS_CONFIG"),
        ),
        metrics_token=env.token("BROKER_METRICS_TOKEN"),
        sandbox=sandbox,
        sandbox_url=sandbox_url,
        sandbox_url_is_given=env.is_set("BROKER_SANDBOX_URL"),
        agent_auth=env.choice("BROKER_AGENT_AUTH", "open" if sandbox else "token", ("open", "token")),
        agents_file=agents_file,
        agent_roles=agent_roles,
        github=read_github(env, sandbox, sandbox_url),
        feed_urls=read_feed_urls(env, sandbox, sandbox_url),
        allowed_private_hosts=read_private_hosts(env) | ({host_and_port(sandbox_url)} if sandbox else set()),
        gemini=read_gemini(env, sandbox, sandbox_url),
        mastodon=read_mastodon(env, sandbox, sandbox_url),
        football=read_football(env, sandbox, sandbox_url),
        storage=read_storage(env),
    )
    if config.is_public:
        refuse_unsafe(config)
    return config


CREDENTIALS = (
    "GITHUB_TOKEN",
    "GITHUB_APP_ID",
    "GEMINI_API_KEY",
    "MASTODON_ACCESS_TOKEN",
    "API_FOOTBALL_KEY",
    "GCS_BUCKET",
)


def refuse_unsafe(config: Config) -> None:
    """Refuse what is unsafe on a host that other machines can reach."""
    where = "while DJANGO_ALLOWED_HOSTS lets other machines in"
    if not config.secret_key_is_given:
        raise ConfigError(f"DJANGO_SECRET_KEY must be set {where}.")
    if config.debug:
        raise ConfigError(f"DJANGO_DEBUG must be off {where}.")
    if config.sandbox:
        raise ConfigError(f"BROKER_SANDBOX must be 0 {where}: stand-ins do not belong in production.")


def sandbox_url_file(var: Path) -> Path:
    """The supervisor writes the sandbox's address here, for commands in other terminals."""
    return var / "run" / "sandbox_url"


def default_sandbox_url(port: int) -> str:
    return f"http://127.0.0.1:{port + 1 if port < 65535 else port - 1}"


def recorded_sandbox_url(var: Path) -> str:
    try:
        text = sandbox_url_file(var).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if re.fullmatch(r"http://127\.0\.0\.1:[0-9]{1,5}", text) else ""


def read_origins(env: Environment) -> tuple[str, ...]:
    origins = env.listing("DJANGO_CSRF_TRUSTED_ORIGINS")
    for origin in origins:
        check_url("DJANGO_CSRF_TRUSTED_ORIGINS", origin.replace("*.", "any."))
    return origins


def read_private_hosts(env: Environment) -> frozenset[tuple[str, int]]:
    hosts = set()
    for entry in env.listing("BROKER_ALLOWED_PRIVATE_HOSTS"):
        host, _, port = entry.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"BROKER_ALLOWED_PRIVATE_HOSTS must be host:port,…, not {entry[:60]!r}.")
        hosts.add((host.strip("[]").lower(), int(port)))
    return frozenset(hosts)


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def read_feed_urls(env: Environment, sandbox: bool, sandbox_url: str) -> tuple[str, ...]:
    urls = env.listing("FEED_URLS")
    for url in urls:
        check_url("FEED_URLS", url)
        if "@" in urlsplit(url).netloc:
            raise ConfigError("FEED_URLS must hold no user name or password: such addresses are not fetched.")
    return urls or ((f"{sandbox_url}/feed/news.rdf",) if sandbox else (MIC_FEED,))
