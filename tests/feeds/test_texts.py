"""Everything that makes a text: templates, posts, extracts, checks of what a model wrote."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.utils import translation

from broker_project.lib.errors import BadAnswer
from feeds.prompt_texts import (
    DEFAULT_POST_TEMPLATE,
    DEFAULT_SCREENING_PROMPT,
    DEFAULT_SUMMARY_PROMPT,
    check_post_template,
    check_screening_prompt,
    check_summary_prompt,
    filled,
)
from feeds.writing.extractive import extract, is_japanese, sentences
from feeds.writing.posting import compose, countable_length, shortened, without_mentions
from feeds.writing.summaries import checked_summary
from sandbox.mastodon_text import countable_length as mastodons_length

URL = "https://www.example.jp/menu_news/s-news/01kiban04_02000401.html"
SENTENCE = "総務省は、電気通信市場の競争環境の変化を踏まえて報告書を取りまとめました。"


def made(title: str = "題名", summary: str = SENTENCE, url: str = URL, limit: int = 500) -> str:
    return compose(
        DEFAULT_POST_TEMPLATE,
        title=title,
        summary=summary,
        url=url,
        max_characters=limit,
        link_characters=23,
    )


def test_a_post_is_title_summary_address() -> None:
    assert made() == f"題名\n\n{SENTENCE}\n\n{URL}"


@pytest.mark.parametrize("limit", [40, 60, 100, 140, 200, 500, 501])
@pytest.mark.parametrize("count", [1, 5, 20, 200])
@pytest.mark.parametrize("title", ["題名", "長い題名" * 30])
def test_the_summary_gives_way_never_the_address(limit: int, count: int, title: str) -> None:
    text = made(title=title, summary=SENTENCE * count, limit=limit)
    assert text.endswith(URL)
    assert mastodons_length(text) <= limit


def test_a_long_address_counts_as_a_link() -> None:
    long_url = "https://www.example.jp/" + "a" * 400
    text = made(summary=SENTENCE * 20, url=long_url)
    assert text.endswith(long_url)
    assert mastodons_length(text) <= 500
    assert len(text) > 700


def test_the_summary_is_cut_after_a_sentence() -> None:
    text = made(summary=SENTENCE * 20, limit=200)
    assert text.split("\n\n")[1].endswith("。")


def test_what_fits_exactly_is_not_cut() -> None:
    summary = "あ" * (500 - 23 - len("題名") - 4)
    assert summary in made(summary=summary)
    assert summary + "い" not in made(summary=summary + "い")


@pytest.mark.parametrize(
    "text", ["@admin に連絡", "連絡は @admin@evil.example へ", "＠admin へ", "(@admin)", "@a @b @c"]
)
def test_nobody_is_mentioned(text: str) -> None:
    post = made(title=text, summary=text)
    assert "@" not in post
    assert "＠" not in post


def test_mail_addresses_are_no_mentions() -> None:
    assert without_mentions("mail@example.jp") == "mail@example.jp"
    assert without_mentions("担当者@someone＠evil.example まで") == "担当者someone evil.example まで"


def test_the_post_has_one_link_only() -> None:
    post = made(title="https://evil.example/ 題名", summary=f"{SENTENCE} http://evil.example/x を参照。")
    assert "evil.example" not in post


def test_counting_as_mastodon_does() -> None:
    for text in [made(), "か\u3099き\u3099", f"{URL} {URL}", "👨\u200d👩\u200d👧"]:
        assert countable_length(text, 23) >= mastodons_length(text)


def test_shortening() -> None:
    assert shortened("短い文。", 10) == "短い文。"
    assert shortened("最初の文。次の長い長い文が続く。", 9) == "最初の文。"
    assert shortened("切れ目のない長い文章", 5) == "切れ目の…"


# Templates


def test_the_defaults_are_good() -> None:
    check_post_template(DEFAULT_POST_TEMPLATE)
    check_screening_prompt(DEFAULT_SCREENING_PROMPT)
    check_summary_prompt(DEFAULT_SUMMARY_PROMPT)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{summary} {url} {autor}", "{autor}"),
        ("{summary}", "{url}"),
        ("{url}", "{summary}"),
        ("{summary} {url} {", "brace"),
        ("{summary.__class__} {url}", "summary.__class__"),
        ("{summary!r} {url}", "summary"),
        ("{summary:>10} {url}", "summary"),
        ("{0} {summary} {url}", "{0}"),
        ("{summary} {url} {url}", "once"),
    ],
)
def test_bad_templates_are_refused_by_name(template: str, named: str) -> None:
    with translation.override("en"), pytest.raises(ValidationError) as caught:
        check_post_template(template)
    assert named in " ".join(caught.value.messages)


def test_values_keep_their_braces() -> None:
    assert filled("{a} {{b}}", {"a": "{url}"}) == "{url} {b}"


# What a model wrote

SOURCE = f"資料の本文 {URL} を参照"


def test_a_good_summary_passes() -> None:
    assert checked_summary(f"  {SENTENCE}\n", SOURCE, 200) == SENTENCE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "short"),
        ("短い。", "short"),
        ("The ministry published a report on competition in telecommunications.", "Japanese"),
        (SENTENCE * 100, "characters"),
    ],
)
def test_what_was_not_asked_for_is_a_bad_answer(text: str, why: str) -> None:
    with pytest.raises(BadAnswer, match=why):
        checked_summary(text, SOURCE, 200)


def test_foreign_links_and_mentions_are_taken_out() -> None:
    text = checked_summary(f"{SENTENCE}詳細は https://evil.example/x と {URL} と @boss へ。", SOURCE, 200)
    assert "evil.example" not in text
    assert "@" not in text
    assert URL in text


def test_a_summary_somewhat_too_long_is_cut() -> None:
    text = checked_summary(SENTENCE * 10, SOURCE, 200)
    assert len(text) <= 300
    assert text.endswith("。")


# Without a model

ENGLISH = (
    "The agency published its yearly report on router security on Monday. The weather was fine. "
    "Owners of routers rarely install security updates, the report says. "
    "Of 5,000 owners asked, 38.6 percent had changed the first password of their router. Thanks."
)


def test_an_extract_keeps_to_its_length_and_to_the_text() -> None:
    text = (SENTENCE + "光回線の卸取引では、卸料金の根拠を示す資料の提供が進みました。本日は晴天でした。") * 3
    summary = extract(text, 80, "電気通信市場の報告書")
    assert 0 < len(summary) <= 80
    assert SENTENCE in summary


def test_an_english_extract() -> None:
    summary = extract(ENGLISH, 160, "Report on router security")
    assert summary.startswith("The agency published")
    assert "weather" not in summary
    assert len(summary) <= 160


@pytest.mark.parametrize("text", ["", "   \n", "題名", "." * 500, "あ" * 5000])
def test_an_extract_of_little(text: str) -> None:
    assert len(extract(text, 100)) <= 100


def test_lines_broken_by_a_pdf_are_joined() -> None:
    broken = (
        "総務省は、電気通信市場の競争環境の変化を踏まえ、固定通信及び移動通信の\n競争状況を検証しました。"
    )
    assert sentences(broken) == [broken.replace("\n", "")]


def test_telling_japanese() -> None:
    assert is_japanese("総務省はGDPの速報を公表しました。")
    assert not is_japanese("The ministry of 総務 published")
    assert not is_japanese("123 456")
