"""One key as a person may see it: bounded, readable, without secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import redis

from broker_project.lib.keyspace import KeySpec
from broker_project.lib.redaction import redact, redact_value
from broker_project.redis_tools.scanning import KeyFacts, explain, look_up, printable

MAX_BYTES = 64 * 1024
MAX_ELEMENTS = 200
MAX_ELEMENT_CHARACTERS = 2000


@dataclass
class KeyView:
    facts: KeyFacts
    spec: KeySpec | None
    text: str = ""  # of a string
    rows: list[tuple[str, str]] = field(default_factory=list)  # of anything else: place or field, and value
    notes: list[str] = field(default_factory=list)
    elements: int = 0


def view_key(client: redis.Redis, key: bytes) -> KeyView | None:
    """None if the key is gone."""
    found = look_up(client, [key])
    if not found:
        return None
    facts = found[0]
    view = KeyView(facts, explain(facts.name))
    if view.spec is not None and view.spec.is_sensitive:
        view.notes.append("The value is not shown: it lets its owner in.")
    elif facts.kind == "string":
        show_string(client, key, view)
    else:
        show_elements(client, key, view)
    return view


def show_string(client: redis.Redis, key: bytes, view: KeyView) -> None:
    size = client.strlen(key)
    raw: Any = client.getrange(key, 0, MAX_BYTES - 1)
    if size > MAX_BYTES:
        view.notes.append(f"Only the first {MAX_BYTES} of {size} bytes are shown.")
    try:
        # A character cut in two at the end of the range is no reason to call the whole thing binary.
        text = raw.decode("utf-8", "strict" if size <= MAX_BYTES else "ignore")
    except UnicodeDecodeError:
        view.notes.append(f"The value is not text: {size} bytes.")
        return
    if "\x00" in text:
        view.notes.append(f"The value is not text: {size} bytes.")
        return
    view.text = readable(text) if size <= MAX_BYTES else redact(text, MAX_BYTES)


def readable(text: str) -> str:
    """JSON with line breaks, anything else as it is; secrets hidden, also inside the parts of JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return redact(text, MAX_BYTES)
    if not isinstance(document, dict | list):
        return redact(text, MAX_BYTES)
    pretty = json.dumps(redact_value(document), indent=2, ensure_ascii=False)
    return redact(pretty, 4 * MAX_BYTES)


def show_elements(client: redis.Redis, key: bytes, view: KeyView) -> None:
    """The first elements only: a step or two of a cursor, never a whole collection."""
    kind = view.facts.kind
    reader: Any = client  # redis-py's answers are unions of every protocol version's
    pairs: list[tuple[Any, Any]] = []
    if kind == "hash":
        view.elements = reader.hlen(key)
        pairs = list(reader.hscan(key, count=MAX_ELEMENTS)[1].items())
    elif kind == "set":
        view.elements = reader.scard(key)
        pairs = [(b"", member) for member in reader.sscan(key, count=MAX_ELEMENTS)[1]]
    elif kind == "zset":
        view.elements = reader.zcard(key)
        first = reader.zrange(key, 0, MAX_ELEMENTS - 1, withscores=True)
        pairs = [(score, member) for member, score in first]
    elif kind == "list":
        view.elements = reader.llen(key)
        pairs = list(enumerate(reader.lrange(key, 0, MAX_ELEMENTS - 1)))
    else:
        view.notes.append(f"A value of the type {kind} is not shown.")
    view.rows = [(shown(left), shown(right)) for left, right in pairs[:MAX_ELEMENTS]]
    if view.elements > len(view.rows):
        view.notes.append(f"Only {len(view.rows)} of {view.elements} elements are shown.")


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.17g}"
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    return redact(printable(text), MAX_ELEMENT_CHARACTERS)
