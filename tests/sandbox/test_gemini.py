"""Gemini's stand-in, driven by google-genai."""

from __future__ import annotations

import enum
import io
import json
from typing import Any

import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel, Field

from sandbox.launcher import SandboxHandle
from sandbox.pdf import damaged_pdf, encrypted_pdf, make_pdf

MODEL = "gemini-2.5-flash"
SENTENCES = [
    "総務省は、電気通信市場の競争環境の変化を踏まえ、2026年11月10日に報告書案を取りまとめました。",
    "意見募集は30日間行われ、提出された意見を踏まえて最終報告書が公表されます。",
    "固定電話網の移行に伴う利用者保護の方策についても、今後の検討課題として整理しています。",
]


class Verdict(enum.StrEnum):
    YES = "YES"
    NO = "NO"
    WAIT = "WAIT"


class Screening(BaseModel):
    verdict: Verdict
    reason: str = Field(min_length=5)
    confidence: float = Field(ge=0, le=0.5)


class DocumentSummary(BaseModel):
    title: str
    published_on: str | None
    page_count: int = Field(ge=1)
    key_points: list[str] = Field(min_length=2, max_length=4)
    summary: str


class Summary(BaseModel):
    documents: list[DocumentSummary]
    first_summary: str
    can_be_omitted: str
    missed: str
    final_summary: str = Field(max_length=240)


def client_for(sandbox: SandboxHandle, key: str = "key") -> genai.Client:
    options = types.HttpOptions(base_url=f"{sandbox.base_url}/gemini", timeout=10_000)
    return genai.Client(api_key=key, http_options=options)


@pytest.fixture
def gemini(sandbox: SandboxHandle) -> genai.Client:
    return client_for(sandbox)


def ask(
    gemini: genai.Client, contents: Any, schema: Any = None, **config: Any
) -> types.GenerateContentResponse:
    if schema is not None:
        config |= {"response_mime_type": "application/json", "response_schema": schema}
    return gemini.models.generate_content(
        model=MODEL, contents=contents, config=types.GenerateContentConfig(**config)
    )


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        ("配付資料は現在準備中です。", Verdict.WAIT),
        ("本日付の人事異動を発令しました。", Verdict.NO),
        ("検討会（第12回）の開催案内。傍聴を希望される方は申し込んでください。", Verdict.NO),
        ("".join(SENTENCES), Verdict.YES),
    ],
)
def test_screening_judges_the_material_and_not_the_instructions(
    gemini: genai.Client, page: str, verdict: Verdict
) -> None:
    prompt = (
        f"準備中ならWAIT、人事異動や開催案内ならNO、価値があればYESとしてください。\n<page>\n{page}\n</page>"
    )
    answer = ask(gemini, prompt, Screening)
    assert isinstance(answer.parsed, Screening)
    assert answer.parsed.verdict == verdict
    assert answer.parsed.reason.endswith("ため。")


@pytest.mark.parametrize(
    "contents",
    [
        "準備中ならWAITです。\n```\n{}\n```",
        "準備中ならWAITです。\n-----\n{}",
        ["準備中ならWAITです。", "{}"],
    ],
)
def test_other_marks_tell_material_from_instructions(gemini: genai.Client, contents: Any) -> None:
    text = SENTENCES[0]
    filled = contents.format(text) if isinstance(contents, str) else [part.format(text) for part in contents]
    parsed = ask(gemini, filled, Screening).parsed
    assert isinstance(parsed, Screening)
    assert parsed.verdict == Verdict.YES


def test_json_schema_is_honoured_as_well(gemini: genai.Client) -> None:
    answer = gemini.models.generate_content(
        model=MODEL,
        contents=f"<page>{SENTENCES[0]}</page>",
        config={
            "response_mime_type": "application/json",
            "response_json_schema": Screening.model_json_schema(),
        },
    )
    assert Screening.model_validate_json(answer.text or "").verdict == Verdict.YES


