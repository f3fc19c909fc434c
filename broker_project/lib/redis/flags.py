"""What the value of a flag means: the one rule for Python and Lua."""

from __future__ import annotations

import json
from dataclasses import dataclass

REASON_CHARACTERS = 500
# Off when absent or one of these. Anything else is on: a stop switch that somebody set in an unknown way counts.
OFF_WORDS = frozenset({"", "0", "false", "off", "no", "null"})


@dataclass(frozen=True)
class Flag:
    is_on: bool
    reason: str = ""


OFF = Flag(False)


def parse_flag(value: str | None) -> Flag:
    """A flag that is on may say why: ``{"reason": …}``."""
    if value is None or value.strip().lower() in OFF_WORDS:
        return OFF
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return Flag(True)
    reason = document.get("reason") if isinstance(document, dict) else None
    return Flag(True, str(reason or "")[:REASON_CHARACTERS])
