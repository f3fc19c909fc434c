"""Words for people, kept in tables and said at the edge."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """A line of a table of words: English, marked for translation, with named placeholders."""

    sentence: str
    advice: str = ""  # what a person can do about it
    is_well: bool = False  # nothing keeps it, or it is done
