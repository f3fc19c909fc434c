"""Gemini through google-genai: one call in, one validated object out.

Screening, summaries and previews all go through :meth:`Gemini.generate`. Google's own retries are off; ours follow the
shared policy. Only errors of :mod:`broker_project.lib.errors` are raised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic
import pydantic_core

from broker_project.lib.config.outside import GeminiConfig, Source
from broker_project.lib.errors import (
    BadAnswer,
    OutsideError,
    Rejected,
    SwitchedOff,
    Unauthorised,
    error_for_status,
)
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.lib.retry import RetryPolicy, call_with_retries
from broker_project.lib.transport import TOTAL_SECONDS, call_limit, limited_call, limited_client

if TYPE_CHECKING:
    from google import genai
    from google.genai import types

# google-genai takes a second to import, which every command would wait for: it is imported on use.

log = get_logger(__name__)

SYSTEM = "Gemini"
POLICY = RetryPolicy(max_attempts=3, base_seconds=0.5, factor=3.0, cap_seconds=10.0)
MAX_OUTPUT_TOKENS = 32768  # including those that the model spends on thinking
INLINE_BYTES = 8 * 2**20  # files up to this total go inside the request, more are uploaded first

_CODE_BLOCK = re.compile(r"\s*```[a-z]*\s*\n(.*)\n\s*```\s*", re.DOTALL)

T = TypeVar("T", bound=pydantic.BaseModel)


@dataclass(frozen=True)
class Generated(Generic[T]):
    """A validated answer and its cost."""

    value: T
    model: str
    input_tokens: int
    output_tokens: int


class Gemini:
    """One configured Gemini. The client is built at the first call."""

    def __init__(self, config: GeminiConfig, policy: RetryPolicy = POLICY) -> None:
        self.config = config
        self.policy = policy

    @property
    def is_available(self) -> bool:
        return self.config.source is not Source.OFF

    def generate(
        self,
        *,
        model: str,
        prompt: str,
        schema: type[T],
        files: Sequence[Path] = (),
        system: str = "",
        max_output_tokens: int = MAX_OUTPUT_TOKENS,
    ) -> Generated[T]:
        """Ask for an object of ``schema``. ``files`` are PDFs. Each upload and each answer has 60 seconds in all.

        Raises only :class:`OutsideError`: :class:`BadAnswer` if the last try still did not match the schema.
        """
        if not self.is_available:
            raise SwitchedOff(SYSTEM, "no GEMINI_API_KEY is set")
        from google.genai import types

        config = types.GenerateContentConfig(
            system_instruction=system or None,
            response_mime_type="application/json",
            response_json_schema=schema.model_json_schema(),
            max_output_tokens=max_output_tokens,
            temperature=0.2,
        )

        return call_with_retries(self.policy, lambda: self._call(model, prompt, schema, files, config))

    def _call(
        self,
        model: str,
        prompt: str,
        schema: type[T],
        files: Sequence[Path],
        config: types.GenerateContentConfig,
    ) -> Generated[T]:
        from google.genai import errors as genai_errors
        from google.genai import types

        uploaded: list[str] = []
        try:
            parts = self._file_parts(files, uploaded)
            with limited_call(SYSTEM, TOTAL_SECONDS):
                response = self._client.models.generate_content(
                    model=model, contents=[*parts, types.Part(text=prompt)], config=config
                )
        except (genai_errors.APIError, ValueError, KeyError, TypeError, OSError) as error:
            raise classified(error) from error
        finally:
            self._delete(uploaded)
        return read_answer(response, model, schema)

    def _file_parts(self, files: Sequence[Path], uploaded: list[str]) -> list[types.Part]:
        from google.genai import types

        if sum(path.stat().st_size for path in files) <= INLINE_BYTES:
            return [
                types.Part.from_bytes(data=path.read_bytes(), mime_type="application/pdf") for path in files
            ]
        parts = []
        for path in files:
            with limited_call(SYSTEM, TOTAL_SECONDS):
                file = self._client.files.upload(
                    file=path, config=types.UploadFileConfig(mime_type="application/pdf")
                )
            if not file.uri or not file.name:
                raise BadAnswer(SYSTEM, "the uploaded file has no address")
            uploaded.append(file.name)
            parts.append(types.Part.from_uri(file_uri=file.uri, mime_type="application/pdf"))
        return parts

    def _delete(self, names: Sequence[str]) -> None:
        """Uploads expire after two days, so a failure here is only logged."""
        from google.genai import errors as genai_errors

        for name in names:
            try:
                with limited_call(SYSTEM, 10):
                    self._client.files.delete(name=name)
            except (OutsideError, genai_errors.APIError, ValueError) as error:
                log.warning("uploaded file not deleted", file=name, error=redact(str(error), 200))

    @cached_property
    def _client(self) -> genai.Client:
        from google import genai
        from google.genai import types

        options = types.HttpOptions(
            base_url=self.config.api_url or None,
            timeout=int(call_limit(TOTAL_SECONDS) * 1000),
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_client=limited_client(),
        )
        return genai.Client(api_key=self.config.api_key, vertexai=False, http_options=options)


def read_answer(response: types.GenerateContentResponse, model: str, schema: type[T]) -> Generated[T]:
    """The validated object of an answer. Raises :class:`BadAnswer`; :class:`Rejected` if it was blocked.

    Text that is not JSON is passed to the schema, which may have a validator for it.
    """
    from google.genai import types

    feedback = response.prompt_feedback
    if feedback is not None and feedback.block_reason is not None:
        raise Rejected(SYSTEM, f"the prompt was blocked ({_word(feedback.block_reason)})")
    text, finish = _text_of(response)
    if not text.strip():
        raise BadAnswer(SYSTEM, f"an answer without text (finish reason {finish})")
    block = _CODE_BLOCK.fullmatch(text)
    try:
        given = pydantic_core.from_json(block.group(1) if block else text)
    except ValueError:
        given = text
    try:
        value = schema.model_validate(given)
    except pydantic.ValidationError as error:
        raise BadAnswer(SYSTEM, f"{_violation(error)} (finish reason {finish})") from error
    usage = response.usage_metadata or types.GenerateContentResponseUsageMetadata()
    answer_tokens = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    return Generated(value, response.model_version or model, usage.prompt_token_count or 0, answer_tokens)


def _text_of(response: types.GenerateContentResponse) -> tuple[str, str]:
    """The text of the first candidate without the model's thoughts, and why it ended."""
    candidate = response.candidates[0] if response.candidates else None
    if candidate is None:
        return "", "none"
    parts = (candidate.content.parts if candidate.content else None) or []
    text = "".join(part.text or "" for part in parts if not part.thought)
    return text, _word(candidate.finish_reason) if candidate.finish_reason else "none"


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))


