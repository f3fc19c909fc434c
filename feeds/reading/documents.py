"""Fetching and reading an item's page and its documents."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from broker_project.lib.errors import OutsideError, Rejected, TooLarge
from broker_project.lib.http import Fetcher
from broker_project.lib.redaction import redact
from feeds.reading.charsets import is_binary
from feeds.reading.pages import DocumentLink, Page, read_page
from feeds.reading.pdf_reader import UnreadablePdf, read_pdf

MAX_PAGE_BYTES = 8 * 2**20
MAX_DOCUMENT_BYTES = 50 * 2**20  # of decoded content
DOCUMENT_CHARACTERS = 30_000
PDF = "application/pdf"


@dataclass(frozen=True)
class ReadDocument:
    url: str
    title: str
    size: int
    pages: int
    text: str
    path: Path


@dataclass(frozen=True)
class Material:
    """The page and documents of an item. ``outcomes`` tells for each linked document whether it was read."""

    url: str
    title: str
    page: Page
    documents: list[ReadDocument]
    outcomes: list[dict[str, Any]]

    @property
    def source_text(self) -> str:
        return "\n".join([self.title, self.url, self.page.text, *(entry.text for entry in self.documents)])

    @property
    def has_text(self) -> bool:
        return bool(self.page.text.strip()) or any(document.text.strip() for document in self.documents)


class DocumentsFailed(Exception):
    """A document could not be fetched, or none could be used."""

    def __init__(self, message: str, outcomes: list[dict[str, Any]], *, all_too_large: bool) -> None:
        super().__init__(message)
        self.outcomes = outcomes
        self.all_too_large = all_too_large


def fetch_page(fetcher: Fetcher, url: str, *, max_characters: int) -> Page:
    """The page at an item's address. If that is a PDF itself, a page with this one document."""
    alone = Page("", "", [DocumentLink(url, "")])
    if urlsplit(url).path.lower().endswith(".pdf"):
        return alone
    try:
        fetched = fetcher.fetch(url, max_bytes=MAX_PAGE_BYTES)
    except TooLarge as error:
        # Documents have a larger limit than pages; it is applied when the document is downloaded.
        if error.content_type != PDF:
            raise
        return alone
    if fetched.body.startswith(b"%PDF-"):
        return alone
    content_type = fetched.headers.get("content-type", "")
    if is_binary(fetched.body, content_type):
        raise Rejected(
            urlsplit(fetched.url).hostname or "", f"no page but {content_type[:60] or 'binary data'}"
        )
    return read_page(fetched.body, url=fetched.url, content_type=content_type, max_characters=max_characters)


@contextmanager
def fetched_material(
    fetcher: Fetcher,
    *,
    url: str,
    title: str,
    folder: Path,
    page_characters: int,
    max_documents: int,
    between: Callable[[], None] = lambda: None,
) -> Iterator[Material]:
    """Page and documents of an item; the files are removed when the block ends. ``between`` runs after each fetch.

    Raises :class:`OutsideError` if the page cannot be fetched, :class:`DocumentsFailed` for its documents.
    """
    page = fetch_page(fetcher, url, max_characters=page_characters)
    between()
    folder.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="item-", dir=folder))
    try:
        documents: list[ReadDocument] = []
        outcomes: list[dict[str, Any]] = []
        for number, link in enumerate(page.documents):
            outcome: dict[str, Any] = {"url": link.url, "title": link.title}
            outcomes.append(outcome)
            if number >= max_documents:
                outcome["state"] = "left out"
                continue
            path = own / f"{number}.pdf"
            try:
                size = fetcher.download(link.url, path, max_bytes=MAX_DOCUMENT_BYTES)
                outcome["size"] = size
                read = read_pdf(path, max_characters=DOCUMENT_CHARACTERS)
            except TooLarge as error:
                outcome |= {"state": "too large", "error": redact(str(error), 300)}
            except UnreadablePdf as error:
                outcome |= {"state": "unreadable", "error": redact(str(error), 300)}
            except OutsideError as error:
                outcome |= {"state": "not fetched", "error": redact(str(error), 300)}
                raise DocumentsFailed(f"{link.url}: {error}", outcomes, all_too_large=False) from error
            else:
                outcome |= {"state": "read", "pages": read.pages}
                documents.append(ReadDocument(link.url, link.title, size, read.pages, read.text, path))
            between()
        tried = [outcome for outcome in outcomes if outcome["state"] != "left out"]
        if tried and not documents:
            all_too_large = all(outcome["state"] == "too large" for outcome in tried)
            what = "all documents are over 50 MB" if all_too_large else "no document can be read"
            raise DocumentsFailed(what, outcomes, all_too_large=all_too_large)
        yield Material(url, title, page, documents, outcomes)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def remove_leftovers(folder: Path, older_than_seconds: float, now: float) -> int:
    """Remove the folders of processes that were killed. Those in use are younger than any lease."""
    removed = 0
    for path in folder.glob("item-*"):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > older_than_seconds:
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
    return removed
