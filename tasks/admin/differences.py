"""What changed between two texts, line by line, with hidden characters shown. Pure; plain text, still to be escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

from broker_project.lib.hidden_text import made_visible

CONTEXT_LINES = 3
# Matching costs up to the square of this; more lines than that are shown whole, old before new.
MATCHED_LINES = 1000


class Kind(StrEnum):
    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"
    GAP = "gap"  # unchanged lines that are left out


@dataclass(frozen=True)
class Line:
    kind: Kind
    text: str
    count: int = 1  # of a gap's lines


def difference(old: str, new: str) -> list[Line]:
    """Every changed line with a few unchanged ones around it; empty if nothing changed."""
    if old == new:
        return []
    before, after = lines_of(old), lines_of(new)
    if before == after:
        # Line ends alone differ; a person should see that something did.
        return [Line(Kind.REMOVED, line) for line in before] + [Line(Kind.ADDED, line) for line in after]
    start = shared(before, after)
    end = shared(before[start:][::-1], after[start:][::-1])
    head, tail = before[:start], before[len(before) - end :] if end else []
    changed = middle(before[start : len(before) - end], after[start : len(after) - end])
    return [*shortened(head, keeps_end=True), *changed, *shortened(tail, keeps_end=False)]


def lines_of(text: str) -> list[str]:
    return [made_visible(line) for line in text.replace("\r\n", "\n").split("\n")]


def shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines both begin with."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def middle(before: Sequence[str], after: Sequence[str]) -> list[Line]:
    if max(len(before), len(after)) > MATCHED_LINES:
        return [Line(Kind.REMOVED, line) for line in before] + [Line(Kind.ADDED, line) for line in after]
    found: list[Line] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            found += [Line(Kind.SAME, line) for line in before[i1:i2]]
        else:
            found += [Line(Kind.REMOVED, line) for line in before[i1:i2]]
            found += [Line(Kind.ADDED, line) for line in after[j1:j2]]
    return found


def shortened(lines: Sequence[str], *, keeps_end: bool) -> list[Line]:
    left_out = len(lines) - CONTEXT_LINES
    if left_out <= 0:
        return [Line(Kind.SAME, line) for line in lines]
    kept = lines[-CONTEXT_LINES:] if keeps_end else lines[:CONTEXT_LINES]
    shown = [Line(Kind.SAME, line) for line in kept]
    gap = Line(Kind.GAP, "", left_out)
    return [gap, *shown] if keeps_end else [*shown, gap]