def _violation(error: pydantic.ValidationError) -> str:
    """What was wrong, without the answer itself, which may be long or hostile."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "model_type":
        return "the answer is not a JSON object"
    where = ".".join(str(part) for part in first["loc"])
    return f"the answer breaks the schema at {where or 'its top'}: {first['msg']}"[:300]


def classified(error: Exception) -> OutsideError:
    """Our error for what google-genai raises; httpx's are translated where they occur."""
    from google.genai import errors as genai_errors

    if isinstance(error, genai_errors.APIError):
        detail = redact(str(error.message or error.status or ""), 300)
        if error.code == 400 and "API_KEY_INVALID" in str(error.details):
            return Unauthorised(SYSTEM, f"HTTP 400: {detail}", status=400)
        return error_for_status(SYSTEM, int(error.code or 500), detail, _retry_delay(error.details))
    # An answer that google-genai itself could not read: its JSON decoder raises plain ValueErrors.
    return BadAnswer(SYSTEM, redact(f"{type(error).__name__}: {error}", 300))


def _retry_delay(details: Any) -> float | None:
    """Seconds from Google's ``RetryInfo``, written like ``17s``."""
    with suppress(AttributeError, TypeError, ValueError):
        for entry in details.get("error", {}).get("details", []):
            if match := re.fullmatch(r"(\d+(?:\.\d+)?)s", str(entry.get("retryDelay", ""))):
                return float(match.group(1))
    return None
