"""Keeps secrets out of everything that is written: logs, error columns, events, pages."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "[hidden]"
SHORTEST_FORM = 8  # characters; anything shorter would be found in ordinary words

# What looks like a secret, whoever set it. The groups of a match are kept.
HEADER = re.compile(
    r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}"
    # "token" and "basic" are ordinary words as well, so what follows must look less like one.
    r"|\b(token|basic)\s+(?:(?=[^\s]*[0-9])[A-Za-z0-9._~+/=-]{8,}|[A-Za-z0-9._~+/=-]{20,})"
)
NAME_ENDING = r"(?:api[_-]?key|apisports-key|token|secret|passw(?:or)?d|private[_-]?key)"
# The part before the ending is not matched: on hostile text that would take quadratic time.
ASSIGNMENT = re.compile(
    rf"""(?i)({NAME_ENDING}\\?["']?\s{{0,9}}[=:]\s{{0,9}}\\?["']?)(?!\[hidden)[^\s"'\\&,;}}]{{6,}}"""
)
URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
BARE = re.compile(
    r"\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}|\bAIza[A-Za-z0-9_-]{30,}|\bbrk_[A-Za-z0-9_-]{16,}"
    r"|\bya29\.[A-Za-z0-9._-]{16,}"
    # A signed token (JWT): whoever holds it is let in for as long as it lasts.
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)
SECRET_FIELD = re.compile(NAME_ENDING + "$", re.IGNORECASE)


def forms_of(secret: str) -> Iterator[str]:
    """A secret as it is and as addresses, JSON, Python, HTML, Base64 and hexadecimal write it."""
    yield secret
    for quoted in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)
    for escape in (in_json, in_python, html.escape):
        once = escape(secret)
        yield once
        # A quoted answer is quoted again where it is logged.
        yield from (again(once) for again in (in_json, in_python, html.escape))
    yield secret.encode().hex()
    for offset in range(3):
        text = base64_core(secret.encode(), offset)
        yield text
        yield text.replace("+", "-").replace("/", "_")
    if "PRIVATE KEY" in secret:
        # Single lines of a key, for text whose line ends were changed. The lines with dashes are no secret.
        yield from (line for line in secret.splitlines() if not line.startswith("-") and len(line) >= 20)


def in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def in_python(text: str) -> str:
    return repr(text)[1:-1]


def base64_core(value: bytes, offset: int) -> str:
    """The Base64 of ``value`` with ``offset`` bytes before it, less what depends on its neighbours."""
    text = base64.b64encode(b"\0" * offset + value).decode()
    return text[(0, 2, 3)[offset] : (offset + len(value)) * 8 // 6]


class Redactor:
    """Replaces the given secrets, and what looks like one, by ``[hidden]``."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if secret for form in forms_of(secret)}
        # The longest first: replacing a shorter one inside it would leave the rest readable.
        self._known = sorted((form for form in forms if len(form) >= SHORTEST_FORM), key=len, reverse=True)

    def text(self, value: str) -> str:
        for form in self._known:
            if form in value:
                value = value.replace(form, HIDDEN)
        value = BARE.sub(HIDDEN, value)
        value = URL_PASSWORD.sub(rf"\1:{HIDDEN}@", value)
        value = HEADER.sub(lambda match: f"{match.group(1) or match.group(2)} {HIDDEN}", value)
        return ASSIGNMENT.sub(rf"\1{HIDDEN}", value)

    def value(self, value: Any) -> Any:
        """The same for strings inside lists and dictionaries. A field that is named like a secret is hidden whole."""
        if isinstance(value, str):
            # PostgreSQL refuses NUL in text and JSON.
            return self.text(value.replace("\x00", ""))
        if isinstance(value, dict):
            return {self.value(key): self._field(key, item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _field(self, name: object, value: Any) -> Any:
        if isinstance(name, str) and isinstance(value, str) and value and SECRET_FIELD.search(name):
            return HIDDEN
        return self.value(value)


_redactor = Redactor()


def configure_redaction(secrets: Iterable[str]) -> None:
    """Called once by the settings; from then on :func:`redact` knows the secrets in use."""
    global _redactor
    _redactor = Redactor(secrets)


def redact(text: str, limit: int = 2000) -> str:
    """``text`` without secrets and without control characters, cut to ``limit``: fit for an error column."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)
    clean = _redactor.text(text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def redact_value(value: Any) -> Any:
    return _redactor.value(value)
