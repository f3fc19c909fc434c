"""Decoding pages and feeds, by what they declare and by their bytes.

"Shift_JIS" on Japanese sites means Microsoft's cp932: ①, ㈱ and ～ are not in the standard Shift_JIS.
"""

from __future__ import annotations

import codecs
import re
from email.message import Message

ALIASES = dict.fromkeys(
    ("shift_jis", "shift-jis", "sjis", "x-sjis", "ms_kanji", "windows-31j", "csshiftjis"), "cp932"
)
GUESSES = ("utf-8", "cp932", "euc_jp")
BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
HEAD_BYTES = 4096

_XML_DECLARED = re.compile(rb"""<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._:-]+)["']""")
_HTML_DECLARED = re.compile(rb"""<meta[^>]*?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]+)""", re.IGNORECASE)


def decode(body: bytes, content_type: str = "") -> str:
    """The text of a feed or page. Never fails: bytes that cannot be decoded become U+FFFD."""
    for bom, name in BOMS:
        if body.startswith(bom):
            return body.decode(name, "replace")
    declared = [name for name in (_declared_inside(body), _charset_of(content_type)) if name]
    for name in [*declared, *GUESSES]:
        try:
            return body.decode(name)
        except UnicodeDecodeError:
            continue
    # A few broken bytes must not turn a whole Japanese page into nonsense.
    return body.decode(declared[0] if declared else "utf-8", "replace")


def is_binary(body: bytes, content_type: str = "") -> bool:
    """Whether it is a picture, an archive or the like: by its type, or because text has no NUL near its start."""
    if content_type.strip().lower().startswith(("image/", "audio/", "video/", "font/")):
        return True
    if body.startswith(tuple(bom for bom, _ in BOMS)):
        return False
    is_wide = (_charset_of(content_type) or "").startswith(("utf-16", "utf-32"))
    return b"\x00" in body[:64] and not is_wide


def _declared_inside(body: bytes) -> str | None:
    head = body[:HEAD_BYTES]
    found = _XML_DECLARED.search(head) or _HTML_DECLARED.search(head)
    return known_codec(found.group(1).decode("ascii")) if found else None


def _charset_of(content_type: str) -> str | None:
    message = Message()
    message["content-type"] = content_type.replace("\r", " ").replace("\n", " ")
    charset = message.get_content_charset()
    return known_codec(charset) if charset else None


def known_codec(name: str) -> str | None:
    """Python's codec for a declared charset; None if it is unknown or not a text encoding."""
    name = name.strip().lower()
    name = ALIASES.get(name, name)
    try:
        info = codecs.lookup(name)
    except LookupError:
        return None
    is_text = info._is_text_encoding and info.name not in ("idna", "punycode", "undefined")
    return info.name if is_text else None
