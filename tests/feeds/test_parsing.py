from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from feeds.reading.charsets import decode, known_codec
from feeds.reading.parsing import NotAFeed, parse_feed, plain, usable_url

DATA = Path(__file__).parent.parent / "data" / "feeds"


def sample(name: str) -> bytes:
    return (DATA / name).read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "news_shift_jis.rdf",
        "news_utf_8.rdf",
        "news_utf_8_bom.rdf",
        "news_undeclared_shift_jis.rdf",
        "news_wrongly_declared.rdf",
    ],
)
def test_rdf_in_every_charset(name: str) -> None:
    parsed = parse_feed(sample(name))
    assert parsed.title == "新着情報①"
    assert [entry.title for entry in parsed.entries] == ["㈱通信の統計～速報値～", "制度の改正 & 意見募集"]
    assert parsed.entries[0].published_at == datetime(2026, 5, 1, 1, tzinfo=UTC)
    assert parsed.skipped == 0


def test_euc_jp() -> None:
    assert parse_feed(sample("news_euc_jp.rdf")).entries[0].title == "（株）通信の統計〜速報値〜"


def test_the_header_decides_when_nothing_inside_does() -> None:
    body = sample("news_euc_jp.rdf").replace(b' encoding="EUC-JP"', b"")
    parsed = parse_feed(body, content_type="text/xml; charset=EUC-JP")
    assert parsed.entries[0].title == "（株）通信の統計〜速報値〜"


def test_rss2_skips_broken_entries_with_a_count() -> None:
    parsed = parse_feed(sample("rss2.xml"), base_url="https://news.example.jp/feeds/rss2.xml")
    assert [(entry.url, entry.title) for entry in parsed.entries] == [
        ("https://news.example.jp/first.html", "First report"),
        ("https://news.example.jp/second.html", "Bold alert(1) title"),
    ]
    assert parsed.skipped == 5  # no link, no date, bad date, empty title, a link that is no address


def test_atom_prefers_published_to_updated() -> None:
    parsed = parse_feed(sample("atom.xml"))
    assert [(entry.title, entry.published_at.day) for entry in parsed.entries] == [
        ("One & two", 1),
        ("Only updated", 3),
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Mon, 16 Nov 2026 09:30:00 JST", "2026-11-16T00:30:00+00:00"),
        ("Mon, 16 Nov 2026 09:30:00 (JST)", "2026-11-16T00:30:00+00:00"),
        ("Mon Nov 16 09:30:00 JST 2026", "2026-11-16T00:30:00+00:00"),
        ("2026-11-16 09:30:00 JST", "2026-11-16T00:30:00+00:00"),
        ("2026/11/16 09:30", "2026-11-16T00:30:00+00:00"),
        ("2026.11.16", "2026-11-15T15:00:00+00:00"),
        ("2026年11月16日", "2026-11-15T15:00:00+00:00"),
        ("2026年11月16日 9時30分", "2026-11-16T00:30:00+00:00"),
        ("Mon, 16 Nov 2026 09:30:00", "2026-11-16T09:30:00+00:00"),
        ("Mon, 16 Nov 2026 09:30:00 +0900", "2026-11-16T00:30:00+00:00"),
        ("Mon, 16 Nov 2026 09:30:00 +0900 (JST)", "2026-11-16T00:30:00+00:00"),
        ("Mon, 16 Nov 2026 09:30:00 EST", "2026-11-16T14:30:00+00:00"),
        ("2026-11-16T09:30:00+09:00", "2026-11-16T00:30:00+00:00"),
        ("2026-11-16", "2026-11-16T00:00:00+00:00"),
        ("2026-11-16T09:30:00-05:00", "2026-11-16T14:30:00+00:00"),
        ("16 Nov 2026", "2026-11-16T00:00:00+00:00"),
    ],
)
def test_dates_as_they_are_written(written: str, expected: str) -> None:
    item = (
        f"<item><title>題名</title><link>https://news.example.jp/1</link><pubDate>{written}</pubDate></item>"
    )
    body = f'<rss version="2.0"><channel><title>t</title>{item}</channel></rss>'.encode()
    [entry] = parse_feed(body).entries
    assert entry.published_at.isoformat() == expected


