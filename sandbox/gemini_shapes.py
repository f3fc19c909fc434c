"""The shapes of Gemini's answers."""

import secrets
from typing import Any

from starlette.responses import JSONResponse, Response

INPUT_TOKEN_LIMIT = 1_048_576
STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_response(
    code: int,
    message: str,
    headers: dict[str, str] | None = None,
    details: list[dict[str, Any]] | None = None,
) -> Response:
    error: dict[str, Any] = {"code": code, "message": message, "status": STATUS_NAMES.get(code, "UNKNOWN")}
    if details:
        error["details"] = details
    return JSONResponse({"error": error}, status_code=code, headers=headers)


def model_resource(name: str) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "version": "001",
        "displayName": name.replace("-", " ").title(),
        "description": "A stand-in that answers by simple rules.",
        "inputTokenLimit": INPUT_TOKEN_LIMIT,
        "outputTokenLimit": 65536,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def token_count(text: str) -> int:
    """Roughly what the real tokeniser counts: four ASCII letters a token, Japanese ones nearly one each."""
    wide = sum(1 for character in text if ord(character) > 0x2E7F)
    return (len(text) - wide + 3) // 4 + (wide * 3 + 3) // 4


def generation(
    model: str, text: str, finish_reason: str, prompt_tokens: int, block_reason: str | None
) -> dict[str, Any]:
    answer_tokens = 0 if block_reason else token_count(text)
    data: dict[str, Any] = {
        "usageMetadata": {
            "promptTokenCount": prompt_tokens,
            "candidatesTokenCount": answer_tokens,
            "totalTokenCount": prompt_tokens + answer_tokens,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt_tokens}],
        },
        "modelVersion": model,
        "responseId": secrets.token_urlsafe(16),
    }
    if block_reason:
        data["promptFeedback"] = {"blockReason": block_reason}
        return data
    content: dict[str, Any] = {"role": "model"}
    if text:
        content["parts"] = [{"text": text}]
    data["candidates"] = [{"content": content, "finishReason": finish_reason, "index": 0}]
    return data


def halves(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The same answer as a stream sends it: in two pieces, the end's reason on the last."""
    candidates = whole.get("candidates")
    if not candidates or "parts" not in candidates[0]["content"]:
        return [whole]
    text = candidates[0]["content"]["parts"][0]["text"]
    middle = len(text) // 2
    first = {"content": {"role": "model", "parts": [{"text": text[:middle]}]}, "index": 0}
    last = {**candidates[0], "content": {"role": "model", "parts": [{"text": text[middle:]}]}}
    return [{**whole, "candidates": [first]}, {**whole, "candidates": [last]}]
