"""How GitHub's answers are read: the shapes, the error behind a status, what is left of our budget."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from broker_project.lib.config.dynamic import record_rate_limit
from broker_project.lib.errors import BadAnswer, Conflict, OutsideError, RateLimited, error_for_status
from broker_project.lib.redaction import redact
from tasks.lifecycle import our_word

SYSTEM = "GitHub"
RECORD_EVERY_SECONDS = 3.0
DEFAULT_WAIT_SECONDS = 60.0  # GitHub's advice where it names no time
LOW_SHARE = 0.1  # under this part of the budget every answer is noted

Json = dict[str, Any]
SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def error_of(status: int, headers: dict[str, str], text: str) -> OutsideError:
    """The one error behind an answer. GitHub says 403 for what is forbidden and for what is too much."""
    detail = detail_of(text)
    if status == 429 or (status == 403 and is_rate_limit(headers, detail)):
        wait = wait_seconds(headers)
        return RateLimited(SYSTEM, f"HTTP {status}: {detail}", status=status, retry_after_seconds=wait)
    if 300 <= status < 400:
        # All of the repository has moved, so this is no word about one issue (a Rejected would be).
        return Conflict(SYSTEM, f"HTTP {status}: moved to another address", status=status)
    return error_for_status(SYSTEM, status, detail)


def is_rate_limit(headers: dict[str, str], detail: str) -> bool:
    return (
        "retry-after" in headers
        or headers.get("x-ratelimit-remaining") == "0"
        or "rate limit" in detail.lower()
    )


def wait_seconds(headers: dict[str, str]) -> float:
    if (after := headers.get("retry-after", "")).isdecimal():
        return float(after)
    budget = budget_of(headers)
    if budget is not None and budget[1] <= 0:
        return max(1.0, (budget[2] - datetime.now(UTC)).total_seconds())
    return DEFAULT_WAIT_SECONDS


def detail_of(text: str) -> str:
    """What GitHub said, in one line and without secrets."""
    try:
        data = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(data, dict):
        return ""
    parts = [str(data.get("message") or "")]
    errors = data.get("errors")
    for entry in errors if isinstance(errors, list) else []:
        if isinstance(entry, dict):
            words = (str(entry[name]) for name in ("resource", "field", "code", "message") if entry.get(name))
            parts.append(" ".join(words))
        else:
            parts.append(str(entry))
    return redact("; ".join(part for part in parts if part), 300)


def parse_json(text: str) -> Any:
    """JSON that every database takes: no NUL, no half of a surrogate pair, no number beyond all numbers."""
    try:
        data = DECODER.decode(text.replace("\\u0000", "\\ufffd"))
        if SURROGATE.search(text):
            data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise BadAnswer(SYSTEM, "an answer that is not JSON") from None
    return data


def _finite(text: str) -> float:
    """Python would take ``Infinity``, ``NaN`` and ``1e999``, and write what is no JSON."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def as_object(data: Any) -> Json:
    if not isinstance(data, dict):
        raise BadAnswer(SYSTEM, "an answer of another shape")
    return data


def as_objects(data: Any) -> list[Json]:
    if not isinstance(data, list):
        raise BadAnswer(SYSTEM, "an answer of another shape")
    return [as_object(item) for item in data]


def date_of(headers: dict[str, str]) -> datetime | None:
    try:
        return parsedate_to_datetime(headers.get("date", "")).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def label_names(data: Any) -> list[str]:
    """Names of labels: GitHub writes objects, in some old places plain texts, and nothing for none."""
    if data is None:
        return []
    if not isinstance(data, list):
        raise BadAnswer(SYSTEM, "labels of another shape")
    names = [item.get("name") if isinstance(item, dict) else item for item in data]
    return [our_word(name) for name in names if isinstance(name, str)]


def relabelled(raw: dict[str, Any], labels: Iterable[str]) -> dict[str, Any]:
    """GitHub's JSON of an issue with these labels."""
    known = {
        our_word(label["name"]): label
        for label in raw.get("labels") or []
        if isinstance(label, dict) and isinstance(label.get("name"), str)
    }
    return {**raw, "labels": [known.get(name, {"name": name}) for name in labels]}


# The budget

_noted_lock = threading.Lock()
_noted_at = float("-inf")  # monotonic


def budget_of(headers: dict[str, str]) -> tuple[int, int, datetime] | None:
    try:
        limit, remaining, reset = (
            int(float(headers[f"x-ratelimit-{name}"])) for name in ("limit", "remaining", "reset")
        )
        return limit, remaining, datetime.fromtimestamp(reset, UTC)
    except (KeyError, ValueError, OverflowError, OSError):
        return None


def note_budget(headers: dict[str, str]) -> None:
    """Record the budget; a plentiful one at most every few seconds, since Redis is asked each time."""
    global _noted_at
    budget = budget_of(headers)
    if budget is None:
        return
    limit, remaining, reset_at = budget
    with _noted_lock:
        is_low = remaining < limit * LOW_SHARE
        if not is_low and time.monotonic() - _noted_at < RECORD_EVERY_SECONDS:
            return
        _noted_at = time.monotonic()
    record_rate_limit(limit, remaining, reset_at)
