from __future__ import annotations

from pathlib import Path

import pytest

from feeds.reading.charsets import is_binary
from feeds.reading.pages import read_page
from feeds.reading.pdf_reader import UnreadablePdf, read_pdf
from sandbox.pdf import damaged_pdf, encrypted_pdf, make_pdf

DATA = Path(__file__).parent.parent / "data" / "feeds"


def test_the_contents_body_in_shift_jis() -> None:
    page = read_page(
        (DATA / "page_contents_body.html").read_bytes(), url="https://a.example.jp/news/s/1.html"
    )
    assert page.title == "報道資料"
    assert page.text.splitlines()[:2] == ["題名①", "本文の 一行目。"]
    assert "準備中" not in page.text
    assert "メニュー" not in page.text
    assert "検索" not in page.text


def test_pdf_links_are_absolute_and_once() -> None:
    page = read_page(
        (DATA / "page_contents_body.html").read_bytes(), url="https://a.example.jp/news/s/1.html"
    )
    assert [(link.url, link.title) for link in page.documents] == [
        ("https://a.example.jp/news/main/000.pdf", "資料（PDF）"),
        ("https://a.example.jp/main/111.PDF?v=2", "別紙"),
        ("https://other.example.jp/x.pdf", "他所"),
    ]


def test_a_document_with_spaces_in_its_name_is_one() -> None:
    page = read_page('<a href="資料 1.pdf">資料</a>'.encode(), url="https://a.example.jp/news/1.html")
    assert [link.url for link in page.documents] == ["https://a.example.jp/news/資料%201.pdf"]


def test_without_it_the_body_without_menus() -> None:
    page = read_page((DATA / "page_plain.html").read_bytes(), url="https://a.example.jp/")
    assert page.text == "Hello bold world.\ntail\n1\n2"


@pytest.mark.parametrize(
    "body", [b"", b"   ", b"\x00\x00", b"<", b"<!-- -->", b"%PDF-1.5 not html", b"<p" * 5000, b"\xff" * 1000]
)
def test_anything_is_a_page(body: bytes) -> None:
    assert read_page(body, url="https://a.example.jp/").documents == []


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "text/html", True),
        (b"GIF89a and more", "image/gif", True),
        (b"PK\x03\x04\x14\x00\x06\x00", "", True),
        ("<p>本文</p>".encode("utf-16"), "", False),
        ("<p>本文</p>".encode("utf-16-le"), "text/html; charset=utf-16le", False),
        ("<p>本文</p>".encode("cp932"), "application/octet-stream", False),
        (b"<html><body><p>a stray" + b" " * 60 + b"\x00</p>", "text/html", False),
        (b"", "", False),
    ],
)
def test_what_is_no_text(body: bytes, content_type: str, expected: bool) -> None:
    assert is_binary(body, content_type) is expected


def test_a_page_is_read_up_to_a_limit() -> None:
    body = ("<body><p>" + "あ" * 50_000 + "</p></body>").encode()
    assert len(read_page(body, url="https://a.example.jp/", max_characters=1000).text) == 1000


def test_deep_nesting_is_survived() -> None:
    body = b"<body>" + b"<div>" * 3000 + b"deep" + b"</div>" * 3000
    assert isinstance(read_page(body, url="https://a.example.jp/").text, str)


def test_a_base_address_counts() -> None:
    body = b'<head><base href="https://cdn.example.jp/files/"></head><body><a href="x.pdf">x</a></body>'
    assert (
        read_page(body, url="https://a.example.jp/").documents[0].url == "https://cdn.example.jp/files/x.pdf"
    )


def test_the_text_of_a_pdf(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf("白書", ["情報通信の利用者は増えました。"] * 100))
    read = read_pdf(path, max_characters=200)
    assert read.pages > 1
    assert len(read.text) == 200
    assert "情報通信の利用者" in read.text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (encrypted_pdf(), "encrypted"),
        (damaged_pdf(), "damaged"),
        (b"", "damaged"),
        (b"<html>not a pdf</html>", "damaged"),
    ],
    ids=["encrypted", "damaged", "empty", "html"],
)
def test_unreadable_pdfs_say_why(tmp_path: Path, body: bytes, why: str) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(body)
    with pytest.raises(UnreadablePdf, match=why):
        read_pdf(path, max_characters=100)


def test_a_pdf_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path: Path) -> None:
    import zlib

    packer = zlib.compressobj(1)
    zeros = bytes(2**20)
    stream = b"".join(packer.compress(zeros) for _ in range(256)) + packer.flush()
    plain = make_pdf("爆弾", ["本文"])
    start = plain.index(b"7 0 obj")
    end = plain.index(b"endobj", start)
    bomb = b"7 0 obj\n<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream\n" % (len(stream), stream)
    path = tmp_path / "bomb.pdf"
    path.write_bytes(plain[:start] + bomb + plain[end:])
    with pytest.raises(UnreadablePdf):
        read_pdf(path, max_characters=100)
