"""Keeps secrets out of everything that is written: logs, error columns, events, pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "[hidden]"

# Things that look like a secret whoever set them. What is kept of a match is in its groups.
HEADER = re.compile(
    r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}"
    # "token" and "basic" are ordinary words, too: what follows must look less like one.
    r"|\b(token|basic)\s+(?:(?=[^\s]*[0-9])[A-Za-z0-9._~+/=-]{8,}|[A-Za-z0-9._~+/=-]{20,})"
)
NAME_ENDING = r"(?:api[_-]?key|apisports-key|token|secret|passw(?:or)?d|private[_-]?key)"
# What stands before the ending is not looked at: that would cost a square of the length of hostile text.
ASSIGNMENT = re.compile(
    rf"""(?i)({NAME_ENDING}\\?["']?\s{{0,9}}[=:]\s{{0,9}}\\?["']?)(?!\[hidden)[^\s"'\\&,;}}]{{6,}}"""
)
URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
BARE = re.compile(
    r"\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}|\bAIza[A-Za-z0-9_-]{30,}|\bbrk_[A-Za-z0-9_-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)
SECRET_FIELD = re.compile(NAME_ENDING + "$", re.IGNORECASE)


class Redactor:
    """Replaces the given secrets, and what looks like one, by ``[hidden]``."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first: a secret that contains another must not leave its tail behind.
        ordered = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._known = re.compile("|".join(re.escape(secret) for secret in ordered)) if ordered else None

    def text(self, value: str) -> str:
        if self._known is not None:
            value = self._known.sub(HIDDEN, value)
        value = BARE.sub(HIDDEN, value)
        value = URL_PASSWORD.sub(rf"\1:{HIDDEN}@", value)
        value = HEADER.sub(lambda match: f"{match.group(1) or match.group(2)} {HIDDEN}", value)
        return ASSIGNMENT.sub(rf"\1{HIDDEN}", value)

    def value(self, value: Any) -> Any:
        """The same for strings inside lists and dictionaries; what is called a secret is hidden whole."""
        if isinstance(value, str):
            # PostgreSQL keeps no NUL in text or JSON.
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
    clean = "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)
    clean = _redactor.text(clean)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def redact_value(value: Any) -> Any:
    return _redactor.value(value)
