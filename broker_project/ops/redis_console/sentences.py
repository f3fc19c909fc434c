"""Sentences that the command line says in English and a page in its reader's language."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.utils.translation import gettext


@dataclass(frozen=True)
class Sentence:
    """``text`` is marked with ``gettext_noop`` where it is written; ``values`` go into its ``%(name)s``."""

    text: str
    values: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text % self.values

    @property
    def translated(self) -> str:
        return gettext(self.text) % self.values
