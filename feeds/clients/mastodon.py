"""The bot's Mastodon account, through Mastodon.py. Raises only errors of :mod:`broker_project.lib.errors`."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

import requests

from broker_project.lib.config.outside import MastodonConfig, Source
from broker_project.lib.errors import (
    BadAnswer,
    Missing,
    OutsideError,
    RateLimited,
    Rejected,
    SwitchedOff,
    TimedOut,
    Unauthorised,
    Unreachable,
    error_for_status,
)
from broker_project.lib.redaction import redact
from broker_project.lib.retry import RetryPolicy, call_with_retries
from broker_project.lib.transport import TOTAL_SECONDS, call_limit

# Mastodon.py takes a quarter of a second to import, which most commands do not need: it is imported on use.

SYSTEM = "Mastodon"
READ_POLICY = RetryPolicy(max_attempts=3, base_seconds=0.5, factor=3.0, cap_seconds=10.0)
CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
MAX_ANSWER_BYTES = 4 * 2**20
PAGE_SIZE, MAX_PAGES = 40, 10
# A post must be found although our clock was an hour ahead when it was sent.
CLOCK_SKEW = timedelta(hours=2)

T = TypeVar("T")


@dataclass(frozen=True)
class PostLimits:
    """Mastodon's own defaults."""

    max_characters: int = 500
    link_characters: int = 23  # of every link, however long


@dataclass(frozen=True)
class PostedStatus:
    id: str
    url: str


class LimitedSession(requests.Session):
    """A session with a total time limit and a limit on the answer's size; requests limits only each read."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        deadline = time.monotonic() + call_limit(TOTAL_SECONDS)
        limits = (call_limit(CONNECT_SECONDS), call_limit(READ_SECONDS))
        response = super().request(*args, **{**kwargs, "stream": True, "timeout": limits})
        body = bytearray()
        with response:
            for piece in response.iter_content(64 * 1024):
                body += piece
                if time.monotonic() > deadline:
                    raise requests.exceptions.ReadTimeout("the total time limit is used up")
                if len(body) > MAX_ANSWER_BYTES:
                    raise requests.exceptions.ContentDecodingError("the answer is too large")
        response._content = bytes(body)
        return response


class MastodonAccount:
    """One configured account. The instance's limits are asked for once."""

    def __init__(self, config: MastodonConfig) -> None:
        self.config = config

    @property
    def is_available(self) -> bool:
        return self.config.source is not Source.OFF

    @cached_property
    def limits(self) -> PostLimits:
        """How long a post may be on this instance; the defaults if the instance does not say."""
        statuses = _inside(_inside(self._instance(), "configuration"), "statuses")
        found = {
            "max_characters": statuses.get("max_characters"),
            "link_characters": statuses.get("characters_reserved_per_url"),
        }
        return PostLimits(
            **{name: value for name, value in found.items() if isinstance(value, int) and value > 0}
        )

    def _instance(self) -> Any:
        # Servers before Mastodon 4 and similar ones have only the first version, or neither, or refuse both.
        for ask in (self._api.instance_v2, self._api.instance_v1):
            with suppress(Missing, Unauthorised, Rejected, BadAnswer):
                return self._read(ask)
        return {}

    def post(self, text: str, idempotency_key: str) -> PostedStatus:
        """Post once. An error with ``may_have_happened`` leaves it open whether the post exists."""

        def call() -> PostedStatus:
            status = self._api.status_post(
                text, visibility=self.config.visibility, idempotency_key=idempotency_key, language="ja"
            )
            return _posted(status)

        return self._call(call)

    def find_post(self, link: str, since: datetime) -> PostedStatus | None:
        """Our own post that carries ``link``, if one was made since then, among the newest 400."""
        account_id = _inside(self._read(self._api.account_verify_credentials), "id")
        if not account_id:
            raise BadAnswer(SYSTEM, "an answer that is no account")
        oldest = since - CLOCK_SKEW
        max_id: Any = None
        for _page in range(MAX_PAGES):
            ask = partial(
                self._api.account_statuses, account_id, limit=PAGE_SIZE, max_id=max_id, exclude_reblogs=True
            )
            page = self._read(ask)
            # An unusable answer must not be taken for "there is no such post".
            if not isinstance(page, list) or not all(isinstance(status, Mapping) for status in page):
                raise BadAnswer(SYSTEM, "an answer that is no list of posts")
            for status in page:
                created_at = status.get("created_at")
                if isinstance(created_at, datetime) and created_at < oldest:
                    return None
                # A boosted post of somebody else is not ours.
                if not status.get("reblog") and link in links_of(str(status.get("content") or "")):
                    return _posted(status)
            if len(page) < PAGE_SIZE:
                return None
            max_id = page[-1]["id"]
        return None

    def _read(self, call: Callable[[], T]) -> T:
        return call_with_retries(READ_POLICY, lambda: self._call(call))

    def _call(self, call: Callable[[], T]) -> T:
        import mastodon

        try:
            return call()
        except OutsideError:
            raise
        except (mastodon.MastodonError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise classified(error) from error

    @cached_property
    def _api(self) -> Any:
        if not self.is_available:
            raise SwitchedOff(SYSTEM, "no MASTODON_ACCESS_TOKEN is set")
        import mastodon

        return mastodon.Mastodon(
            access_token=self.config.access_token,
            api_base_url=self.config.api_url,
            ratelimit_method="throw",
            version_check_mode="none",
            session=LimitedSession(),
            user_agent="Broker/1.0",
        )


def _posted(status: Any) -> PostedStatus:
    """Raises :class:`BadAnswer` if the answer is not a status: Mastodon.py accepts any JSON."""
    identity, url = status.get("id"), status.get("url")
    if not identity:
        raise BadAnswer(SYSTEM, "an answer that is no post")
    return PostedStatus(str(identity), str(url or ""))


def _inside(given: Any, name: str) -> Any:
    """A part of an answer; empty if there is none."""
    return (given.get(name) if isinstance(given, Mapping) else None) or {}


def links_of(content: str) -> set[str]:
    """The addresses that a post's HTML links to, and every word of its text: not every server adds links."""
    linked = {html.unescape(link) for link in re.findall(r'href="([^"]*)"', content)}
    lines = re.sub(r"</?(?:p|br|div)\b[^>]*>", " ", content)
    return linked | set(html.unescape(re.sub(r"<[^>]*>", "", lines)).split())


def classified(error: Exception) -> OutsideError:
    import mastodon

    cause = error.__context__
    text = redact(str(error), 300)
    if isinstance(error, mastodon.MastodonRatelimitError):
        # Mastodon.py also raises this when it cannot read the headers of a successful call.
        return RateLimited(SYSTEM, text, may_have_happened=str(error) != "Hit rate limit.")
    if isinstance(error, mastodon.MastodonNetworkError):
        if isinstance(cause, requests.exceptions.ConnectTimeout):
            return TimedOut(SYSTEM, "no connection in time", may_have_happened=False)
        if isinstance(cause, requests.exceptions.Timeout):
            return TimedOut(SYSTEM, f"no whole answer within {call_limit(TOTAL_SECONDS):.0f} s")
        is_refused = isinstance(cause, requests.ConnectionError) and "NewConnectionError" in str(cause)
        return Unreachable(SYSTEM, text, may_have_happened=not is_refused)
    if isinstance(error, mastodon.MastodonAPIError) and len(error.args) == 4:
        _, status, _, detail = error.args
        return error_for_status(SYSTEM, int(status), redact(str(detail or ""), 300))
    return BadAnswer(SYSTEM, text)
