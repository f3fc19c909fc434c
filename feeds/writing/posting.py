"""A post's text: title, summary, address, within the instance's limit. Pure."""

from __future__ import annotations

import re
import unicodedata

from broker_project.lib.hidden_text import without_hidden
from feeds.prompt_texts import filled

ELLIPSIS = "…"
MIN_SUMMARY_CHARACTERS = 20

LINK = re.compile(r"https?://[^\s<>\"'「」『』（）()【】、。]+", re.IGNORECASE)
# Behind a letter of another script an @ may call somebody, too; behind a Latin one it is an e-mail address.
MENTION = re.compile(r"(?<![A-Za-z0-9_/])[@＠]+([A-Za-z0-9_][\w.-]*(?:[@＠][\w.-]+)?)")
_SPACES = re.compile(r"[^\S\n]+")


def countable_length(text: str, link_characters: int) -> int:
    """How many characters Mastodon counts at the most: each link so many, one for each other character."""
    without_links = LINK.sub("", text)
    links = len(LINK.findall(text))
    return len(unicodedata.normalize("NFC", without_links)) + links * link_characters


def without_foreign_links(text: str, source: str) -> str:
    """The text without addresses that the source does not have."""
    known = {link.rstrip(".,;") for link in LINK.findall(source)}
    return LINK.sub(lambda match: match.group(0) if match.group(0).rstrip(".,;") in known else "", text)


def without_mentions(text: str) -> str:
    """The text with every @name as a plain name: it notifies nobody."""
    while MENTION.search(text):  # what is left of one may be another
        text = MENTION.sub(lambda match: match.group(1).replace("@", " ").replace("＠", " "), text)
    return text


def tidy(text: str) -> str:
    return "\n".join(_SPACES.sub(" ", line).strip() for line in text.strip().splitlines()).strip()


def shortened(text: str, characters: int) -> str:
    """At most so many characters, cut after a sentence if that keeps at least half, else with an ellipsis."""
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
    """The post. The summary gives way first, then the title; the address is always whole.

    Links in the title or the summary would be made clickable by Mastodon, so neither keeps any.
    """
    title, summary = (tidy(without_mentions(LINK.sub("", without_hidden(part)))) for part in (title, summary))

    def whole(title: str, summary: str) -> str:
        return tidy(filled(template, {"title": title, "summary": summary, "url": url}))

    def left_over(title: str, summary: str) -> int:
        return max_characters - _length(whole(title, summary), url, link_characters)

    over = -left_over(title, summary)
    if over > 0:
        summary = shortened(summary, max(MIN_SUMMARY_CHARACTERS, len(summary) - over))
    over = -left_over(title, summary)
    if over > 0:
        title = shortened(title, max(0, len(title) - over))
    over = -left_over(title, summary)
    if over > 0:
        summary = shortened(summary, max(0, len(summary) - over))
    return whole(title, summary)


def _length(text: str, url: str, link_characters: int) -> int:
    """Counts the item's own address as one link, whatever characters it has."""
    return countable_length(text.replace(url, "", 1), link_characters) + link_characters
