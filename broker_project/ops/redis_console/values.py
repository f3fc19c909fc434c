"""One key as a person may see it: bounded, readable, without secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import redis
from django.utils.translation import gettext_noop

from broker_project.lib.redaction import redact, redact_value
from broker_project.lib.redis.keys import KeySpec
from broker_project.ops.redis_console.check import Sentence
from broker_project.ops.redis_console.scanning import KeyFacts, explain, look_up, printable

MAX_BYTES = 64 * 1024
MAX_ELEMENTS = 200
MAX_ELEMENT_CHARACTERS = 2000


@dataclass
class KeyView:
    facts: KeyFacts
    spec: KeySpec | None
    text: str = ""  # of a string
    rows: list[tuple[str, str]] = field(default_factory=list)  # of anything else: place or field, and value
    notes: list[Sentence] = field(default_factory=list)
    elements: int = 0


def view_key(client: redis.Redis, key: bytes) -> KeyView | None:
    """None if the key is gone."""
    found = look_up(client, [key])
    if not found:
        return None
    facts = found[0]
    view = KeyView(facts, explain(facts.name))
    if view.spec is not None and view.spec.is_sensitive:
        view.notes.append(Sentence(gettext_noop("The value is not shown: it lets its owner in.")))
    elif facts.kind == "string":
        show_string(client, key, view)
    else:
        show_elements(client, key, view)
    return view


def show_string(client: redis.Redis, key: bytes, view: KeyView) -> None:
    size = client.strlen(key)
    raw: Any = client.getrange(key, 0, MAX_BYTES - 1)
    if size > MAX_BYTES:
        text = gettext_noop("Only the first %(shown)d of %(all)d bytes are shown.")
        view.notes.append(Sentence(text, {"shown": MAX_BYTES, "all": size}))
    try:
        # A character cut in two at the end of the range is no reason to call the whole thing binary.
        value = raw.decode("utf-8", "strict" if size <= MAX_BYTES else "ignore")
    except UnicodeDecodeError:
        value = "\x00"
    if "\x00" in value:
        text = gettext_noop("The value is not text: %(all)d bytes.")
        view.notes.append(Sentence(text, {"all": size}))
    else:
        view.text = readable(value) if size <= MAX_BYTES else redact(value, MAX_BYTES)


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
        fields = reader.hscan(key, count=MAX_ELEMENTS)[1]
        # A field that is named for a secret is hidden whole, as in JSON.
        pairs = list(redact_value({shown(name): shown(value) for name, value in fields.items()}).items())
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
        text = gettext_noop("A value of the type %(kind)s is not shown.")
        view.notes.append(Sentence(text, {"kind": kind}))
    view.rows = [(shown(left), shown(right)) for left, right in pairs[:MAX_ELEMENTS]]
    if view.elements > len(view.rows):
        text = gettext_noop("Only %(shown)d of %(all)d elements are shown.")
        view.notes.append(Sentence(text, {"shown": len(view.rows), "all": view.elements}))


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.17g}"
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    return redact(printable(text), MAX_ELEMENT_CHARACTERS)
