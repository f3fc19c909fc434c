"""The site of the feed: its items, their pages, and the feed itself in three formats."""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from html import escape
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sandbox.core import iso

JST = ZoneInfo("Asia/Tokyo")
SITE_TITLE = "総務省新着情報（サンドボックス）"
DATA: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "feed.json").read_text(encoding="utf-8"))


@dataclass
class Document:
    name: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    is_missing: bool = False
    stream_mb: int = 0

    @property
    def file_name(self) -> str:
        return self.name.partition("?")[0]


@dataclass
class Item:
    """One piece of news. Without a link, a date or a title it is a broken entry of the feed."""

    slug: str
    title: str
    published_at: str
    section: str = "大臣官房"
    paragraphs: list[str] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    has_link: bool = True
    has_date: bool = True
    link: str | None = None

    @property
    def published(self) -> datetime:
        return datetime.fromisoformat(self.published_at).astimezone(UTC)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def item_from(entry: dict[str, Any], now: datetime, number: int) -> Item:
    """An item as the state gives it: only a title is needed. Raises KeyError, TypeError, ValueError."""
    given = dict(entry)
    hours_ago = float(given.pop("hours_ago", 0))
    documents = [Document(**document) for document in given.pop("documents", [])]
    given.setdefault("slug", f"99added01_{number:08d}")
    given.setdefault("published_at", iso(now - timedelta(hours=hours_ago)))
    item = Item(documents=documents, **given)
    item.published.isoformat()  # a bad date is refused here, not when the feed is read
    return item


def seeded_items(now: datetime) -> list[Item]:
    return [item_from(entry, now, number) for number, entry in enumerate(DATA["items"])]


def lively_item(slot: int, published_at: datetime) -> Item:
    """The news of one slot of time; the same slot always gives the same item."""
    topics = DATA["later"]
    topic = topics[slot % len(topics)]
    day = published_at.astimezone(JST)
    round_number = slot // len(topics) % 900 + 1
    title = f"{topic['title']}（第{round_number}報）"
    document = Document(
        f"later{slot:08d}.pdf", title, [f"{day:%Y年%m月%d日}現在の取りまとめ。", *topic["paragraphs"]]
    )
    return Item(
        f"90later01_{slot:08d}", title, iso(published_at), topic["section"], topic["paragraphs"], [document]
    )


def bulk_item(number: int, count: int, now: datetime) -> Item:
    """One item of a feed with thousands of entries, an hour apart."""
    published_at = iso(now - timedelta(hours=count - number))
    title = f"情報通信に関する統計表の更新（{number}）"
    paragraphs = [
        f"統計表{number}の数値を更新しました。前年の同じ月に比べて{number % 90 / 10}パーセントの変化です。"
    ]
    return Item(f"80bulk01_{number:08d}", title, published_at, "統計局", paragraphs)


def page_path(item: Item) -> str:
    return f"menu_news/s-news/{item.slug}.html"


def page_html(item: Item, charset: str) -> str:
    """A page as such sites have it: the content in one block, surrounded by navigation."""
    body = "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in item.paragraphs)
    links = "".join(
        f'<li><a href="../../main_content/{escape(document.name)}">{escape(document.title)}（PDF）</a></li>\n'
        for document in item.documents
    )
    if item.documents:
        # The same file twice, the second time with a fragment: a reader must not fetch it twice.
        first = escape(item.documents[0].name)
        links += f'<li><a href="../../main_content/{first}#page=1">別ウィンドウで開く</a></li>\n'
    day = item.published.astimezone(JST)
    return f"""<!DOCTYPE html>
<html lang="ja"><head><meta http-equiv="Content-Type" content="text/html; charset={charset}">
<title>総務省｜報道資料｜{escape(item.title)}</title>
<script>window.dataLayer = window.dataLayer || []; var menu = "採用情報 準備中";</script>
<style>.contentsBody {{ margin: 1em; }}</style></head>
<body>
<div class="globalNavi"><ul><li><a href="/feed/">ホーム</a></li>
<li><a href="/feed/about.html">組織案内</a></li>
<li><a href="/feed/sitemap.pdf">サイトマップ（PDF）</a></li><li>職員採用情報</li></ul></div>
<div class="topicPath">トップ &gt; 広報・報道 &gt; 報道資料一覧</div>
<div class="contentsBody">
<h1>{escape(item.title)}</h1>
<p class="date">{day.year}年{day.month}月{day.day}日　{escape(item.section)}</p>
{body}<ul class="files">
{links}</ul>
</div>
<div class="rightColumn"><h2>関連情報</h2><p>人事異動の一覧は作成中です。</p></div>
<div class="footer">郵便番号000-0000　問合せ先一覧　<a href="/feed/policy.html">このサイトについて</a></div>
</body></html>
"""


