"""Names of keys: the only place where they are built and recognised.

``Keyspace.key(SPEC, number=7)`` builds a name; ``Keyspace.explain(name)`` finds the entry behind a name. Names are
``{namespace}:…`` (seed 002) or ``{task prefix}…`` (seed 000). Settings and the JSON file of seed 002 can change
namespace, patterns, channels and times to live (:mod:`broker_project.lib.redis.key_config`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property

from broker_project.lib.redis.keys import DEFAULT_TTLS, REGISTRY, KeySpec, Kind, Life

# What each placeholder of a pattern may hold. Only the last four may hold a colon, and they come last in their
# patterns, so two different sets of values never give the same key.
FIELD_EXPRESSIONS = {
    "number": r"[1-9][0-9]{0,17}",
    "pull": r"[1-9][0-9]{0,17}",
    "agent": r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}",
    "process": r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}",
    "priority": r"high|normal|low",
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "name": r"[^\x00-\x1f\x7f]{1,500}",
    "type": r"[^\x00-\x1f\x7f]{1,200}",
    "label": r"[^\x00-\x1f\x7f]{1,200}",
    "role": r"[^\x00-\x1f\x7f]{1,200}",
}
OTHER_FIELD = r"[^:\s\x00-\x1f\x7f]{1,200}"


class BadKeyField(ValueError):
    """A value that may not be part of a key."""


@cache
def field_expression(name: str) -> re.Pattern[str]:
    return re.compile(FIELD_EXPRESSIONS.get(name, OTHER_FIELD))


def glob_escape(text: str) -> str:
    return "".join("\\" + char if char in "[]?*\\" else char for char in text)


@dataclass(frozen=True)
class RedisNames:
    """What the operator may change about names: see :mod:`broker_project.lib.redis.key_config`."""

    namespace: str = "poppo"
    task_prefix: str = "poppo:"
    patterns: dict[str, str] = field(default_factory=dict)  # spec name → pattern without the namespace
    ttls: dict[str, int] = field(default_factory=dict)


# The check of each placeholder, and what fills them in.
Check = Callable[[str], re.Match[str] | None]
Shape = tuple[dict[str, Check], Callable[..., str]]


@dataclass(frozen=True)
class Keyspace:
    """The keys of one repository: the configured one's, or those of another with a namespace of its own."""

    names: RedisNames

    def key(self, spec: KeySpec, **fields: str | int) -> str:
        """The full name. Raises :class:`BadKeyField` unless every placeholder gets a value it may hold."""
        checks, fill = self._shapes.get(spec.name) or self._shape(spec)
        if len(fields) != len(checks):
            raise BadKeyField(f"{spec.name} takes {', '.join(spec.fields) or 'no values'}")
        for name, value in fields.items():
            check = checks.get(name)
            if check is None:
                raise BadKeyField(f"{spec.name} takes {', '.join(spec.fields) or 'no values'}")
            if isinstance(value, bool) or not check(str(value)):
                raise BadKeyField(f"{name} cannot be part of a Redis key: {str(value)[:40]!r}")
        return fill(**fields)

    def _shape(self, spec: KeySpec) -> Shape:
        checks: dict[str, Check] = {name: field_expression(name).fullmatch for name in spec.fields}
        prefix = self.prefix(spec).replace("{", "{{").replace("}", "}}")
        self._shapes[spec.name] = found = (checks, (prefix + self.pattern(spec)).format)
        return found

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        """Checks and templates by entry, made once: names are built all the time."""
        return {}

    def prefix(self, spec: KeySpec) -> str:
        return self.names.task_prefix if spec.with_task_prefix else f"{self.names.namespace}:"

    def pattern(self, spec: KeySpec) -> str:
        return self.names.patterns.get(spec.name, spec.pattern)

    def stem(self, spec: KeySpec) -> str:
        """A key without its last field, for scripts that add the field themselves. Raises ValueError if anything may
        follow the field: an operator's pattern may have it in the middle."""
        if not spec.pattern.endswith("}") or spec.name in self.names.patterns:
            raise ValueError(f"{spec.name} may have something after its field")
        return self.prefix(spec) + spec.pattern.rpartition("{")[0]

    def ttl_seconds(self, spec: KeySpec) -> int:
        """Seconds to live. Only for entries that have a fixed one."""
        if isinstance(spec.ttl, Life):
            raise ValueError(f"{spec.name} has no fixed time to live")
        if isinstance(spec.ttl, int):
            return spec.ttl
        return self.names.ttls.get(spec.ttl, DEFAULT_TTLS[spec.ttl])

    def match(self, spec: KeySpec) -> str:
        """A glob that finds every key of an entry (and, where patterns overlap, some of others)."""
        return glob_escape(self.prefix(spec)) + re.sub(r"{\w+}", "*", self.pattern(spec))

    def explain(self, name: str) -> KeySpec | None:
        """The entry behind a key name, the most literal where several fit. None: no entry gives that name."""
        found = self._combined.fullmatch(name)
        return REGISTRY[found.lastgroup] if found and found.lastgroup else None

    def explanations(self, name: str) -> list[KeySpec]:
        return [spec for spec, expression in self._expressions if expression.fullmatch(name)]

    @property
    def own_prefixes(self) -> tuple[str, ...]:
        """Prefixes that belong to us alone: any key with one of them is ours, in the table or not."""
        prefix = self.names.task_prefix
        return (f"{self.names.namespace}:", *([prefix] if prefix.endswith(":") else []))

    def owns(self, name: str) -> bool:
        """Whether a key is ours. Under a task prefix that is empty or does not end in a colon, others may have keys as
        well; there only what the table explains is ours."""
        return name.startswith(self.own_prefixes) or self.explain(name) is not None

    def scan_patterns(self) -> list[str]:
        """Globs that together find every key of ours; what they find must still pass :meth:`owns`."""
        namespace, prefix = f"{self.names.namespace}:", self.names.task_prefix
        globs = [glob_escape(namespace) + "*"]
        if prefix.startswith(namespace):
            return globs
        if prefix.endswith(":"):
            return [*globs, glob_escape(prefix) + "*"]
        return globs + [self.match(spec) for spec in REGISTRY.values() if spec.with_task_prefix]

    def sibling(self, namespace: str) -> Keyspace:
        """The keyspace of another repository: the same patterns under another namespace."""
        return Keyspace(
            RedisNames(namespace, f"{namespace}:", patterns=self.names.patterns, ttls=self.names.ttls)
        )

    @cached_property
    def _combined(self) -> re.Pattern[str]:
        """All entries in one expression, the most literal first: a scan of a million keys matches each of them."""
        return re.compile("|".join(f"(?P<{spec.name}>{one.pattern})" for spec, one in self._expressions))

    @cached_property
    def _expressions(self) -> list[tuple[KeySpec, re.Pattern[str]]]:
        def expression(spec: KeySpec) -> re.Pattern[str]:
            parts = re.split(r"{(\w+)}", self.pattern(spec))
            text = re.escape(self.prefix(spec))
            for position, part in enumerate(parts):
                text += re.escape(part) if position % 2 == 0 else f"(?:{field_expression(part).pattern})"
            return re.compile(text)

        def literalness(spec: KeySpec) -> int:
            return -len(self.prefix(spec) + re.sub(r"{\w+}", "", self.pattern(spec)))

        stored = [spec for spec in REGISTRY.values() if spec.kind is not Kind.CHANNEL]
        return [(spec, expression(spec)) for spec in sorted(stored, key=literalness)]