def test_summary_is_made_from_an_uploaded_pdf(gemini: genai.Client) -> None:
    pdf = make_pdf("競争環境の検証に関する報告書（案）", ["1　検証の目的と対象の市場。", *SENTENCES])
    file = gemini.files.upload(
        file=io.BytesIO(pdf), config={"mime_type": "application/pdf", "display_name": "報告書"}
    )
    assert (file.size_bytes, file.state) == (len(pdf), types.FileState.ACTIVE)
    answer = ask(gemini, ["この資料を要約してください。", file], Summary)
    summary = answer.parsed
    assert isinstance(summary, Summary)
    [document] = summary.documents
    assert document.title == "競争環境の検証に関する報告書（案）"
    assert document.published_on == "2026-11-10"
    assert document.key_points[0] in SENTENCES
    assert summary.final_summary == "".join(SENTENCES)
    assert answer.candidates
    assert answer.candidates[0].finish_reason == types.FinishReason.STOP


def test_usage_grows_with_the_input(gemini: genai.Client) -> None:
    def used(text: str) -> types.GenerateContentResponseUsageMetadata:
        usage = ask(gemini, text).usage_metadata
        assert usage is not None
        return usage

    short, long = used(SENTENCES[0]), used(SENTENCES[0] * 10)
    assert short.prompt_token_count
    assert long.prompt_token_count
    assert long.prompt_token_count > 5 * short.prompt_token_count
    assert short.total_token_count == short.prompt_token_count + (short.candidates_token_count or 0)
    counted = gemini.models.count_tokens(model=MODEL, contents=SENTENCES[0])
    assert counted.total_tokens == short.prompt_token_count


def test_inline_documents_each_get_their_own_entry(gemini: genai.Client) -> None:
    pdfs = [make_pdf(f"資料{number}の題名", [SENTENCES[number]]) for number in (0, 1)]
    parts = [types.Part.from_bytes(data=pdf, mime_type="application/pdf") for pdf in pdfs]
    summary = ask(gemini, ["要約してください。", *parts], Summary).parsed
    assert isinstance(summary, Summary)
    assert [document.title for document in summary.documents] == ["資料0の題名", "資料1の題名"]
    assert [document.summary for document in summary.documents] == SENTENCES[:2]


@pytest.mark.parametrize("data", [damaged_pdf(), encrypted_pdf()], ids=["damaged", "encrypted"])
def test_unreadable_pdf_is_refused_inline_and_uploaded(gemini: genai.Client, data: bytes) -> None:
    with pytest.raises(errors.ClientError, match="no pages"):
        ask(gemini, ["要約", types.Part.from_bytes(data=data, mime_type="application/pdf")], Summary)
    file = gemini.files.upload(file=io.BytesIO(data), config={"mime_type": "application/pdf"})
    with pytest.raises(errors.ClientError, match="no pages"):
        ask(gemini, ["要約", file], Summary)


def test_files_are_listed_deleted_and_expire(gemini: genai.Client, sandbox: SandboxHandle) -> None:
    def upload(name: str) -> str:
        file = gemini.files.upload(
            file=io.BytesIO(b"text"), config={"mime_type": "text/plain", "display_name": name}
        )
        assert file.name
        return file.name

    first, second = upload("a"), upload("b")
    assert [file.display_name for file in gemini.files.list()] == ["a", "b"]
    gemini.files.delete(name=first)
    with pytest.raises(errors.ClientError, match="403"):
        gemini.files.get(name=first)
    assert gemini.files.get(name=second).display_name == "b"
    sandbox.set_clock(49 * 3600)
    assert list(gemini.files.list()) == []


def test_upload_in_several_chunks(gemini: genai.Client) -> None:
    data = b"x" * (9 * 2**20)
    file = gemini.files.upload(file=io.BytesIO(data), config={"mime_type": "text/plain"})
    assert file.size_bytes == len(data)