def rdf(items: list[Item], base: str, charset: str) -> str:
    """RSS 1.0, the ministry's own format."""
    linked = [item for item in items if item.has_link]
    order = "".join(f'<rdf:li rdf:resource="{escape(link(item, base))}"/>\n' for item in linked)
    entries = []
    for item in items:
        about = f' rdf:about="{escape(link(item, base))}"' if item.has_link else ""
        address = f"<link>{escape(link(item, base))}</link>" if item.has_link else ""
        date = f"<dc:date>{item.published.astimezone(JST).isoformat()}</dc:date>" if item.has_date else ""
        entries.append(f"<item{about}>\n<title>{escape(item.title)}</title>{address}{date}\n</item>\n")
    return f"""<?xml version="1.0" encoding="{charset}"?>
<rdf:RDF xmlns="http://purl.org/rss/1.0/" xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
 xmlns:dc="http://purl.org/dc/elements/1.1/" xml:lang="ja">
<channel rdf:about="{base}/news.rdf">
<title>{SITE_TITLE}</title><link>{base}/</link><description>報道資料の新着情報</description>
<items><rdf:Seq>
{order}</rdf:Seq></items>
</channel>
{"".join(entries)}</rdf:RDF>
"""


def rss2(items: list[Item], base: str, charset: str) -> str:
    entries = []
    for item in items:
        address = f"<link>{escape(link(item, base))}</link><guid>{escape(link(item, base))}</guid>"
        date = f"<pubDate>{format_datetime(item.published)}</pubDate>" if item.has_date else ""
        entries.append(
            f"<item><title>{escape(item.title)}</title>{address if item.has_link else ''}{date}</item>\n"
        )
    return f"""<?xml version="1.0" encoding="{charset}"?>
<rss version="2.0"><channel><title>{SITE_TITLE}</title><link>{base}/</link><description>新着情報</description>
{"".join(entries)}</channel></rss>
"""


def atom(items: list[Item], base: str, charset: str) -> str:
    newest = max((item.published for item in items), default=datetime(2026, 1, 1, tzinfo=UTC))
    entries = []
    for number, item in enumerate(items):
        address = f'<link rel="alternate" href="{escape(link(item, base))}"/>' if item.has_link else ""
        date = f"<updated>{iso(item.published)}</updated>" if item.has_date else ""
        identity = escape(link(item, base)) if item.has_link else f"urn:sandbox:entry:{number}"
        entries.append(
            f"<entry><id>{identity}</id><title>{escape(item.title)}</title>{address}{date}</entry>\n"
        )
    return f"""<?xml version="1.0" encoding="{charset}"?>
<feed xmlns="http://www.w3.org/2005/Atom" xml:lang="ja"><id>{base}/atom.xml</id><title>{SITE_TITLE}</title>
<link rel="self" href="{base}/atom.xml"/><updated>{iso(newest)}</updated>
{"".join(entries)}</feed>
"""


def link(item: Item, base: str) -> str:
    return item.link or f"{base}/{page_path(item)}"
