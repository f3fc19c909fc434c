"""A post's text: title, summary, address, within the instance's limit. Pure."""

from __future__ import annotations

import re
import unicodedata

from broker_project.lib.hidden_text import without_hidden
from feeds.prompt_texts import filled

ELLIPSIS = "…"
MIN_SUMMARY_CHARACTERS = 20

LINK = re.compile(r"https?://[^\s<>\"'「」『』（）()【】、。]+", re.IGNORECASE)
# After a Latin letter an @ is part of an e-mail address; after other letters it may mention somebody.
MENTION = re.compile(r"(?<![A-Za-z0-9_/])[@＠]+([A-Za-z0-9_][\w.-]*(?:[@＠][\w.-]+)?)")
_SPACES = re.compile(r"[^\S\n]+")


def countable_length(text: str, link_characters: int) -> int:
    """The most that Mastodon counts: so many for each link, one for each other character."""
    without_links = LINK.sub("", text)
    links = len(LINK.findall(text))
    return len(unicodedata.normalize("NFC", without_links)) + links * link_characters


def without_foreign_links(text: str, source: str) -> str:
    """The text without links that the source does not contain."""
    known = {link.rstrip(".,;") for link in LINK.findall(source)}
    return LINK.sub(lambda match: match.group(0) if match.group(0).rstrip(".,;") in known else "", text)


def without_mentions(text: str) -> str:
    """The text with every @name as a plain name, so that it notifies nobody."""
    while MENTION.search(text):  # the rest of one may be another
        text = MENTION.sub(lambda match: match.group(1).replace("@", " ").replace("＠", " "), text)
    return text


def tidy(text: str) -> str:
    return "\n".join(_SPACES.sub(" ", line).strip() for line in text.strip().splitlines()).strip()


def shortened(text: str, characters: int) -> str:
    """At most so many characters: cut after a sentence if that keeps at least half, else with an ellipsis."""
    if len(text) <= characters:
        return text
    head = text[: max(0, characters)]
    ends = [match.end() for match in re.finditer(r"[。！？!?]|\.(?=\s|$)", head)]
    if ends and ends[-1] >= characters // 2:
        return head[: ends[-1]]
    return head[: max(0, characters - 1)].rstrip() + ELLIPSIS


def compose(
    template: str, *, title: str, summary: str, url: str, max_characters: int, link_characters: int
) -> str:
    """The post. The summary is shortened first, then the title; the address is always whole.

    Mastodon would make links in the title or the summary clickable, so they are removed.
    """
    title, summary = (tidy(without_mentions(LINK.sub("", without_hidden(part)))) for part in (title, summary))

    def whole(title: str, summary: str) -> str:
        return tidy(filled(template, {"title": title, "summary": summary, "url": url}))

    def excess(title: str, summary: str) -> int:
        # The item's own address is one link, whatever characters it has.
        rest = whole(title, summary).replace(url, "", 1)
        return countable_length(rest, link_characters) + link_characters - max_characters

    if (over := excess(title, summary)) > 0:
        summary = shortened(summary, max(MIN_SUMMARY_CHARACTERS, len(summary) - over))
    if (over := excess(title, summary)) > 0:
        title = shortened(title, max(0, len(title) - over))
    if (over := excess(title, summary)) > 0:
        summary = shortened(summary, max(0, len(summary) - over))
    return whole(title, summary)
