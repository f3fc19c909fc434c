"""Rules of the product, each broken in one place. ``tools/mutants.py`` tells what is done with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``name`` says which rule is broken. ``lane``: `fast`, or `postgres` for what only a real lock decides."""

    name: str
    file: str
    old: str
    new: str
    lane: str = "fast"


MUTANTS: tuple[Mutant, ...] = ()
