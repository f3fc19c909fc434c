"""State given in part, as a test orders it: what is left out stays, what nobody knows is refused."""

from typing import Any


def refuse_unknown(data: dict[str, Any], known: dict[str, Any]) -> None:
    """Raise ValueError for keys that no dump has: a misspelt order must not pass in silence."""
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
