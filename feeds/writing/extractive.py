"""A summary without a model: the most important sentences, Japanese or English, in their own order. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter

# In English a sentence ends only before a space, so that "3.5" and "U.S." stay whole.
_SENTENCE_END = re.compile(r"(?<=[。！？])|(?<=[.!?])\s+(?=[A-Z\"“(])|\n")
_TERMS = re.compile(r"[一-龥々]{2,}|[ァ-ヶー]{2,}|[A-Za-z][A-Za-z0-9'-]{2,}|\d[\d,.]*")
_COMMON = frozenset(
    "the and for that with this from are was were will has have had not but its their they which been can may also "
    "such into about more than other over under between these those would should could our your his her".split()
)
SHORTEST, LONGEST = 12, 400
FULL_LINE = 30
LEAST_WEIGHT = 0.35  # of the highest; the remaining room is not filled with minor sentences
JAPANESE = re.compile(r"[ぁ-ゖァ-ヶ一-龥]")


def is_japanese(text: str, least_share: float = 0.3) -> bool:
    letters = [char for char in text if char.isalpha()]
    return bool(letters) and len(JAPANESE.findall(text)) / len(letters) >= least_share


def sentences(text: str) -> list[str]:
    """Whole sentences, each once. Headings, menus and fragments only if there is nothing else."""
    joined = "\n".join(_rejoined(text.splitlines()))
    pieces = (re.sub(r"\s+", " ", piece).strip() for piece in _SENTENCE_END.split(joined) if piece)
    every = list(dict.fromkeys(piece for piece in pieces if SHORTEST <= len(piece) <= LONGEST))
    return [piece for piece in every if piece[-1] in "。！？.!?"] or every


def _rejoined(lines: list[str]) -> list[str]:
    """PDF text breaks lines in the middle of sentences: a full line without an end is joined with the next."""
    whole: list[str] = []
    goes_on = False
    for line in (line.strip() for line in lines):
        if goes_on and line:
            glue = "" if JAPANESE.match(line) else " "
            whole[-1] += glue + line
        else:
            whole.append(line)
        goes_on = len(line) >= FULL_LINE and line[-1:] not in "。！？.!?：:"
    return whole


def terms(sentence: str) -> list[str]:
    found: list[str] = []
    for term in _TERMS.findall(sentence):
        if JAPANESE.match(term):
            # Compounds have no spaces: pairs of characters let their parts be counted together.
            found.extend(term[start : start + 2] for start in range(len(term) - 1))
        elif term.lower() not in _COMMON:
            found.append(term.lower())
    return found


def extract(text: str, characters: int, title: str = "") -> str:
    """The most important sentences, at most ``characters`` in all."""
    found = sentences(text)
    if not found:
        return re.sub(r"\s+", " ", text).strip()[:characters]
    occurs_in = Counter(term for sentence in found for term in set(terms(sentence)))
    title_terms = set(terms(title))

    def weight(position: int) -> float:
        own = terms(found[position])
        if not own:
            return 0.0
        shared = sum(math.log1p(occurs_in[term]) for term in own) / math.sqrt(len(own))
        about_title = len(title_terms.intersection(own)) / (len(title_terms) or 1)
        has_figures = 0.3 if re.search(r"\d", found[position]) else 0.0
        return shared + 2 * about_title + has_figures + (1.5 if position == 0 else 0.0)

    weights = [weight(position) for position in range(len(found))]
    least = max(weights) * LEAST_WEIGHT
    chosen: set[int] = set()
    used = 0
    for position in sorted(range(len(found)), key=weights.__getitem__, reverse=True):
        cost = len(found[position]) + 1
        if used + cost <= characters + 1 and weights[position] >= least:
            chosen.add(position)
            used += cost
    if not chosen:
        return found[0][: characters - 1] + "…"
    glue = "" if is_japanese(found[0]) else " "
    return glue.join(found[position] for position in sorted(chosen))
