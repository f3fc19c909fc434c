"""Parsing feeds: RSS 1.0/RDF, RSS 2.0 and Atom, in any charset. Nothing external is loaded."""

from __future__ import annotations

import calendar
import html
import io
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from zoneinfo import ZoneInfo

import feedparser

from broker_project.lib.hidden_text import without_hidden
from feeds.reading.charsets import decode

MAX_URL_LENGTH = 2000
MAX_TITLE_LENGTH = 1000

_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
# Document types declare entity bombs and external entities; no feed needs them.
_DOCTYPE_START = re.compile(r"<!DOCTYPE", re.IGNORECASE)
_DOCTYPE = re.compile(r"<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>", re.DOTALL | re.IGNORECASE)
# Not "[^>]*": a title of opening brackets alone would cost the square of its length.
_TAG = re.compile(r"<[a-zA-Z/!][^<>]*>")
_CHARACTER = re.compile(r"&#(?:[xX]([0-9a-fA-F]+)|([0-9]+));?")
_SPACES = re.compile(r"\s+")
_URL_SPACE = re.compile(r"[ \u3000]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # often in the place of a space

JAPAN = ZoneInfo("Asia/Tokyo")
_JST = re.compile(r"\s*\(?\bJST\b\)?")
_CLOCK = r"(?:\s*(\d{1,2})[:時](\d{1,2})(?:[:分](\d{1,2}))?[分秒]?)?"
_YEAR_FIRST = re.compile(r"(\d{4})\s?[年/.-]\s?(\d{1,2})\s?[月/.-]\s?(\d{1,2})日?" + _CLOCK)
_OFFSET = re.compile(r"[+-]\d{2}:?\d{2}\s*$")
_ISO_START = re.compile(r"\d{4}-")
_WITHOUT_ZONE = re.compile(r"(?:[A-Za-z]{3,9},\s*)?\d{1,2}\s[A-Za-z]{3,9}\s\d{4}\s\d{1,2}:\d{2}(?::\d{2})?")


class NotAFeed(Exception):
    """The bytes are not a feed. The text says why."""


@dataclass(frozen=True)
class Entry:
    url: str
    title: str
    published_at: datetime


@dataclass(frozen=True)
class ParsedFeed:
    title: str
    entries: list[Entry]
    skipped: int  # broken entries: no usable link, no date, or no title


def parse_feed(body: bytes, *, content_type: str = "", base_url: str = "") -> ParsedFeed:
    """Every usable entry once, in the feed's order. Raises :class:`NotAFeed`."""
    text = _XML_DECLARATION.sub("", decode(body, content_type), count=1)
    text = without_doctypes(text)
    text = _CHARACTER.sub(usable_character, text)
    try:
        # The two switches save the work on the HTML of descriptions, which are not used.
        parsed = feedparser.parse(
            io.BytesIO(text.encode("utf-8", "replace")),
            response_headers={"content-type": "application/xml; charset=utf-8"},
            resolve_relative_uris=False,
            sanitize_html=False,
        )
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        # feedparser raises these for some malformed dates, addresses and nesting.
        raise NotAFeed(f"it cannot be read ({type(error).__name__})") from error
    if not parsed.get("version") and not parsed.entries:
        problem = parsed.get("bozo_exception")
        raise NotAFeed(f"no RSS or Atom feed ({problem})" if problem else "no RSS or Atom feed")
    entries: dict[str, Entry] = {}
    skipped = 0
    for raw in parsed.entries:
        entry = read_entry(raw, base_url)
        if entry is None:
            skipped += 1
        else:
            entries.setdefault(entry.url, entry)
    return ParsedFeed(plain(parsed.feed.get("title", ""))[:300], list(entries.values()), skipped)


def usable_character(reference: re.Match[str]) -> str:
    """The character reference, or U+FFFD if there is no such character: feedparser fails on those."""
    hexadecimal, decimal = reference.groups()
    digits = (hexadecimal or decimal).lstrip("0") or "0"
    code = int(digits, 16 if hexadecimal else 10) if len(digits) <= 7 else 0x110000
    is_character = 0 < code < 0xD800 or 0xDFFF < code < 0x110000
    return reference.group(0) if is_character else "\ufffd"


def without_doctypes(text: str) -> str:
    """The text without declarations of document types. Raises :class:`NotAFeed` for one that never ends.

    That is refused at once: looking for the end after each of a million beginnings takes days.
    """
    parts, at = [], 0
    while start := _DOCTYPE_START.search(text, at):
        whole = _DOCTYPE.match(text, start.start())
        if whole is None:
            raise NotAFeed("a document type that never ends")
        parts.append(text[at : start.start()])
        at = whole.end()
    return "".join([*parts, text[at:]])


def read_entry(raw: dict[str, Any], base_url: str) -> Entry | None:
    """None if the entry is broken."""
    url = usable_url(str(raw.get("link") or ""), base_url)
    title = plain(str(raw.get("title") or ""))
    published_at = date_of(raw)
    if url is None or not title or published_at is None:
        return None
    return Entry(url, title[:MAX_TITLE_LENGTH], published_at)


def usable_url(link: str, base_url: str) -> str | None:
    # File names with spaces are often not quoted; browsers follow such links.
    link = _URL_SPACE.sub(lambda space: quote(space.group()), link.strip())
    try:
        url = urljoin(base_url, link) if link else ""
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        return None
    if not is_usable or "%" in parts.netloc or len(url) > MAX_URL_LENGTH or not url.isprintable():
        return None
    return url


def plain(text: str) -> str:
    """One line of text without markup, entities or hidden characters."""
    text = html.unescape(_TAG.sub("", text))
    # What was escaped twice has become markup now.
    text = _TAG.sub("", text)
    return _SPACES.sub(" ", without_hidden(_CONTROLS.sub(" ", text))).strip()


def date_of(raw: dict[str, Any]) -> datetime | None:
    """Published, else updated. By plain membership, because feedparser returns one for the other."""
    for name in ("published", "updated"):
        if dict.__contains__(raw, name):
            try:
                found = written_date(str(raw[name])) or moment(raw.get(f"{name}_parsed"))
            except ValueError:
                continue
            if found is not None:
                return found
    return None


def written_date(text: str) -> datetime | None:
    """Dates that feedparser misreads; None for all others. Raises ValueError for a day that does not exist.

    It takes JST for UTC, reads only the month of 2026/11/16 and 2026年11月16日, and fails on
    "Mon, 16 Nov 2026 09:00:00" without a zone, which is UTC here like its other dates without one.
    """
    text = text.strip()
    bare, is_jst = _JST.subn("", text)
    # In "+0900 (JST)" the offset decides.
    if is_jst and _OFFSET.search(bare):
        return None
    if (found := _YEAR_FIRST.fullmatch(bare)) and (is_jst or not _ISO_START.match(bare)):
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
        return datetime(year, month, day, hour, minute, second, tzinfo=JAPAN).astimezone(UTC)
    if (is_jst or _WITHOUT_ZONE.fullmatch(text)) and (parts := parsedate(bare)):
        return datetime(*parts[:6], tzinfo=JAPAN if is_jst else UTC).astimezone(UTC)
    return None


def moment(parts: Any) -> datetime | None:
    """feedparser's UTC time tuple as an aware datetime; None if it is not a date."""
    if not parts:
        return None
    try:
        return datetime.fromtimestamp(calendar.timegm(parts), UTC)
    except (ValueError, OverflowError, TypeError, OSError):
        return None
