"""The settings of the outside systems: where each of them is, and our credentials for it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from broker_project.lib.environment import ConfigError, Environment


class Source(StrEnum):
    """Where an outside system is: the real one, the local stand-in, or nowhere."""

    REAL = "real"
    SANDBOX = "sandbox"
    OFF = "off"


@dataclass(frozen=True)
class GitHubConfig:
    source: Source
    repository: str
    api_url: str
    token: str = field(repr=False, default="")
    app_id: str = ""
    app_private_key: str = field(repr=False, default="")
    webhook_secret: str = field(repr=False, default="")


@dataclass(frozen=True)
class GeminiConfig:
    source: Source
    api_url: str  # empty: Google's own
    screening_model: str
    summary_model: str
    api_key: str = field(repr=False, default="")


@dataclass(frozen=True)
class MastodonConfig:
    source: Source
    api_url: str
    visibility: str
    access_token: str = field(repr=False, default="")


@dataclass(frozen=True)
class FootballConfig:
    source: Source
    api_url: str
    leagues: tuple[int, ...]
    api_key: str = field(repr=False, default="")


@dataclass(frozen=True)
class StorageConfig:
    """``OFF`` means files under ``var/gcs/``: the same code path with a folder behind it."""

    source: Source
    bucket: str
    emulator_url: str
    credentials: tuple[str, ...] = field(repr=False, default=())  # the secrets inside Google's file


def read_github(env: Environment, sandbox: bool, sandbox_url: str) -> GitHubConfig:
    repository, token = env.text("GITHUB_REPOSITORY"), env.token("GITHUB_TOKEN")
    app_id, key = env.text("GITHUB_APP_ID"), read_private_key(env)
    api_url = env.url("GITHUB_API_URL")
    if repository and not re.fullmatch(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+", repository):
        raise ConfigError("GITHUB_REPOSITORY must be owner/name.")
    if bool(app_id) != bool(key):
        raise ConfigError("GITHUB_APP_ID and GITHUB_APP_PRIVATE_KEY go together: set both or neither.")
    if app_id and not app_id.isdecimal():
        raise ConfigError("GITHUB_APP_ID must be a whole number.")
    webhook_secret = env.text("GITHUB_WEBHOOK_SECRET")
    if token or app_id:
        if not repository:
            raise ConfigError("GITHUB_REPOSITORY must be set (owner/name) when GitHub credentials are.")
        url = api_url or "https://api.github.com"
        return GitHubConfig(Source.REAL, repository, url, token, app_id, key, webhook_secret)
    if sandbox:
        return GitHubConfig(
            Source.SANDBOX,
            repository or "broker-sandbox/demo",
            f"{sandbox_url}/github",
            token="sandbox-github",  # noqa: S106 - the stand-in takes any
            webhook_secret=webhook_secret or "sandbox-webhook-secret",
        )
    return GitHubConfig(Source.OFF, repository, api_url, webhook_secret=webhook_secret)


def read_private_key(env: Environment) -> str:
    """The key itself (``\\n`` for line ends is understood), or the path of the file that holds it."""
    value = env.text("GITHUB_APP_PRIVATE_KEY")
    if not value or "PRIVATE KEY" in value:
        return value.replace("\\n", "\n")
    try:
        return Path(value).read_text()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            "GITHUB_APP_PRIVATE_KEY is neither a PEM key nor the path of a readable file."
        ) from None


def read_gemini(env: Environment, sandbox: bool, sandbox_url: str) -> GeminiConfig:
    screening = env.text("GEMINI_SCREENING_MODEL", "gemini-2.5-flash-lite")
    summary = env.text("GEMINI_SUMMARY_MODEL", "gemini-2.5-flash")
    url = env.url("GEMINI_API_URL")
    if key := env.token("GEMINI_API_KEY"):
        return GeminiConfig(Source.REAL, url, screening, summary, key)
    if sandbox:
        return GeminiConfig(Source.SANDBOX, f"{sandbox_url}/gemini", screening, summary, "sandbox-gemini")
    return GeminiConfig(Source.OFF, url, screening, summary)


def read_mastodon(env: Environment, sandbox: bool, sandbox_url: str) -> MastodonConfig:
    visibility = env.choice("MASTODON_VISIBILITY", "unlisted", ("public", "unlisted", "private", "direct"))
    url = env.url("MASTODON_API_URL")
    if token := env.token("MASTODON_ACCESS_TOKEN"):
        if not url:
            raise ConfigError("MASTODON_API_URL must be set when MASTODON_ACCESS_TOKEN is.")
        return MastodonConfig(Source.REAL, url, visibility, token)
    if sandbox:
        return MastodonConfig(Source.SANDBOX, f"{sandbox_url}/mastodon", visibility, "sandbox-mastodon")
    return MastodonConfig(Source.OFF, url, visibility)


def read_football(env: Environment, sandbox: bool, sandbox_url: str) -> FootballConfig:
    leagues = env.listing("FIXTURE_LEAGUES") or ("39", "2", "140", "45", "143", "48", "32")
    if not all(league.isdecimal() for league in leagues):
        raise ConfigError("FIXTURE_LEAGUES must be league numbers separated by commas.")
    numbers = tuple(int(league) for league in leagues)
    url = env.url("API_FOOTBALL_URL")
    if key := env.token("API_FOOTBALL_KEY"):
        return FootballConfig(Source.REAL, url or "https://v3.football.api-sports.io", numbers, key)
    if sandbox:
        return FootballConfig(Source.SANDBOX, f"{sandbox_url}/football", numbers, "sandbox-football")
    return FootballConfig(Source.OFF, url, numbers)


def read_storage(env: Environment) -> StorageConfig:
    if bucket := env.text("GCS_BUCKET"):
        return StorageConfig(
            Source.REAL, bucket, env.url("STORAGE_EMULATOR_HOST"), read_google_credentials(env)
        )
    return StorageConfig(Source.OFF, "", "")


def read_google_credentials(env: Environment) -> tuple[str, ...]:
    """The secrets in the file that Google's library will read, so that we know what to hide."""
    name = "GOOGLE_APPLICATION_CREDENTIALS"
    if not (path := env.text(name)):
        return ()
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{name}: the file cannot be read: {error.strerror}.") from None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ConfigError(f"{name}: the file is not JSON.")
    named = (document.get(field) for field in ("private_key", "client_secret", "refresh_token"))
    return tuple(value for value in named if isinstance(value, str))