def test_state_says_what_to_answer_next(gemini: genai.Client, sandbox: SandboxHandle) -> None:
    orders = [
        "これはJSONではありません",
        {"text": "", "finish_reason": "SAFETY"},
        {"block_reason": "PROHIBITED_CONTENT"},
        {"status": 429, "message": "quota"},
    ]
    sandbox.load("gemini", {"next": orders})
    assert ask(gemini, "x", Screening).text == orders[0]
    refused = ask(gemini, "x", Screening)
    assert refused.text is None
    assert refused.candidates
    assert refused.candidates[0].finish_reason == types.FinishReason.SAFETY
    blocked = ask(gemini, "x")
    assert blocked.prompt_feedback
    assert blocked.prompt_feedback.block_reason == types.BlockedReason.PROHIBITED_CONTENT
    with pytest.raises(errors.ClientError) as exhausted:
        ask(gemini, "x")
    assert (exhausted.value.code, exhausted.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert ask(gemini, "x", Screening).parsed


def test_answer_is_cut_at_the_output_limit(gemini: genai.Client) -> None:
    answer = ask(gemini, "<page>" + "".join(SENTENCES) + "</page>", Screening, max_output_tokens=10)
    assert answer.candidates
    assert answer.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.text or "")


def test_bad_key_unknown_model_and_quota(sandbox: SandboxHandle, gemini: genai.Client) -> None:
    with pytest.raises(errors.ClientError) as bad_key:
        ask(client_for(sandbox, "bad-key"), "x")
    assert bad_key.value.code == 400
    assert bad_key.value.details["error"]["details"][0]["reason"] == "API_KEY_INVALID"
    with pytest.raises(errors.ClientError) as unknown:
        gemini.models.generate_content(model="no-such-model", contents="x")
    assert (unknown.value.code, unknown.value.status) == (404, "NOT_FOUND")
    sandbox.load("gemini", {"requests_left": 1})
    ask(gemini, "x")
    with pytest.raises(errors.ClientError) as exhausted:
        ask(gemini, "x")
    assert exhausted.value.details["error"]["details"][0]["retryDelay"] == "17s"


def test_outage_and_garbage_reach_the_client_as_errors(sandbox: SandboxHandle, gemini: genai.Client) -> None:
    body = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    sandbox.fault("gemini", "status", status=503, body=body, path="generateContent")
    with pytest.raises(errors.ServerError) as overloaded:
        ask(gemini, "x")
    assert (overloaded.value.code, overloaded.value.status) == (503, "UNAVAILABLE")
    sandbox.fault("gemini", "garbage", path="generateContent")
    with pytest.raises((errors.APIError, ValueError)):
        ask(gemini, "x")


def test_models_and_streaming(gemini: genai.Client) -> None:
    assert f"models/{MODEL}" in [model.name for model in gemini.models.list()]
    assert gemini.models.get(model=MODEL).input_token_limit == 1_048_576
    facts = '<facts>{"kickoff": "20:00", "home": {"name": "Arsenal"}, "away": {"name": "Chelsea"}}</facts>'
    pieces = [
        piece.text or "" for piece in gemini.models.generate_content_stream(model=MODEL, contents=facts)
    ]
    assert len(pieces) == 2
    text = "".join(pieces)
    assert text.startswith("Arsenalが本拠地にChelseaを迎える")
    assert not any(digit in text for digit in "0123456789")


def test_spoiler_check_sees_a_score(gemini: genai.Client) -> None:
    class Check(BaseModel):
        contains_result: bool
        is_safe: bool

    clean = ask(gemini, "<text>試合の見どころ。ホーム: Arsenal\nアウェイ: Chelsea\n</text>", Check).parsed
    spoiled = ask(gemini, "<text>試合はArsenal vs Chelsea キックオフ後に 2-1 で終わった</text>", Check).parsed
    assert clean == Check(contains_result=False, is_safe=True)
    assert spoiled == Check(contains_result=True, is_safe=False)
