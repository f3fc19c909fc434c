"""How Mastodon counts and shows a text."""

import re
import unicodedata
from html import escape

URL_LENGTH = 23

_URL = re.compile(r"https?://[A-Za-z0-9.\-]+(?::\d+)?(?:/[!-;=?-~]*[A-Za-z0-9/_=#&%~+\-])?/?")
_MENTION = re.compile(r"(?<![\w/])@(\w+)@[\w.\-]+\w")


def countable_length(text: str, spoiler_text: str = "") -> int:
    """How many characters Mastodon counts: a link 23, a far mention without its domain, one per grapheme."""
    shortened = _MENTION.sub(r"@\1", _URL.sub("x" * URL_LENGTH, text)) + spoiler_text
    joined = 0
    previous = ""
    for character in unicodedata.normalize("NFC", shortened):
        extends = unicodedata.combining(character) or character in "\u200d\ufe0e\ufe0f"
        if not extends and previous != "\u200d":
            joined += 1
        previous = character
    return joined


def content_html(text: str) -> str:
    """The text as Mastodon's HTML: paragraphs, line breaks, links."""

    def escaped(part: str) -> str:
        pieces, position = [], 0
        for link in _URL.finditer(part):
            pieces.append(escape(part[position : link.start()], quote=False))
            address = escape(link[0])
            pieces.append(f'<a href="{address}" rel="nofollow noopener" target="_blank">{address}</a>')
            position = link.end()
        return "".join(pieces) + escape(part[position:], quote=False)

    paragraphs = re.split(r"\n{2,}", text.replace("\r\n", "\n").strip())
    return "".join(f"<p>{escaped(part).replace(chr(10), '<br />')}</p>" for part in paragraphs)


def page_html(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="ja"><head><meta charset="utf-8"><title>{escape(title)} · sandbox</title>'
        "<style>body{font-family:sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem;line-height:1.7}"
        "article{border:1px solid #ccd;border-radius:.5rem;padding:.5rem 1rem;margin-bottom:1rem}"
        f"a{{overflow-wrap:anywhere}}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
    )
