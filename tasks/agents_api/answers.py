"""The HTTP answers of the agent API: one type, every refusal in words, and the answer to each kind of failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import OperationalError
from redis.exceptions import RedisError

from broker_project.lib.config.outside import Source
from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redis.flags import parse_flag
from tasks.services.leases import LeaseLost, UnknownAssignment

log = get_logger(__name__)


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any] | None = None
    retry_after_seconds: int | None = None


class Refused(Exception):
    """The call is refused; ``answer`` is what the caller is told."""

    def __init__(self, answer: Answer) -> None:
        body = answer.body or {}
        super().__init__(body["message"])
        self.answer = answer
        self.code: str = body["error"]


def problem(status: int, code: str, message: str, retry_after_seconds: int | None = None) -> Answer:
    return Answer(status, {"error": code, "message": message}, retry_after_seconds)


def nothing(timeout_seconds: float) -> Answer:
    return Answer(204, retry_after_seconds=5 if timeout_seconds == 0 else 1)


def too_large(limit_bytes: int) -> Answer:
    return problem(413, "too_large", f"The body may have {limit_bytes} bytes.")


def bad_request(place: str, message: str) -> Answer:
    text = message.removeprefix("Value error, ")
    return problem(422, "bad_request", f"{place}: {text}." if place else f"{text}.")


def maintenance(flag: str) -> Answer:
    reason = parse_flag(flag).reason
    return problem(503, "maintenance", f"Maintenance: {reason}" if reason else "Maintenance.", 60)


def redis_down() -> Answer:
    return problem(503, "redis_down", "Redis does not answer; please come back.", 5)


def stopping() -> Answer:
    return problem(503, "stopping", "The server is stopping; please come back.", 5)


def wrong_agent() -> Answer:
    return problem(403, "wrong_agent", "This assignment belongs to another agent.")


def check_github_is_on() -> None:
    """Raises Refused while no repository is configured."""
    if settings.BROKER.github.source is Source.OFF:
        message = "GitHub is not configured: set GITHUB_REPOSITORY and GITHUB_TOKEN."
        raise Refused(problem(503, "github_off", message, 60))


def answer_to(error: Exception, path: str) -> Answer:
    """What the caller is told when a call fails. An unexpected failure is logged with its traceback."""
    match error:
        case Refused():
            return error.answer
        case LeaseLost():
            return problem(409, "lease_lost", "This assignment is no longer yours.")
        case UnknownAssignment():
            return problem(404, "unknown_assignment", "There is no such assignment.")
        case RedisError():
            log.warning("Redis does not answer", error=str(error))
            return redis_down()
        case OperationalError():
            log.warning("the database does not answer", path=path, error=str(error))
            return problem(503, "database_down", "The database does not take this now; please come back.", 5)
        case OutsideError():
            return problem(502, "github_failed", error.message, 30)
    log.error("request failed", path=path, exc_info=error)
    return problem(500, "internal", "Something went wrong here; it was written down.")
