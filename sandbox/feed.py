"""A news site like a ministry's: feeds in three formats, Shift_JIS pages, PDFs, and their usual defects.

Besides the items, the state has `charset` (of news.rdf and the pages), `is_etag_on`, `bulk` (so many extra
entries) and, for a lively sandbox, `lively_seconds` between two new items. With `add`, items are put on top.
"""

import hashlib
import re
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from sandbox.core import System, iso
from sandbox.feed_hostile import hostile_routes, stream_bytes
from sandbox.feed_pages import (
    SITE_TITLE,
    Document,
    Item,
    atom,
    bulk_item,
    item_from,
    link,
    lively_item,
    page_html,
    rdf,
    rss2,
    seeded_items,
)
from sandbox.partial_state import refuse_unknown
from sandbox.pdf import make_pdf

CODECS = {"Shift_JIS": "cp932", "EUC-JP": "euc_jp", "UTF-8": "utf-8"}
LIVELY_SECONDS = 420
LIVELY_SHOWN = 24
MAX_BULK = 100_000


class Feed(System):
    name = "feed"

    def reset(self) -> None:
        self.items: list[Item] = []
        self.charset = "Shift_JIS"
        self.is_etag_on = True
        self.bulk = 0
        self.bulk_from = iso(self.world.clock.now())
        self.lively_seconds = LIVELY_SECONDS
        self.started_at = iso(self.world.clock.now())

    def seed(self) -> None:
        self.items = seeded_items(self.world.clock.now())

    def dump(self) -> dict[str, Any]:
        return {
            "items": [item.as_dict() for item in self.items],
            "charset": self.charset,
            "is_etag_on": self.is_etag_on,
            "bulk": self.bulk,
            "bulk_from": self.bulk_from,
            "lively_seconds": self.lively_seconds,
            "started_at": self.started_at,
        }

    def load(self, data: dict[str, Any]) -> None:
        """Keys that are missing keep their present value; `add` is a list of items to put on top."""
        refuse_unknown(data, {**self.dump(), "add": []})
        now = self.world.clock.now()
        items = self.items
        if "items" in data:
            items = [item_from(entry, now, number) for number, entry in enumerate(data["items"])]
        added = [
            item_from(entry, now, len(items) + number) for number, entry in enumerate(data.get("add", []))
        ]
        charset = str(data.get("charset", self.charset))
        bulk, lively_seconds = (
            int(data.get("bulk", self.bulk)),
            int(data.get("lively_seconds", self.lively_seconds)),
        )
        if charset not in CODECS:
            raise ValueError(f"charset must be one of {', '.join(CODECS)}")
        if not 0 <= bulk <= MAX_BULK or lively_seconds < 1:
            raise ValueError("bulk or lively_seconds is out of range")
        self.items, self.charset, self.bulk, self.lively_seconds = (
            [*items, *added],
            charset,
            bulk,
            lively_seconds,
        )
        self.is_etag_on = bool(data.get("is_etag_on", self.is_etag_on))
        self.bulk_from = str(data.get("bulk_from", self.bulk_from))
        self.started_at = str(data.get("started_at", self.started_at))

    def overview(self) -> dict[str, Any]:
        items = self.current()[:50]
        rows = [
            [
                iso(item.published),
                {"text": item.title or "(no title)", "href": link(item, self._base)},
                len(item.documents),
            ]
            for item in items
        ]
        return {"sections": [{"title": "News", "columns": ["published", "title", "PDFs"], "rows": rows}]}

    def routes(self) -> list[BaseRoute]:
        both = ["GET", "HEAD"]
        return [
            Route("/", self.index, methods=both),
            Route("/news.rdf", self.news_rdf, methods=both),
            Route("/rss2.xml", self.rss2_feed, methods=both),
            Route("/atom.xml", self.atom_feed, methods=both),
            Route("/menu_news/s-news/{slug}.html", self.page, methods=both),
            Route("/main_content/{name}", self.document, methods=both),
            *hostile_routes(self._base),
        ]

    def current(self) -> list[Item]:
        """Everything that the feed shows now, newest first."""
        items = [*self.items, *self._lively()]
        if self.bulk:
            since = datetime.fromisoformat(self.bulk_from)
            items += [bulk_item(number, self.bulk, since) for number in range(self.bulk)]
        return sorted(items, key=lambda item: item.published, reverse=True)

    def _lively(self) -> list[Item]:
        """One item for every slot of time since the start, the last few of them. Nothing is stored."""
        if not self.world.lively:
            return []
        first = self._slot(datetime.fromisoformat(self.started_at)) + 1
        last = self._slot(self.world.clock.now())
        return [self._lively_at(slot) for slot in range(max(first, last - LIVELY_SHOWN + 1), last + 1)]

    def _slot(self, moment: datetime) -> int:
        return int(moment.timestamp()) // self.lively_seconds

    def _lively_at(self, slot: int) -> Item:
        return lively_item(slot, datetime.fromtimestamp(slot * self.lively_seconds, UTC))

    # Feeds

    async def news_rdf(self, request: Request) -> Response:
        return self._feed(request, rdf(self.current(), self._base, self.charset), self.charset)

    async def rss2_feed(self, request: Request) -> Response:
        return self._feed(request, rss2(self.current(), self._base, "UTF-8"), "UTF-8")

    async def atom_feed(self, request: Request) -> Response:
        return self._feed(request, atom(self.current(), self._base, "EUC-JP"), "EUC-JP")

    def _feed(self, request: Request, text: str, charset: str) -> Response:
        body = text.encode(CODECS[charset], "xmlcharrefreplace")
        headers = {"content-type": "application/xml"}
        if not self.is_etag_on:
            return Response(body, headers=headers)
        newest = max((item.published for item in self.current()), default=self.world.clock.now())
        etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
        headers |= {"etag": etag, "last-modified": format_datetime(newest, usegmt=True)}
        if _is_unchanged(request, etag, newest):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    # Pages and documents

    async def index(self, request: Request) -> Response:
        shown = [(escape(link(item, self._base)), escape(item.title)) for item in self.current()[:100]]
        rows = "".join(f'<li><a href="{address}">{title}</a></li>' for address, title in shown)
        return HTMLResponse(f"<!doctype html><meta charset=utf-8><title>{SITE_TITLE}</title><ul>{rows}</ul>")

    async def page(self, request: Request) -> Response:
        item = self._find(request.path_params["slug"])
        if item is None:
            return Response("Not Found", status_code=404)
        body = page_html(item, self.charset).encode(CODECS[self.charset], "xmlcharrefreplace")
        # No charset in the header: as on the real site, only the page itself names it.
        return Response(body, headers={"content-type": "text/html"})

    def _find(self, slug: str) -> Item | None:
        kind, _, number = slug.rpartition("_")
        if kind == "90later01" and number.isdigit() and len(number) <= 12:
            return self._lively_at(int(number))
        if kind == "80bulk01" and number.isdigit() and int(number) < self.bulk:
            return bulk_item(int(number), self.bulk, datetime.fromisoformat(self.bulk_from))
        return next((item for item in self.items if item.slug == slug), None)

    async def document(self, request: Request) -> Response:
        document = self._find_document(request.path_params["name"])
        if document is None or document.is_missing:
            return Response("Not Found", status_code=404)
        headers = {"content-type": "application/pdf"}
        if not document.stream_mb:
            return Response(make_pdf(document.title, document.paragraphs), headers=headers)
        size = document.stream_mb * 2**20
        headers["content-length"] = str(size)
        if request.method == "HEAD":
            return Response(headers=headers)
        return StreamingResponse(stream_bytes(size, b"%PDF-1.5\n"), headers=headers)

    def _find_document(self, name: str) -> Document | None:
        later = re.fullmatch(r"later(\d{1,12})\.pdf", name)
        if later:
            return self._lively_at(int(later[1])).documents[0]
        documents = (document for item in self.items for document in item.documents)
        return next((document for document in documents if document.file_name == name), None)

    @property
    def _base(self) -> str:
        return f"{self.world.base_url}/{self.name}"


def _is_unchanged(request: Request, etag: str, newest: datetime) -> bool:
    known = request.headers.get("if-none-match")
    if known is not None:
        return etag in [part.strip().removeprefix("W/") for part in known.split(",")]
    since = request.headers.get("if-modified-since")
    if since is None:
        return False
    try:
        return newest.replace(microsecond=0) <= parsedate_to_datetime(since)
    except ValueError:
        return False
