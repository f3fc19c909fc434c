"""Somebody else's text inside a prompt: between marks that it cannot know, so that it cannot end its own fence."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from broker_project.lib.hidden_text import without_hidden

TAG_BYTES = 6


@dataclass(frozen=True)
class Fenced:
    """``tag`` is what the instructions around it may name; ``text`` is the whole, marks included."""

    tag: str
    text: str


def fence(name: str, text: str, note: str = "", limit: int | None = None) -> Fenced:
    """``text`` without hidden characters between ``<name-…>`` and ``</name-…>``, marks that it does not contain.

    ``note`` stands inside the first mark, for readers whom no instruction told what the marks mean. ``limit``: so many
    characters of what is to be seen.
    """
    inner = without_hidden(text)[:limit]
    tag = f"{name}-{secrets.token_hex(TAG_BYTES)}"
    while tag in inner:
        tag = f"{name}-{secrets.token_hex(TAG_BYTES)}"
    return Fenced(tag, f"<{tag}{note}>\n{inner}\n</{tag}>")