@pytest.mark.parametrize(
    "written", ["yesterday", "2026年13月45日", "2026/02/30", "Mon, 31 Feb 2026 09:00:00 JST", "JST"]
)
def test_what_is_no_date_is_a_broken_entry(written: str) -> None:
    item = (
        f"<item><title>題名</title><link>https://news.example.jp/1</link><pubDate>{written}</pubDate></item>"
    )
    body = f'<rss version="2.0"><channel><title>t</title>{item}</channel></rss>'.encode()
    parsed = parse_feed(body)
    assert (parsed.entries, parsed.skipped) == ([], 1)


def test_a_broken_publication_leaves_the_update() -> None:
    dates = "<published>soon</published><updated>2026-11-16T00:30:00Z</updated>"
    entry = f'<entry><title>題名</title><link href="https://news.example.jp/1"/>{dates}</entry>'
    body = f'<feed xmlns="http://www.w3.org/2005/Atom"><title>t</title>{entry}</feed>'.encode()
    [entry_read] = parse_feed(body).entries
    assert entry_read.published_at.isoformat() == "2026-11-16T00:30:00+00:00"


def test_a_feed_that_is_not_well_formed_is_read_as_far_as_possible() -> None:
    parsed = parse_feed(sample("broken_in_the_middle.rdf"))
    assert "㈱通信の統計～速報値～" in [entry.title for entry in parsed.entries]


@pytest.mark.parametrize("body", [b"", b"   ", b"<html><body>404</body></html>", b"\x00\xff\xfe" * 50, b"{}"])
def test_what_is_no_feed_says_so(body: bytes) -> None:
    with pytest.raises(NotAFeed):
        parse_feed(body)


def feed_with(entities: str, title: str) -> bytes:
    return (
        f'<?xml version="1.0"?><!DOCTYPE rss [{entities}]><rss version="2.0"><channel><title>t</title>'
        f"<item><title>before {title} after</title><link>https://news.example.jp/x</link>"
        "<pubDate>Sat, 02 May 2026 00:00:00 GMT</pubDate></item></channel></rss>"
    ).encode()


def test_an_entity_bomb_does_not_go_off() -> None:
    entities = '<!ENTITY e0 "bombbomb">' + "".join(
        f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10)
    )
    for entry in parse_feed(feed_with(entities, "&e9;")).entries:
        assert "bomb" not in entry.title


def test_external_entities_are_inert(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    entities = f'<!ENTITY file SYSTEM "{secret.as_uri()}">'
    for entry in parse_feed(feed_with(entities, "&file;")).entries:
        assert "secret" not in entry.title


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("<b>太字</b>の題名", "太字の題名"),
        ("&lt;img src=x onerror=alert(1)&gt;題名", "題名"),
        ("a < b and c > d", "a < b and c > d"),
        ("一行\n二行\t三", "一行 二行 三"),
        ("制御\x07文字\u200b", "制御 文字"),
    ],
)
def test_titles_are_plain(title: str, expected: str) -> None:
    assert plain(title) == expected


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("https://a.jp/x", "https://a.jp/x"),
        ("../y.html", "https://base.jp/y.html"),
        (" /a b\u3000c.pdf?q=1 2 ", "https://base.jp/a%20b%E3%80%80c.pdf?q=1%202"),
        ("https://a b.jp/", None),
        ("https://a.jp/x\u2028y", None),
        ("", None),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("https://user:pw@a.jp/", None),
        ("https://a.jp/\x00", None),
        ("http://[bad", None),
        ("https://a.jp/" + "x" * 2000, None),
    ],
)
def test_usable_addresses(link: str, expected: str | None) -> None:
    assert usable_url(link, "https://base.jp/dir/feed.rdf") == expected


@pytest.mark.parametrize("name", ["hex", "rot13", "zip", "undefined", "idna", "no-such-charset", "base64"])
def test_codecs_that_are_no_charset_are_not_used(name: str) -> None:
    assert known_codec(name) is None
    assert decode(f'<?xml version="1.0" encoding="{name}"?>題名'.encode()).endswith("題名")


def test_a_few_broken_bytes_do_not_spoil_the_rest() -> None:
    text = decode(b'<?xml version="1.0" encoding="Shift_JIS"?>' + "題名".encode("cp932") + b"\xff\xff")
    assert "題名" in text
