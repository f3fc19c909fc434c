"""The JSON file of seed 002 (``BROKER_REDIS_CONFIG``): namespace, patterns, channels and times to live."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker_project.lib.environment import ConfigError
from broker_project.lib.redis.keys import (
    CHANNEL_EVENTS,
    CLEANUP_PATTERNS,
    ISSUE_STATUS_EVENTS,
    REGISTRY,
    KeySpec,
    Kind,
)
from broker_project.lib.redis.keyspace import Keyspace, RedisNames, field_expression

SETTING = "BROKER_REDIS_CONFIG"
DEFAULT_NAMESPACE = "poppo"

# For each family that can be renamed: the placeholders of the file's pattern and what our keys fill in.
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
    tempData: Seconds | None = None  # the file's own spelling
    stats: Seconds | None = None
    session: Seconds | None = None


class RedisSection(BaseModel):
    model_config = ConfigDict(extra="forbid")
    namespace: str = DEFAULT_NAMESPACE
    keyPatterns: dict[str, str] = Field(default_factory=dict)
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
    ttls = {name: value for name, value in section.ttl.model_dump().items() if value is not None}
    if patterns:
        check_no_overlap(SETTING, RedisNames(chosen, f"{chosen}:", patterns))
    names = RedisNames(namespace=chosen, task_prefix=prefix, patterns=patterns, ttls=ttls)
    if prefix != f"{chosen}:":
        check_no_overlap("BROKER_TASK_KEY_PREFIX", names)
    return names


def read_file(path: Path) -> RedisSection:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{SETTING}: {path.name} cannot be read: {error.strerror}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
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
    if "}{" in local:
        raise ConfigError(f"{SETTING}: {place} must have something between two placeholders.")
    if not re.fullmatch(r"[A-Za-z0-9._:/-]*", re.sub(r"{\w+}", "", local)):
        raise ConfigError(f"{SETTING}: {place} may hold letters, digits and . _ : - / only.")
    return local


def substitute(pattern: str, values: dict[str, str | None]) -> str:
    for name, value in values.items():
        if value is None:
            pattern = re.sub(rf":?{{{name}}}", "", pattern).removeprefix(":")
        else:
            pattern = pattern.replace(f"{{{name}}}", value)
    return pattern


def check_no_overlap(setting: str, names: RedisNames) -> None:
    """Refuse names under which two entries would share a key, or the clean-up would remove what is in use."""
    plain = Keyspace(RedisNames(names.namespace, f"{names.namespace}:"))
    chosen = Keyspace(names)
    for spec, fields in sample_keys(chosen):
        name = chosen.key(spec, **fields)
        found = {entry.name for entry in chosen.explanations(name)}
        expected = {entry.name for entry in plain.explanations(plain.key(spec, **fields))}
        if found != expected:
            others = " and ".join(sorted(found ^ expected | {spec.name}))
            raise ConfigError(f"{setting}: {others} would share keys such as {name}.")
        local = name.removeprefix(f"{names.namespace}:")
        if spec.name not in {"temp", "session"} and any(
            fnmatchcase(local, glob) for glob in CLEANUP_PATTERNS
        ):
            raise ConfigError(f"{setting}: the clean-up would remove {spec.name} keys such as {name}.")
    channels = [
        chosen.key(CHANNEL_EVENTS, type=ISSUE_STATUS_EVENTS),
        *(chosen.key(spec) for spec in REGISTRY.values() if spec.kind is Kind.CHANNEL and not spec.fields),
    ]
    if len(set(channels)) != len(channels):
        raise ConfigError(f"{setting}: two channels would have the same name.")


SAMPLES = {"agent": "poppo", "process": "issue-7-poppo", "priority": "high", "date": "2026-01-31"}


def sample_keys(chosen: Keyspace) -> Iterator[tuple[KeySpec, dict[str, str]]]:
    """Every stored entry, with an ordinary value and with those parts of all patterns that it could hold."""
    stored = [spec for spec in REGISTRY.values() if spec.kind is not Kind.CHANNEL]
    patterns = {spec.pattern for spec in stored} | {chosen.pattern(spec) for spec in stored}
    names = [re.sub(r"{\w+}", "7", pattern).split(":") for pattern in sorted(patterns)]
    for spec in stored:
        width = len(spec.fields)
        parts = {tuple(name[at : at + width]) for name in names for at in range(len(name) - width + 1)}
        for values in sorted(parts | {tuple(SAMPLES.get(field, "7") for field in spec.fields)}):
            fields = dict(zip(spec.fields, values, strict=True))
            if all(field_expression(field).fullmatch(value) for field, value in fields.items()):
                yield spec, fields
