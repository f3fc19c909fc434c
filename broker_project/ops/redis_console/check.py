"""What is wrong with the keys under our names: unknown ones, wrong types, times to live, JSON and sizes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import redis
from django.utils.translation import gettext, gettext_noop

from broker_project.lib.config.dynamic import SETTINGS, parse_rate_limit
from broker_project.lib.redis.keys import CONFIG, CONFIG_GITHUB_RATELIMIT, MEBIBYTE, KeySpec, Kind, Life
from broker_project.lib.redis.keyspace import Keyspace
from broker_project.ops.redis_console.scanning import KeyFacts, Walk, look_up, owner_of

KEPT_FINDINGS = 1000
# JSON is read in portions of at most this size; a larger value is judged by its size alone.
READ_BYTES = 8 * MEBIBYTE
DAY_SECONDS = 86400
SLACK_SECONDS = 5  # a TTL is set a moment before it is read, and rounded


class Problem(StrEnum):
    UNKNOWN = gettext_noop("unknown key")
    TYPE = gettext_noop("wrong type")
    TTL = gettext_noop("wrong time to live")
    JSON = gettext_noop("not JSON")
    SIZE = gettext_noop("too large")
    VALUE = gettext_noop("bad value")


@dataclass(frozen=True)
class Sentence:
    """English on the command line, the reader's language on a page.

    ``text`` is marked with ``gettext_noop`` where it is written; ``values`` go into its ``%(name)s``.
    """

    text: str
    values: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text % self.values

    @property
    def translated(self) -> str:
        return gettext(self.text) % self.values


@dataclass(frozen=True)
class Finding:
    problem: Problem
    key: str
    detail: Sentence


@dataclass
class CheckResult:
    checked: int = 0
    is_complete: bool = True
    counts: Counter[Problem] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)  # the first KEPT_FINDINGS

    def add(self, finding: Finding) -> None:
        self.counts[finding.problem] += 1
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append(finding)

    @property
    def problems(self) -> int:
        return self.counts.total()


def check_keys(client: redis.Redis, walk: Walk | None = None) -> CheckResult:
    """Look at every key of ours, or at those that a limited walk meets. Changes nothing."""
    walk = walk or Walk(client)
    result = CheckResult()
    for batch in walk:
        to_read: list[tuple[KeyFacts, KeySpec]] = []
        for facts in look_up(client, batch):
            result.checked += 1
            names = owner_of(facts.name)
            if names is None:
                continue
            for finding in judge(names, facts):
                result.add(finding)
            spec = names.explain(facts.name)
            if spec and facts.kind == "string" and reads_value(spec) and facts.size_bytes <= READ_BYTES:
                to_read.append((facts, spec))
        for finding in judge_values(client, to_read):
            result.add(finding)
    result.is_complete = walk.is_complete
    return result


def judge(names: Keyspace, facts: KeyFacts) -> Iterator[Finding]:
    """What can be told without reading the value."""
    spec = names.explain(facts.name)
    if spec is None:
        yield Finding(
            Problem.UNKNOWN, facts.name, Sentence(gettext_noop("no entry of the registry explains it"))
        )
        return
    if facts.kind != spec.kind:
        text = gettext_noop("is a %(found)s, should be a %(wanted)s")
        values: dict[str, object] = {"found": facts.kind, "wanted": spec.kind}
        yield Finding(Problem.TYPE, facts.name, Sentence(text, values))
    if trouble := ttl_problem(names, spec, facts.ttl_seconds):
        yield Finding(Problem.TTL, facts.name, trouble)
    if facts.size_bytes > spec.max_bytes:
        text = gettext_noop("takes %(found)d bytes, should take %(wanted)d at the most")
        values = {"found": facts.size_bytes, "wanted": spec.max_bytes}
        yield Finding(Problem.SIZE, facts.name, Sentence(text, values))


def ttl_problem(names: Keyspace, spec: KeySpec, ttl_seconds: int | None) -> Sentence | None:
    """None if it is as the table says. ``ttl_seconds`` None: the key never expires."""
    if spec.ttl is Life.OPTIONAL:
        return None
    if spec.ttl is Life.FOREVER:
        if ttl_seconds is None:
            return None
        return Sentence(gettext_noop("expires in %(seconds)d s, should not expire"), {"seconds": ttl_seconds})
    if ttl_seconds is None:
        return Sentence(gettext_noop("never expires, but should"))
    if spec.ttl is Life.LIMITED:
        return None
    longest = DAY_SECONDS if spec.ttl is Life.MIDNIGHT else names.ttl_seconds(spec)
    if ttl_seconds <= longest + SLACK_SECONDS:
        return None
    text = gettext_noop("expires in %(seconds)d s, should within %(longest)d s")
    return Sentence(text, {"seconds": ttl_seconds, "longest": longest})


def reads_value(spec: KeySpec) -> bool:
    return spec.kind is Kind.STRING and (spec.is_json or spec is CONFIG)


def judge_values(client: redis.Redis, keys: list[tuple[KeyFacts, KeySpec]]) -> Iterator[Finding]:
    for portion in portions(keys):
        values: list[Any] = client.mget([facts.key for facts, _ in portion])
        for (facts, spec), value in zip(portion, values, strict=True):
            if value is not None and (finding := judge_value(facts, spec, value)):
                yield finding


def portions(keys: list[tuple[KeyFacts, KeySpec]]) -> Iterator[list[tuple[KeyFacts, KeySpec]]]:
    portion: list[tuple[KeyFacts, KeySpec]] = []
    total = 0
    for entry in keys:
        if portion and total + entry[0].size_bytes > READ_BYTES:
            yield portion
            portion, total = [], 0
        portion.append(entry)
        total += entry[0].size_bytes
    if portion:
        yield portion


def judge_value(facts: KeyFacts, spec: KeySpec, value: bytes) -> Finding | None:
    if spec is CONFIG:
        title = ":".join(facts.name.rsplit(":", 2)[-2:])
        if title not in SETTINGS:
            text = gettext_noop("no setting has this name, so it changes nothing")
            return Finding(Problem.VALUE, facts.name, Sentence(text))
        try:
            SETTINGS[title].parse(value.decode("utf-8", "replace"))
        except ValueError as error:
            text = gettext_noop("ignored: %(error)s")
            return Finding(Problem.VALUE, facts.name, Sentence(text, {"error": str(error)}))
        return None
    try:
        json.loads(value)
    except (ValueError, RecursionError) as error:
        return Finding(Problem.JSON, facts.name, Sentence("%(error)s", {"error": str(error)[:200]}))
    if spec is CONFIG_GITHUB_RATELIMIT and parse_rate_limit(value.decode("utf-8", "replace")) is None:
        text = gettext_noop("should hold limit, remaining and reset as numbers")
        return Finding(Problem.VALUE, facts.name, Sentence(text))
    return None
