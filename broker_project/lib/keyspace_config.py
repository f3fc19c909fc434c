"""The JSON file of seed 002 (``BROKER_REDIS_CONFIG``): namespace, patterns, channels and times to live."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker_project.lib.environment import ConfigError
from broker_project.lib.keyspace import REGISTRY, Kind, RedisNames

SETTING = "BROKER_REDIS_CONFIG"
DEFAULT_NAMESPACE = "poppo"

# For each renamable family: the placeholders of the file's pattern, and what each of our keys puts into them.
# A value in braces stays a placeholder of the key; None drops the part together with the colon before it.
KEY_FAMILIES: dict[str, dict[str, dict[str, str | None]]] = {
    "issue": {
        "issue_status": {"type": "status", "number": "{number}"},
        "issue_metadata": {"type": "metadata", "number": "{number}"},
    },
    "process": {
        "process_info": {"type": "info", "id": "{process}"},
        "process_heartbeat": {"type": "heartbeat", "id": "{process}"},
    },
    "queue": {"queue": {"priority": "{priority}"}},
    "task": {
        "task_info": {"type": "info", "id": "{id}"},
        "task_result": {"type": "result", "id": "{id}"},
    },
    "stats": {
        "stats_issues_daily": {"category": "issues", "period": "daily", "date": "{date}"},
        "stats_performance_hourly": {"category": "performance", "period": "hourly", "date": None},
    },
}
CHANNELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mirinRequests": ("channel_mirin_requests", ()),
    "mirinResponses": ("channel_mirin_responses", ()),
    "events": ("channel_events", ("type",)),
}

Seconds = Annotated[int, Field(strict=True, ge=1, le=315_360_000)]


class TimesToLive(BaseModel):
    model_config = ConfigDict(extra="forbid")
    heartbeat: Seconds | None = None
    tempData: Seconds | None = None  # noqa: N815 - the file's own spelling
    stats: Seconds | None = None
    session: Seconds | None = None


class RedisSection(BaseModel):
    model_config = ConfigDict(extra="forbid")
    namespace: str = DEFAULT_NAMESPACE
    keyPatterns: dict[str, str] = Field(default_factory=dict)  # noqa: N815
    channels: dict[str, str] = Field(default_factory=dict)
    ttl: TimesToLive = TimesToLive()


class RedisFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    redis: RedisSection


def load_redis_names(*, namespace: str, task_prefix: str | None, config_file: str) -> RedisNames:
    """Names from the settings and the file. ``namespace`` from the environment wins over the file's."""
    section = read_file(Path(config_file)) if config_file else RedisSection()
    chosen = namespace or section.namespace
    check_namespace("BROKER_NAMESPACE" if namespace else SETTING, chosen)
    prefix = f"{chosen}:" if task_prefix is None else task_prefix.strip()
    if not re.fullmatch(r"[A-Za-z0-9._:{}/-]{0,100}", prefix):
        raise ConfigError("BROKER_TASK_KEY_PREFIX may hold letters, digits and . _ : - / { } only.")
    prefix = prefix.replace("{namespace}", chosen)
    patterns = {**key_patterns(section), **channel_patterns(section)}
    check_distinct(patterns)
    ttls = {name: value for name, value in section.ttl.model_dump().items() if value is not None}
    return RedisNames(namespace=chosen, task_prefix=prefix, patterns=patterns, ttls=ttls)


def read_file(path: Path) -> RedisSection:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{SETTING}: {path.name} cannot be read: {error.strerror}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        where = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{SETTING}: {path.name} is not valid JSON{where}.") from None
    try:
        return RedisFile.model_validate(document).redis
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"{SETTING}: {place}: {first['msg']}.") from None


def check_namespace(setting: str, namespace: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", namespace):
        raise ConfigError(f"{setting}: the namespace must be letters, digits and . _ - only.")


def key_patterns(section: RedisSection) -> dict[str, str]:
    found: dict[str, str] = {}
    for family, pattern in section.keyPatterns.items():
        if family not in KEY_FAMILIES:
            raise ConfigError(
                f"{SETTING}: keyPatterns.{family} is unknown ({', '.join(KEY_FAMILIES)} are known)."
            )
        place = f"keyPatterns.{family}"
        wanted = {name for values in KEY_FAMILIES[family].values() for name in values}
        local = without_namespace(section, place, pattern, wanted)
        for spec_name, values in KEY_FAMILIES[family].items():
            found[spec_name] = substitute(local, values)
    return found


def channel_patterns(section: RedisSection) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, pattern in section.channels.items():
        if name not in CHANNELS:
            raise ConfigError(f"{SETTING}: channels.{name} is unknown ({', '.join(CHANNELS)} are known).")
        spec_name, fields = CHANNELS[name]
        found[spec_name] = without_namespace(section, f"channels.{name}", pattern, set(fields))
    return found


def without_namespace(section: RedisSection, place: str, pattern: str, wanted: set[str]) -> str:
    start = f"{section.namespace}:"
    if not pattern.startswith(start):
        raise ConfigError(f"{SETTING}: {place} must begin with {start}")
    local = pattern.removeprefix(start)
    given = re.findall(r"{(\w+)}", local)
    if sorted(given) != sorted(wanted):
        names = ", ".join(f"{{{name}}}" for name in sorted(wanted)) or "no placeholder"
        raise ConfigError(f"{SETTING}: {place} must hold {names}, each once.")
    if not re.fullmatch(r"[A-Za-z0-9._:{}/-]+", local):
        raise ConfigError(f"{SETTING}: {place} may hold letters, digits and . _ : - / only.")
    return local


def substitute(pattern: str, values: dict[str, str | None]) -> str:
    for name, value in values.items():
        if value is None:
            pattern = re.sub(rf":?{{{name}}}", "", pattern)
        else:
            pattern = pattern.replace(f"{{{name}}}", value)
    return pattern


def check_distinct(patterns: dict[str, str]) -> None:
    seen: dict[str, str] = {}
    for spec in REGISTRY.values():
        if spec.with_task_prefix:
            continue
        shape = re.sub(r"{\w+}", "{}", patterns.get(spec.name, spec.pattern))
        if shape in seen and (spec.kind is not Kind.CHANNEL):
            raise ConfigError(f"{SETTING}: {spec.name} and {seen[shape]} would have the same key.")
        seen[shape] = spec.name
