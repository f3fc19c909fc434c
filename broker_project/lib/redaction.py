"""Keeps secrets out of everything that is written: logs, error columns, events, pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "[hidden]"

# Things that look like a secret whoever set them.
PATTERNS = (
    re.compile(r"(?i)\b(bearer|token|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"\b(gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}"),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\bbrk_[A-Za-z0-9_-]{16,}"),
    re.compile(
        r"(?i)\b([a-z0-9_-]*(?:api[_-]?key|apisports-key|access_token|secret|password))(\"?\s*[=:]\s*\"?)[^\s\"'&,;}]{6,}"
    ),
    re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL),
)


class Redactor:
    """Replaces the given secrets, and what looks like one, by ``[hidden]``."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first: a secret that contains another must not leave its tail behind.
        ordered = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._known = re.compile("|".join(re.escape(secret) for secret in ordered)) if ordered else None

    def text(self, value: str) -> str:
        if self._known is not None:
            value = self._known.sub(HIDDEN, value)
        for pattern in PATTERNS:
            value = pattern.sub(self._replacement, value)
        return value

    def value(self, value: Any) -> Any:
        """The same for strings inside lists and dictionaries."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    @staticmethod
    def _replacement(match: re.Match[str]) -> str:
        text = match.group(0)
        if text.endswith("@"):
            return f"{match.group(1)}:{HIDDEN}@"
        if match.re is PATTERNS[4]:
            return f"{match.group(1)}{match.group(2)}{HIDDEN}"
        if match.re is PATTERNS[0]:
            return f"{match.group(1)} {HIDDEN}"
        return HIDDEN


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
