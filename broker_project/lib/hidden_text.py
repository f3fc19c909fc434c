"""Characters that people do not see but models, terminals and parsers act on.

What somebody else wrote may carry zero-width letters, bidirectional overrides, tag characters, runs of variation
selectors or terminal escapes. :func:`without_hidden` takes them out of what goes to agents and models;
:func:`made_visible` shows them to people as ``[U+202E]``. Both use :func:`hidden_positions`, which allows what
belongs to ordinary writing: joined emoji, presentation selectors, one variation selector after an ideograph (Japanese
names use them), joiners inside scripts that need them, the three flags that are spelt with tags.

``is_invisible`` looks at a single character regardless of context, for names in which no such character is allowed.
"""

from __future__ import annotations

import re
import unicodedata

ZWNJ, ZWJ = "\u200c", "\u200d"
TEXT_STYLE, EMOJI_STYLE = "\ufe0e", "\ufe0f"
KEYCAP = "\u20e3"
PICTURED_SIGNS = "‼⁉↔〰"  # emoji whose Unicode category is punctuation or mathematics
# Line ends to some readers and invisible to others; all of them become a newline.
LINE_ENDS = str.maketrans(dict.fromkeys("\r\x0b\x0c\x85\u2028\u2029", "\n"))

# Invisible although their category is mark, letter or symbol; and ranges reserved for such characters.
INVISIBLE_RANGES = (
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian selectors
    (0x2028, 0x2029),  # line and paragraph separator
    (0x2065, 0x2065),
    (0x2800, 0x2800),  # blank Braille pattern
    (0x3164, 0x3164),  # Hangul filler
    (0xFDD0, 0xFDEF),  # noncharacters
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFFA0, 0xFFA0),  # half-width Hangul filler
    (0xFFF0, 0xFFF8),
    (0xE0000, 0xE0FFF),  # tags and the other variation selectors
)
IDEOGRAPHS = (
    (0x3005, 0x3007),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x323AF),
)
# Selectors of registered ideographic sequences. Allowing more would leave room for a hidden message.
IDEOGRAPHIC_SELECTORS = ((0xFE00, 0xFE02), (0xE0100, 0xE011F))
# Blocks of the scripts in which ZWJ and ZWNJ change how letters join: Arabic, Syriac, Indic ones, Khmer, Mongolian.
JOINING_SCRIPTS = ((0x0600, 0x08FF), (0x0900, 0x0DFF), (0x1000, 0x109F), (0x1780, 0x18AF), (0xA840, 0xABFF))
FLAG = "\U0001f3f4"
TAGGED_FLAGS = re.compile(
    "|".join(
        FLAG + "".join(chr(0xE0000 + ord(char)) for char in code) + "\U000e007f"
        for code in ("gbeng", "gbsct", "gbwls")
    )
)
# A superset of the invisible characters. Most text has none, so only matches are examined one by one.
SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\uffff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
    + "".join(chr(plane << 16 | last) for plane in range(1, 17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def _is_in(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(char)
    return any(low <= code <= high for low, high in ranges)


def is_invisible(char: str) -> bool:
    """Whether a character is invisible, regardless of context. Newlines, tabs and spaces count as visible."""
    if char in "\n\t":
        return False
    if unicodedata.category(char) in {"Cc", "Cf", "Cs"} or _is_in(char, INVISIBLE_RANGES):
        return True
    return ord(char) & 0xFFFE == 0xFFFE


def has_invisible(text: str) -> bool:
    """Whether any character is invisible, even one that is ordinary in some scripts."""
    return any(is_invisible(found.group()) for found in SUSPECT.finditer(text))


def hidden_positions(text: str) -> list[int]:
    """Positions of invisible characters that ordinary writing would not have there."""
    flags: set[int] = set()
    if FLAG in text:
        for found in TAGGED_FLAGS.finditer(text):
            flags.update(range(found.start(), found.end()))
    return [
        position
        for position in (found.start() for found in SUSPECT.finditer(text))
        if position not in flags and is_invisible(text[position]) and not _belongs(text, position)
    ]


def _belongs(text: str, position: int) -> bool:
    """Whether an invisible character is part of the writing around it."""
    char = text[position]
    before = text[position - 1] if position else ""
    after = text[position + 1] if position + 1 < len(text) else ""
    if char == "\r":
        return after == "\n"
    if not before:
        return False
    if char in (TEXT_STYLE, EMOJI_STYLE):
        return _is_pictured(before) or (before in "0123456789#*" and after == KEYCAP)
    if _is_in(char, IDEOGRAPHIC_SELECTORS):
        return _is_in(before, IDEOGRAPHS)
    if char == ZWJ and _ends_emoji(text, position):
        return bool(after) and _is_pictured(after)
    if char in (ZWJ, ZWNJ):
        return _is_in(before, JOINING_SCRIPTS) and (not after or not is_invisible(after))
    return False


def _ends_emoji(text: str, position: int) -> bool:
    """Whether an emoji ends before ``position``, with or without a style or skin colour."""
    before = text[position - 1]
    if before == EMOJI_STYLE and position > 1:
        before = text[position - 2]
    return _is_pictured(before)


def _is_pictured(char: str) -> bool:
    """Symbols that may be emoji, including code points that newer Unicode versions assign in their blocks."""
    return unicodedata.category(char) == "So" or char in PICTURED_SIGNS or 0x1F000 <= ord(char) <= 0x1FAFF


def hidden_count(text: str) -> int:
    return len(hidden_positions(text))


def without_hidden(text: str) -> str:
    """The text as a person sees it: for prompts, and for checks that hidden characters must not fool."""
    if SUSPECT.search(text) is None:  # it covers the other line ends as well
        return text
    plain = text.replace("\r\n", "\n").translate(LINE_ENDS)
    hidden = set(hidden_positions(plain))
    if not hidden:
        return plain
    return "".join(char for position, char in enumerate(plain) if position not in hidden)


def made_visible(text: str) -> str:
    """The text with each hidden character as ``[U+202E]``; plain text, still to be escaped for HTML."""
    hidden = set(hidden_positions(text))
    if not hidden:
        return text
    return "".join(
        f"[U+{ord(char):04X}]" if position in hidden else char for position, char in enumerate(text)
    )
