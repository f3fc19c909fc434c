"""State that a test sets in part: keys that are left out stay, unknown ones are refused."""

from typing import Any


def refuse_unknown(data: dict[str, Any], known: dict[str, Any]) -> None:
    """Raise ValueError for keys that no dump has, so that a misspelt one is noticed."""
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
