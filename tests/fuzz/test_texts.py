"""What models answer and what errors say, before it is shown, stored or posted."""

from __future__ import annotations

import json
import re

import pydantic
from google.genai import types
from hypothesis import example, given
from hypothesis import strategies as st

from broker_project.lib.errors import BadAnswer, Rejected
from broker_project.lib.gemini import read_answer
from broker_project.lib.hidden_text import hidden_count
from broker_project.lib.redaction import HIDDEN, Redactor, redact
from feeds.prompt_texts import DEFAULT_POST_TEMPLATE
from feeds.writing.posting import LINK, MENTION, compose
from feeds.writing.summaries import ScreeningAnswer, SummaryAnswer, checked_summary, notes_of
from fixtures.guide.preview import PreviewText, SpoilerVerdict
from fixtures.guide.spoilers import spoiler_in
from sandbox.mastodon_text import countable_length

SCHEMAS: tuple[type[pydantic.BaseModel], ...] = (ScreeningAnswer, SummaryAnswer, PreviewText, SpoilerVerdict)
SECRET = "s3cret-Value-of-the-tests"
URL = "https://news.example.jp/1.html"
plain_text = st.text(alphabet=st.characters(codec="utf-8"), max_size=80)
spice = st.sampled_from(
    [
        "@somebody",
        "＠someone@else.example",
        "https://evil.example/x",
        "HTTPS://EVIL.example",
        "h\u200bttps://evil.example",
        "@\u200bsomebody",
        "\u202e",
        "\x1b[31m",
        "<script>",
        "総務省は報告書を公表しました。",
        "2\u200b-1",
        "\ud800",
        "\x00",
        "{url}",
    ]
)
model_text = st.lists(st.one_of(plain_text, spice), max_size=8).map("".join)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), model_text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(model_text, inner, max_size=4)),
    max_leaves=10,
)


@given(st.one_of(model_text, json_values.map(json.dumps)), st.sampled_from(SCHEMAS))
@example('{"verdict": "YES", "reason": "\\ud800"}', ScreeningAnswer)
@example("[" * 1000, ScreeningAnswer)
def test_an_answer_fits_its_schema_or_is_refused(text: str, schema: type[pydantic.BaseModel]) -> None:
    content = types.Content(parts=[types.Part(text=text.encode("utf-8", "replace").decode())])
    response = types.GenerateContentResponse(candidates=[types.Candidate(content=content)])
    try:
        value = read_answer(response, "model", schema).value
    except (BadAnswer, Rejected):
        return
    json.dumps(value.model_dump()).encode()
    if isinstance(value, SummaryAnswer):
        assert len(json.dumps(notes_of(value))) < 2_000_000


@given(model_text, st.integers(20, 400))
@example("h\u200bttps://evil.example 総務省は報告書を公表しました。", 200)  # a link that no rule saw
@example("@\u200bsomebody 総務省は報告書を公表しました。", 200)
def test_a_summary_calls_nobody_and_leads_nowhere(text: str, characters: int) -> None:
    try:
        summary = checked_summary(text, f"{URL} の資料", characters)
    except BadAnswer:
        return
    assert not MENTION.search(summary)
    assert not [link for link in LINK.findall(summary) if link.rstrip(".,;") != URL]
    assert hidden_count(summary) == 0
    assert len(summary) <= characters * 3 // 2


@given(model_text, model_text, st.integers(60, 600))
@example("", "@@0", 60)
@example("", "@＠@a@b", 60)
def test_a_post_has_one_link_and_fits(title: str, summary: str, limit: int) -> None:
    post = compose(
        DEFAULT_POST_TEMPLATE, title=title, summary=summary, url=URL, max_characters=limit, link_characters=23
    )
    assert LINK.findall(post) == [URL]
    assert not MENTION.search(post)
    assert hidden_count(post) == 0
    assert countable_length(post) <= limit


@given(plain_text, st.sampled_from(["\u200b", "\u2060", "\ufeff", "\u00ad"]))
def test_a_score_cannot_hide(text: str, hidden: str) -> None:
    assert spoiler_in(f"{text} 2{hidden}-{hidden}1 ") is not None
    assert spoiler_in(f"{text}快{hidden}勝") is not None


# Redaction

redactor = Redactor([SECRET, SECRET + "-longer"])


@given(plain_text, plain_text)
@example("Bearer ", "")
@example("token=", "&")
@example("https://user:", "@host/")
def test_a_known_secret_never_comes_through(before: str, after: str) -> None:
    for secret in (SECRET, SECRET + "-longer"):
        assert SECRET not in redactor.text(before + secret + after)
        assert SECRET not in json.dumps(redactor.value({before: [secret, {after: before + secret}]}))


@given(
    st.sampled_from(["ghp_", "gho_", "github_pat_", "brk_"]),
    st.from_regex(r"[A-Za-z0-9]{20,40}", fullmatch=True),
    plain_text,
)
def test_what_looks_like_a_token_never_comes_through(prefix: str, rest: str, after: str) -> None:
    assert prefix + rest not in redactor.text(f"failed with {prefix}{rest} {after}")


@given(st.text(max_size=300), st.integers(1, 100))
@example("password=" * 40, 50)
@example("\x1b]0;title\x07", 50)
def test_an_error_column_is_short_and_printable(text: str, limit: int) -> None:
    shown = redact(text, limit)
    assert len(shown) <= limit
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    shown.encode()


@given(plain_text)
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redactor.text(f"{text} token: {SECRET} Bearer {SECRET}")
    assert HIDDEN in once
    assert re.sub(re.escape(HIDDEN), "", redactor.text(once)) == re.sub(re.escape(HIDDEN), "", once)
