"""The feed's stand-in, read by feedparser, lxml and pypdf, fetched by httpx."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any
from urllib.parse import urljoin

import feedparser
import httpx
import pytest
from lxml import etree, html
from pypdf import PdfReader
from pypdf.errors import FileNotDecryptedError, PyPdfError

from sandbox.feed_hostile import BOMB_BYTES
from sandbox.launcher import SandboxHandle, start_sandbox


def fetch(sandbox: SandboxHandle, path: str, **options: Any) -> httpx.Response:
    return sandbox.client.get(f"/feed/{path}", **options)


def entries(answer: httpx.Response, codec: str | None = None) -> list[Any]:
    """What feedparser finds; with a codec, in the text as decoded by us."""
    content = answer.content
    if codec:
        content = content.decode(codec).replace("Shift_JIS", "utf-8", 1).encode()
    parsed = feedparser.parse(content)
    assert not parsed.bozo, parsed.get("bozo_exception")
    return list(parsed.entries)


def pdf_text(data: bytes) -> str:
    return "".join(page.extract_text() for page in PdfReader(io.BytesIO(data)).pages).replace("\n", "")


def pages(sandbox: SandboxHandle) -> dict[str, tuple[str, httpx.Response]]:
    """Every page of the feed by title, with its address."""
    found = entries(fetch(sandbox, "rss2.xml"))
    return {entry.title: (entry.link, sandbox.client.get(entry.link)) for entry in found}


def main_content(page: httpx.Response) -> Any:
    # Decoded by us: libxml2 takes Shift_JIS literally and loses the page at the first ①.
    [block] = html.fromstring(page.content.decode("cp932")).xpath('//div[@class="contentsBody"]')
    return block


def test_three_formats_in_three_charsets_say_the_same(sandbox: SandboxHandle) -> None:
    rdf, rss2, atom = (fetch(sandbox, name) for name in ("news.rdf", "rss2.xml", "atom.xml"))
    assert b'encoding="Shift_JIS"' in rdf.content
    assert b'encoding="EUC-JP"' in atom.content
    by_format = [entries(rdf, "cp932"), entries(rss2), entries(atom)]
    titles = [[entry.title for entry in found] for found in by_format]
    assert titles[0] == titles[1] == titles[2]
    assert len(titles[0]) == 14
    assert [entry.link for entry in by_format[0]] == [entry.link for entry in by_format[2]]
    moments = [
        entry.get("published_parsed") or entry.get("updated_parsed") for found in by_format for entry in found
    ]
    assert None not in moments


def test_declared_shift_jis_holds_characters_of_windows_only(sandbox: SandboxHandle) -> None:
    content = fetch(sandbox, "news.rdf").content
    assert "統計調査①～速報値" in content.decode("cp932")
    with pytest.raises(UnicodeDecodeError):
        content.decode("shift_jis")


@pytest.mark.parametrize("name", ["news.rdf", "rss2.xml", "atom.xml"])
def test_unchanged_feed_is_not_sent_again(sandbox: SandboxHandle, name: str) -> None:
    first = fetch(sandbox, name)
    validators = {
        "If-None-Match": first.headers["etag"],
        "If-Modified-Since": first.headers["last-modified"],
    }
    for header, value in validators.items():
        again = fetch(sandbox, name, headers={header: value})
        assert (again.status_code, again.content) == (304, b"")
    sandbox.load("feed", {"add": [{"title": "新しいお知らせ"}]})
    changed = fetch(sandbox, name, headers=validators)
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]
    sandbox.load("feed", {"is_etag_on": False})
    assert "etag" not in fetch(sandbox, name, headers=validators).headers


def test_pages_are_shift_jis_with_the_content_amid_noise(sandbox: SandboxHandle) -> None:
    found = pages(sandbox)
    for _, page in found.values():
        assert page.headers["content-type"] == "text/html"
        text = main_content(page).text_content()
        assert "職員採用情報" in page.content.decode("cp932")
        assert "職員採用情報" not in text
    texts = [main_content(page).text_content() for _, page in found.values()]
    for marker in ("準備中", "人事異動", "開催案内"):
        assert sum(marker in text for text in texts) == 1


def test_pdf_links_lead_to_pdfs_whose_text_comes_back(sandbox: SandboxHandle) -> None:
    links: set[str] = set()
    for address, page in pages(sandbox).values():
        hrefs = main_content(page).xpath(".//a/@href")
        links |= {urljoin(address, href).partition("#")[0] for href in hrefs}
    assert any(link.endswith(".PDF") for link in links)
    assert any(link.endswith(".pdf?v=2") for link in links)
    answers = {link: sandbox.client.head(link) for link in links}
    assert [answer.status_code for answer in answers.values()].count(404) == 1
    sizes = {link: int(answer.headers["content-length"]) for link, answer in answers.items()}
    assert [size for size in sizes.values() if size > 50 * 2**20] == [64 * 2**20]
    readable = [link for link, answer in answers.items() if answer.status_code == 200 and sizes[link] < 2**20]
    assert len(readable) >= 10
    for link in readable:
        assert "。" in pdf_text(sandbox.client.get(link).content)
    disaster = next(link for link in readable if "000982611" in link)
    assert "発災から24時間以内に避難所へ到着できるよう、全国を10の区域に分けて車両を配備する。" in pdf_text(
        sandbox.client.get(disaster).content
    )


def test_title_with_markup_is_text_and_not_markup(sandbox: SandboxHandle) -> None:
    title, (_, page) = next(item for item in pages(sandbox).items() if "デジタル活用支援" in item[0])
    assert "<script>alert('x')</script>" in title
    assert main_content(page).xpath(".//script") == []
    assert main_content(page).xpath("string(.//h1)") == title


def test_large_document_is_streamed_in_full(sandbox: SandboxHandle) -> None:
    with httpx.stream("GET", f"{sandbox.base_url}/feed/main_content/000983501_all.pdf") as answer:
        pieces = answer.iter_bytes()
        first = next(pieces)
        size = len(first) + sum(len(piece) for piece in pieces)
    assert first.startswith(b"%PDF-")
    assert size == 64 * 2**20


def test_ten_thousand_entries(sandbox: SandboxHandle) -> None:
    sandbox.load("feed", {"bulk": 10_000})
    # Not by feedparser, which takes seconds for it.
    links = etree.fromstring(fetch(sandbox, "rss2.xml").content).xpath("//item/link/text()")
    assert len(set(links)) == 10_014
    page = sandbox.client.get(next(link for link in links if link.endswith("_00009999.html")))
    assert "統計表9999の" in main_content(page).text_content()


def test_broken_entries_and_other_charsets(sandbox: SandboxHandle) -> None:
    broken = [
        {"title": "リンクなし", "has_link": False},
        {"title": "日付なし", "has_date": False},
        {"title": ""},
    ]
    sandbox.load("feed", {"items": broken, "charset": "EUC-JP"})
    found = entries(fetch(sandbox, "news.rdf"))
    assert [("link" in entry, "updated" in entry, entry.get("title", "")) for entry in found] == [
        (False, True, "リンクなし"),
        (True, False, "日付なし"),
        (True, True, ""),
    ]
    for wrong in (
        {"charset": "latin-1"},
        {"items": [{"title": "x", "published_at": "gestern"}]},
        {"bulk": -1},
    ):
        with pytest.raises(httpx.HTTPStatusError):
            sandbox.load("feed", wrong)
    assert len(sandbox.state("feed")["items"]) == 3


def test_model_judges_the_seeded_pages_as_a_reader_would(sandbox: SandboxHandle) -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"verdict": {"type": "STRING", "enum": ["YES", "NO", "WAIT"]}},
        "required": ["verdict"],
    }
    verdicts: dict[str, list[str]] = {"YES": [], "NO": [], "WAIT": []}
    for title, (_, page) in pages(sandbox).items():
        text = main_content(page).text_content()
        answer = sandbox.client.post(
            f"{sandbox.base_url}/gemini/v1beta/models/gemini-2.5-flash:generateContent",
            headers={"x-goog-api-key": "key"},
            json={
                "contents": [{"parts": [{"text": f"準備中か判定。<page>{text}</page>"}]}],
                "generationConfig": {"responseSchema": schema},
            },
        )
        verdict = json.loads(answer.json()["candidates"][0]["content"]["parts"][0]["text"])["verdict"]
        verdicts[verdict].append(title)
    assert {verdict: len(titles) for verdict, titles in verdicts.items()} == {"YES": 11, "NO": 2, "WAIT": 1}


@pytest.mark.parametrize("system", ["gemini", "mastodon", "football", "gcs", "feed"])
def test_state_loaded_again_changes_nothing(sandbox: SandboxHandle, system: str) -> None:
    state = sandbox.state(system)
    sandbox.load(system, state)
    assert sandbox.state(system) == state


def test_faults_work_on_pages(sandbox: SandboxHandle) -> None:
    sandbox.fault("feed", "truncate", path="news.rdf")
    with pytest.raises(httpx.RemoteProtocolError):
        fetch(sandbox, "news.rdf")
    sandbox.fault("feed", "status", status=503, path="news.rdf")
    assert fetch(sandbox, "news.rdf").status_code == 503
    assert fetch(sandbox, "news.rdf").status_code == 200


@pytest.mark.process
def test_lively_feed_grows_with_the_clock_within_bounds() -> None:
    with start_sandbox(lively=True) as sandbox:
        before = entries(fetch(sandbox, "rss2.xml"))
        sandbox.set_clock(1000)
        later = entries(fetch(sandbox, "rss2.xml"))
        new = [entry for entry in later if entry.link not in {known.link for known in before}]
        assert len(new) in (2, 3)
        page = sandbox.client.get(new[0].link)
        link = urljoin(new[0].link, main_content(page).xpath(".//a/@href")[0])
        assert new[0].title in pdf_text(sandbox.client.get(link).content)
        sandbox.set_clock(30 * 86400)
        assert len(entries(fetch(sandbox, "rss2.xml"))) == 14 + 24


def test_endless_stream_ends_only_with_the_reader(sandbox: SandboxHandle) -> None:
    size = 0
    with httpx.stream("GET", f"{sandbox.base_url}/feed/hostile/endless") as answer:
        assert "content-length" not in answer.headers
        for piece in answer.iter_bytes():
            size += len(piece)
            if size > 20 * 2**20:
                break
    assert size > 20 * 2**20
    assert fetch(sandbox, "news.rdf").status_code == 200


def test_gzip_bomb_is_small_on_the_wire(sandbox: SandboxHandle) -> None:
    with httpx.stream("GET", f"{sandbox.base_url}/feed/hostile/gzip-bomb") as answer:
        raw = b"".join(answer.iter_raw())
    assert len(raw) < 2**20
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    assert len(unpacker.decompress(raw, 2**20)) == 2**20
    assert BOMB_BYTES == 200 * 2**20


def test_lengths_that_lie(sandbox: SandboxHandle) -> None:
    address = f"{sandbox.base_url}/feed/hostile/lying-length"
    assert httpx.head(address).headers["content-length"] == "1000"
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(address)
    with httpx.stream("GET", address, params={"mode": "more"}) as answer:
        assert sum(len(piece) for piece in answer.iter_bytes()) == 60 * 2**20


def test_redirects(sandbox: SandboxHandle) -> None:
    to = "http://169.254.169.254/latest/"
    assert fetch(sandbox, "hostile/redirect", params={"to": to}).headers["location"] == to
    with pytest.raises(httpx.TooManyRedirects):
        fetch(sandbox, "hostile/redirect-loop", follow_redirects=True)


def test_slow_answer_outlasts_a_read_timeout(sandbox: SandboxHandle) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{sandbox.base_url}/feed/hostile/slow?seconds=5", timeout=0.3)
    assert fetch(sandbox, "hostile/slow?seconds=1").text == ".end"


def test_big_answer_with_and_without_a_length(sandbox: SandboxHandle) -> None:
    address = f"{sandbox.base_url}/feed/hostile/big"
    assert httpx.head(address, params={"mb": 51}).headers["content-length"] == str(51 * 2**20)
    answer = httpx.get(address, params={"mb": 3, "length": "off"})
    assert "content-length" not in answer.headers
    assert len(answer.content) == 3 * 2**20


def test_xml_attacks_are_what_they_claim(sandbox: SandboxHandle) -> None:
    assert b"<!ENTITY e9" in fetch(sandbox, "hostile/xml-bomb.rdf").content
    assert b'SYSTEM "file:///etc/passwd"' in fetch(sandbox, "hostile/xxe.rdf").content


def test_pdfs_that_cannot_be_read(sandbox: SandboxHandle) -> None:
    encrypted = PdfReader(io.BytesIO(fetch(sandbox, "hostile/encrypted.pdf").content))
    assert encrypted.is_encrypted
    with pytest.raises(FileNotDecryptedError):
        encrypted.pages[0].extract_text()
    with pytest.raises(PyPdfError):
        PdfReader(io.BytesIO(fetch(sandbox, "hostile/damaged.pdf").content)).pages[0].extract_text()
