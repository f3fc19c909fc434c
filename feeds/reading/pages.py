"""The text of a page and the documents it links to, from bytes in any charset, damaged or not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urldefrag, urljoin, urlsplit

import lxml.html
from lxml import etree

from feeds.reading.charsets import decode
from feeds.reading.parsing import plain, usable_url

NOT_CONTENT = "script style noscript template nav header footer aside form iframe svg".split()
BLOCKS = frozenset(
    "address article blockquote br caption dd div dl dt figure h1 h2 h3 h4 h5 h6 hr li main ol p pre section table "
    "tbody td th thead tr ul".split()
)
_CONTENTS_BODY = (
    "//*[@id='contentsBody' or contains(concat(' ', normalize-space(@class), ' '), ' contentsBody ')]"
)
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")


@dataclass(frozen=True)
class DocumentLink:
    url: str
    title: str


@dataclass(frozen=True)
class Page:
    title: str
    text: str
    documents: list[DocumentLink]


def read_page(body: bytes, *, url: str, content_type: str = "", max_characters: int = 20_000) -> Page:
    """The main content of a page: ``contentsBody`` where there is one, else the body without menus."""
    text = _XML_DECLARATION.sub("", decode(body, content_type).replace("\x00", ""), count=1)
    root = parsed_html(text)
    if root is None:
        return Page("", "", [])
    base = _base_of(root, url)
    titles = root.xpath("//title")
    content = main_content(root)
    for element in content.xpath("|".join(f".//{tag}" for tag in NOT_CONTENT)):
        element.drop_tree()  # unlike remove(), this keeps the text after the element
    return Page(
        title=plain(titles[0].text_content()) if titles else "",
        text=text_of(content)[:max_characters],
        documents=pdf_links(content, base),
    )


def parsed_html(text: str) -> lxml.html.HtmlElement | None:
    if not text.strip():
        return None
    parser = lxml.html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=False, remove_comments=True)
    try:
        return lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError):
        return None


def main_content(root: lxml.html.HtmlElement) -> lxml.html.HtmlElement:
    found = root.xpath(_CONTENTS_BODY) or root.xpath("//main") or root.xpath("//body")
    return found[0] if found else root


def _base_of(root: lxml.html.HtmlElement, url: str) -> str:
    for element in root.xpath("//base[@href]"):
        try:
            return urljoin(url, str(element.get("href", "")).strip())
        except ValueError:
            return url
    return url


def text_of(content: lxml.html.HtmlElement) -> str:
    """The text with a line for each block, without runs of spaces and empty lines."""
    parts: list[str] = []
    for event, element in etree.iterwalk(content, events=("start", "end")):
        if not isinstance(element.tag, str):
            continue
        if element.tag in BLOCKS:
            parts.append("\n")
        if event == "start" and element.text:
            parts.append(element.text.replace("\n", " ") if element.tag != "pre" else element.text)
        if event == "end" and element.tail and element is not content:
            parts.append(element.tail.replace("\n", " "))
    whole: str = "".join(parts)
    lines = (re.sub(r"\s+", " ", line).strip() for line in whole.split("\n"))
    return "\n".join(line for line in lines if line)


def pdf_links(content: lxml.html.HtmlElement, base: str) -> list[DocumentLink]:
    """Absolute links to PDFs, each document once, whatever the fragments of its links."""
    found: dict[str, DocumentLink] = {}
    for anchor in content.xpath(".//a[@href]"):
        try:
            link = urldefrag(urljoin(base, anchor.get("href", "").strip())).url
            is_pdf = urlsplit(link).path.lower().endswith(".pdf")
        except ValueError:
            continue
        url = usable_url(link, base)
        if url is not None and is_pdf:
            found.setdefault(url, DocumentLink(url, plain(anchor.text_content())[:300]))
    return list(found.values())
