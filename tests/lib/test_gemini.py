from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings
from pydantic import BaseModel, Field

from broker_project.lib import gemini as module
from broker_project.lib.config.outside import Source
from broker_project.lib.errors import (
    BadAnswer,
    Missing,
    OutsideError,
    RateLimited,
    Rejected,
    ServerFault,
    SwitchedOff,
    TimedOut,
    Unauthorised,
    Unreachable,
)
from broker_project.lib.gemini import Gemini
from broker_project.lib.retry import RetryPolicy
from sandbox.launcher import SandboxHandle
from sandbox.pdf import make_pdf
from tests.support.pdfs import large_pdf

MODEL = "gemini-2.5-flash"
QUICK = RetryPolicy(max_attempts=3, base_seconds=0.01, cap_seconds=0.05)


class Part(BaseModel):
    title: str
    key_points: list[str]


class Answer(BaseModel):
    documents: list[Part]
    summary: str = Field(min_length=1)


@pytest.fixture
def gemini(sandbox: SandboxHandle) -> Gemini:
    return Gemini(settings.BROKER.gemini, QUICK)


def ask(gemini: Gemini, **given: object) -> module.Generated[Answer]:
    prompt = "要約してください。\n<page>\n制度の改正により、申請の期限が延長されました。\n</page>"
    return gemini.generate(model=MODEL, prompt=prompt, schema=Answer, **given)  # type: ignore[arg-type]


def generations(sandbox: SandboxHandle) -> int:
    return sum("generateContent" in call["path"] for call in sandbox.calls("gemini"))


def test_an_answer_is_an_object_with_its_usage(gemini: Gemini) -> None:
    generated = ask(gemini)
    assert "申請の期限" in generated.value.summary
    assert generated.model == MODEL
    assert generated.input_tokens > 0
    assert generated.output_tokens > 0


def test_small_files_go_inside_the_request(gemini: Gemini, sandbox: SandboxHandle, tmp_path: Path) -> None:
    sandbox.clear_calls()
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf("白書の題名", ["情報通信の利用者は前年より増えました。"]))
    assert ask(gemini, files=[path]).value.documents[0].title == "白書の題名"
    assert len(sandbox.calls("gemini")) == 1


def test_large_files_are_uploaded_and_removed(gemini: Gemini, sandbox: SandboxHandle, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(
        large_pdf("白書の題名", ["情報通信の利用者は前年より増えました。"], module.INLINE_BYTES + 1)
    )
    assert ask(gemini, files=[path]).value.documents[0].title == "白書の題名"
    calls = [(call["method"], call["path"].partition("?")[0]) for call in sandbox.calls("gemini")]
    assert any("upload" in path for _, path in calls)
    assert any(method == "DELETE" for method, _ in calls)
    assert sandbox.state("gemini")["files"] == []


@pytest.mark.parametrize(
    ("order", "error", "tries"),
    [
        ("this is not JSON", BadAnswer, 3),
        ('{"summary": 1}', BadAnswer, 3),
        ({"text": "", "finish_reason": "MAX_TOKENS"}, BadAnswer, 3),
        ({"status": 500}, ServerFault, 3),
        ({"status": 503}, ServerFault, 3),
        ({"status": 429}, RateLimited, 3),
        ({"status": 400}, Rejected, 1),
        ({"status": 403}, Unauthorised, 1),
        ({"block_reason": "SAFETY"}, Rejected, 1),
    ],
)
def test_every_failure_is_one_error_of_ours(
    gemini: Gemini, sandbox: SandboxHandle, order: object, error: type[OutsideError], tries: int
) -> None:
    sandbox.load("gemini", {"next": [order] * 3})
    sandbox.clear_calls()
    with pytest.raises(error):
        ask(gemini)
    assert generations(sandbox) == tries


@pytest.mark.parametrize(
    ("kind", "error"), [("drop", Unreachable), ("truncate", Unreachable), ("garbage", BadAnswer)]
)
def test_broken_answers(gemini: Gemini, sandbox: SandboxHandle, kind: str, error: type[OutsideError]) -> None:
    sandbox.fault("gemini", kind, times=3)
    with pytest.raises(error):
        ask(gemini)


def test_a_failure_that_passes_is_not_seen(gemini: Gemini, sandbox: SandboxHandle) -> None:
    sandbox.load("gemini", {"next": ["not JSON", {"status": 503}]})
    assert ask(gemini).value.summary


def test_a_far_away_come_back_later_is_not_waited_for(gemini: Gemini, sandbox: SandboxHandle) -> None:
    sandbox.load("gemini", {"requests_left": 0})
    sandbox.clear_calls()
    with pytest.raises(RateLimited) as caught:
        ask(gemini)
    assert caught.value.retry_after_seconds == 17
    assert generations(sandbox) == 1


def test_a_stalled_call_ends(sandbox: SandboxHandle) -> None:
    sandbox.fault("gemini", "stall", seconds=300, times=3)
    with override_settings(BROKER=replace(settings.BROKER, call_seconds=1)), pytest.raises(TimedOut):
        ask(Gemini(settings.BROKER.gemini, RetryPolicy(max_attempts=1)))


def test_wrong_key_and_unknown_model(sandbox: SandboxHandle) -> None:
    refused = Gemini(replace(settings.BROKER.gemini, api_key="bad-key"), QUICK)
    with pytest.raises(Unauthorised) as caught:
        ask(refused)
    assert "bad-key" not in str(caught.value)
    with pytest.raises(Missing):
        Gemini(settings.BROKER.gemini, QUICK).generate(model="nonesuch", prompt="x", schema=Answer)


def test_without_a_key_it_is_off() -> None:
    off = Gemini(replace(settings.BROKER.gemini, source=Source.OFF, api_key=""))
    assert not off.is_available
    with pytest.raises(SwitchedOff):
        ask(off)
