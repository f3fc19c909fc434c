"""Bytes of feeds and pages → items and text: one kind of error, plain titles, usable addresses, bounded cost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.hidden_text import hidden_count
from feeds.reading.pages import read_page
from feeds.reading.parsing import MAX_TITLE_LENGTH, MAX_URL_LENGTH, NotAFeed, parse_feed, plain

RSS = '<?xml version="1.0"{}?><rss version="2.0"><channel><title>t</title>{}</channel></rss>'
ITEM = "<item><title>{}</title><link>{}</link><pubDate>{}</pubDate></item>"
words = st.text(alphabet=st.characters(codec="utf-8"), max_size=40)
markup = st.sampled_from(
    [
        "<b>",
        "</b>",
        "<script>",
        "<![CDATA[",
        "]]>",
        "&amp;lt;img src=x&amp;gt;",
        "&#0;",
        "&#xD800;",
        "&nope;",
        "<!DOCTYPE x [",
        "]>",
        "<!ENTITY a 'b'>",
        "\u202e",
        "\x1b[31m",
        "\x00",
        "https://",
        "//[",
        "Thu, 01 Jan 1970",
        "0000-00-00",
        "9999-99-99T99:99:99Z",
    ]
)
fragments = st.lists(st.one_of(words, markup), max_size=6).map("".join)
feeds = st.builds(
    lambda items: RSS.format("", "".join(ITEM.format(*item) for item in items)).encode("utf-8", "replace"),
    st.lists(st.tuples(fragments, fragments, fragments), max_size=4),
)
charsets = st.sampled_from(
    ["", "utf-8", "shift_jis", "utf-7", "idna", "punycode", "base64", "utf-16", "\r\nx: y", "é"]
)


@given(st.one_of(st.binary(max_size=400), feeds), charsets)
@example(
    b"<rss version='2.0'><channel>&#xD800;&#99999999999;&#0;</channel>", ""
)  # characters that there are not
@example(b"<!DOCTYPE x [" + b"<rss>", "")  # a document type without an end
@example(
    b"<!-- <!DOCTYPE a> --><!DOCTYPE b [<!ENTITY c 'd'>]><rss version='2.0'/>", ""
)  # the second one stayed
def test_any_bytes_are_a_feed_or_refused_as_none(body: bytes, charset: str) -> None:
    try:
        parsed = parse_feed(body, content_type=f"text/xml; charset={charset}", base_url="https://a.example/f")
    except NotAFeed:
        return
    for entry in parsed.entries:
        assert entry.url.startswith(("http://", "https://"))
        assert entry.url.isprintable()
        assert len(entry.url) <= MAX_URL_LENGTH
        assert 0 < len(entry.title) <= MAX_TITLE_LENGTH
        assert hidden_count(entry.title) == 0
        assert "\n" not in entry.title
        assert entry.published_at.tzinfo is not None
    assert len({entry.url for entry in parsed.entries}) == len(parsed.entries)


@given(fragments)
@example("&amp;lt;script&amp;gt;")
@example("👨‍👩‍👧 葛\U000e0100城市")  # a family and a town fell apart into spaces
def test_a_title_is_one_plain_line(text: str) -> None:
    title = plain(text)
    assert title == title.strip()
    assert not {"\n", "\r", "\t", "\x1b", "\x00", "\u202e"} & set(title)
    if "👨" in text:
        assert title == text


@given(
    st.one_of(st.binary(max_size=400), fragments.map(lambda text: text.encode("utf-8", "replace"))), charsets
)
def test_any_bytes_are_a_page(body: bytes, charset: str) -> None:
    page = read_page(body, url="https://a.example/", content_type=f"text/html; charset={charset}")
    assert "\x00" not in page.text
    for document in page.documents:
        assert document.url.startswith(("http://", "https://"))


# Inputs whose cost was the square of their length: a megabyte of them took hours.
COSTLY = {
    "document types without an end": "b'<!DOCTYPE[' * 100_000",
    "brackets that open": "HEAD + b'<item><title><![CDATA[' + b'<a' * 500_000 + b']]></title></item>'",
    "brackets alone": "b'<' * 1_000_000",
    "comments without an end": "HEAD + b'<!--' * 200_000",
    "sections without an end": "HEAD + b'<![CDATA[' * 100_000",
    "ampersands": "HEAD + b'<item><title>' + b'&' * 300_000 + b'</title></item>'",
}
PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from feeds.reading.parsing import NotAFeed, parse_feed
HEAD = b'<rss version="2.0"><channel>'
for text in {inputs}:
    try:
        parse_feed(eval(text))
    except NotAFeed:
        pass
print("done")
"""


@pytest.mark.process
@pytest.mark.slow
def test_no_feed_costs_the_square_of_its_length() -> None:
    """By processor time, not by the clock: whoever needs a minute of it for these is killed."""
    program = PROGRAM.format(inputs=json.dumps(list(COSTLY.values())))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=BASE_DIR, capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", (done.returncode, done.stderr)
