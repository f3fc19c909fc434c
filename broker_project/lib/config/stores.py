"""Where data is kept: the folder ``var``, the secret key in it, the database and Redis."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import dj_database_url

from broker_project.lib.environment import ConfigError, Environment, check_url
from broker_project.lib.files import write_whole
from broker_project.lib.redis.urls import SENTINEL_SCHEMES, is_sentinel, parse_sentinel


def make_var(var: Path) -> None:
    try:
        # It holds sessions, hashes of tokens and passwords: closed to other users of the machine.
        var.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"BROKER_VAR: the folder {var} cannot be made: {error.strerror}.") from None
    if not os.access(var, os.W_OK | os.X_OK):
        raise ConfigError(f"BROKER_VAR: the folder {var} cannot be written to.")


def read_secret_key(env: Environment, var: Path) -> tuple[str, bool]:
    if given := env.text("DJANGO_SECRET_KEY"):
        if len(given) < 32:
            raise ConfigError("DJANGO_SECRET_KEY must have at least 32 characters.")
        return given, True
    path = var / "secret_key"
    if not path.exists():
        write_whole(path, secrets.token_urlsafe(64), replace=False)
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"DJANGO_SECRET_KEY: {path} cannot be read: {error.strerror}.") from None
    if len(key) < 32:
        raise ConfigError(f"DJANGO_SECRET_KEY: {path} is damaged; remove it or set the variable.")
    return key, False


def read_database(env: Environment, var: Path) -> dict[str, Any]:
    url = env.text("DATABASE_URL")
    if not url:
        return sqlite(str(var / "broker.sqlite3"))
    try:
        parsed = dict(dj_database_url.parse(url))
    except (ValueError, KeyError):
        parsed = {}
    engine = str(parsed.get("ENGINE", ""))
    if engine.endswith(".sqlite3"):
        return sqlite(str(parsed["NAME"]))
    if engine.endswith(".postgresql") and parsed.get("NAME"):
        # One pool per process; a waiting request holds no connection. A thread keeps its own while it calls GitHub, so
        # there are as many as the lean path has threads, and some for pages.
        given: dict[str, Any] = dict(parsed.get("OPTIONS") or {})  # type: ignore[call-overload]
        options = {
            **given,
            "pool": {
                "min_size": 1,
                "max_size": env.integer("BROKER_DATABASE_POOL_SIZE", 24, low=1, high=1000),
                "timeout": 20,
            },
        }
        return {**parsed, "OPTIONS": options, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
    raise ConfigError("DATABASE_URL must be postgres://user:password@host:port/name or sqlite:///path.")


def sqlite(name: str) -> dict[str, Any]:
    return {
        "ENGINE": "broker_project.lib.sqlite",
        "NAME": name,
        # Tests use a file as well: in-memory databases lock differently.
        "TEST": {"NAME": f"{name}.test"},
        "OPTIONS": {
            "timeout": 20,
            # A transaction takes the write lock when it begins, so it cannot fail halfway because another wrote first.
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-2000",
        },
    }


def read_redis_url(env: Environment) -> str:
    url = env.text("REDIS_URL")
    if url.startswith("unix://"):
        return url
    if is_sentinel(url):
        try:
            parse_sentinel(url)
        except ValueError as error:
            raise ConfigError(f"REDIS_URL {error}") from None
    elif url:
        check_url("REDIS_URL", url, ("redis", "rediss", *SENTINEL_SCHEMES))
    return url
