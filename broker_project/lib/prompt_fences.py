"""Text of others inside a prompt, between marks that it cannot know, so that it cannot end its own fence."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from broker_project.lib.hidden_text import without_hidden

TAG_BYTES = 6


@dataclass(frozen=True)
class Fenced:
    """``tag`` is for the instructions around it; ``text`` includes the marks."""

    tag: str
    text: str


def fence(name: str, text: str, note: str = "", limit: int | None = None) -> Fenced:
    """``text`` without hidden characters between ``<name-…>`` and ``</name-…>``, marks that it does not contain.

    ``note`` goes into the first mark, for readers whose instructions do not explain the marks. ``limit`` is the number
    of visible characters.
    """
    inner = without_hidden(text)[:limit]
    tag = f"{name}-{secrets.token_hex(TAG_BYTES)}"
    while tag in inner:
        tag = f"{name}-{secrets.token_hex(TAG_BYTES)}"
    return Fenced(tag, f"<{tag}{note}>\n{inner}\n</{tag}>")
