"""GitHub's HTTP behaviour: authentication, rate limits, pagination, ETags, and the form of errors."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from sandbox.github_state import Issue, Repository

if TYPE_CHECKING:
    from sandbox.github import GitHub

DOCUMENTATION = "https://docs.github.com/rest"
BAD_TOKEN = "bad-token"
DEFAULT_LOGIN = "broker-bot"
APP_LOGIN = "broker-app[bot]"
RATE_WINDOW_SECONDS = 3600
MAX_BODY_BYTES = 2**20
WRITES = ("POST", "PUT", "PATCH", "DELETE")

Record = TypeVar("Record")


class ApiError(Exception):
    """An error answer of GitHub."""

    def __init__(
        self,
        status: int,
        message: str,
        errors: list[dict[str, Any]] | list[str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body: dict[str, Any] = {"message": message}
        if errors is not None:
            self.body["errors"] = errors
        self.body |= {"documentation_url": DOCUMENTATION, "status": str(status)}


def not_found(message: str = "Not Found") -> ApiError:
    return ApiError(404, message)


def invalid(resource: str, field_name: str, code: str = "invalid", message: str | None = None) -> ApiError:
    """422 Validation Failed about one field."""
    error = {"resource": resource, "code": code, "field": field_name}
    if message is not None:
        error["message"] = message
    return ApiError(422, "Validation Failed", [error])


@dataclass
class Reply:
    data: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Ask:
    """One authenticated call with the lookups that most endpoints need."""

    def __init__(self, github: GitHub, request: Request, actor: str) -> None:
        self.github = github
        self.request = request
        self.actor = actor
        self.query = request.query_params

    def param(self, name: str) -> str:
        return str(self.request.path_params[name])

    def number(self, name: str = "number") -> int:
        text = self.param(name)
        if not text.isdecimal() or len(text) > 15:
            raise not_found()
        return int(text)

    def repo(self) -> Repository:
        repo = self.github.state.find(self.param("owner"), self.param("repo"))
        if repo is None:
            raise not_found()
        return repo

    def issue(self, repo: Repository) -> Issue:
        issue = repo.issues.get(self.number())
        if issue is None:
            raise not_found()
        return issue

    def pull(self, repo: Repository) -> Issue:
        issue = repo.issues.get(self.number())
        if issue is None or issue.pull is None:
            raise not_found()
        return issue

    async def json(self) -> Any:
        body = await self.request.body()
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, "Payload Too Large")
        try:
            return json.loads(body) if body else {}
        except ValueError as error:
            raise ApiError(400, "Problems parsing JSON") from error

    async def json_object(self) -> dict[str, Any]:
        data = await self.json()
        if not isinstance(data, dict):
            raise ApiError(422, "Invalid request.\n\nThe body is not an object.")
        return data

    def choice(self, name: str, allowed: Sequence[str], resource: str = "Issue") -> str:
        """A query parameter that must be one of the allowed words; the first is the default."""
        value = self.query.get(name) or allowed[0]
        if value not in allowed:
            raise invalid(resource, name)
        return value

    def page(self, records: Sequence[Record]) -> tuple[list[Record], dict[str, str]]:
        """The slice that was asked for, and the Link header."""
        per_page = min(_positive(self.query.get("per_page"), 30), 100)
        page = _positive(self.query.get("page"), 1)
        last = max(1, math.ceil(len(records) / per_page))
        links = []
        if page > 1:
            links += [("prev", min(page - 1, last))]
        if page < last:
            links += [("next", page + 1), ("last", last)]
        if page > 1:
            links += [("first", 1)]
        headers = {}
        if links:
            kept = [(key, value) for key, value in self.query.multi_items() if key != "page"]
            url = f"{self.github.world.base_url}{self.request.url.path}"
            headers["link"] = ", ".join(
                f'<{url}?{urlencode([*kept, ("page", str(number))])}>; rel="{rel}"' for rel, number in links
            )
        return list(records[(page - 1) * per_page : page * per_page]), headers


def _positive(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and 0 < int(text) < 10**9 else default


Handler = Callable[[Ask], Awaitable[Reply]]


class Gate:
    """Wraps every endpoint. Counts requests an hour and, if switched on, writes a minute."""

    def __init__(self, github: GitHub) -> None:
        self.github = github
        self._writes: deque[datetime] = deque()

    def endpoint(self, handler: Handler, *, counted: bool = True) -> Callable[[Request], Awaitable[Response]]:
        async def run(request: Request) -> Response:
            try:
                actor = self._authenticate(request)
                if counted:
                    self._count(request)
                reply = await handler(Ask(self.github, request, actor))
            except ApiError as error:
                reply = Reply(error.body, error.status, error.headers)
            return self._render(request, reply, counted)

        return run

    def _authenticate(self, request: Request) -> str:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        token = secret.strip()
        if scheme.lower() == "basic":
            try:
                token = base64.b64decode(token, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                token = BAD_TOKEN
        if not token:
            raise ApiError(401, "Requires authentication")
        if token == BAD_TOKEN or scheme.lower() not in ("token", "bearer", "basic"):
            raise ApiError(401, "Bad credentials")
        if token.startswith("user:"):
            return token.removeprefix("user:") or DEFAULT_LOGIN
        return APP_LOGIN if token.startswith("ghs_") else DEFAULT_LOGIN

    def _count(self, request: Request) -> None:
        settings = self.github.state.settings
        self.roll_window()
        if settings.rate_used >= settings.rate_limit:
            raise ApiError(
                settings.exhausted_status,
                "API rate limit exceeded for user ID 10001. If you reach out to GitHub Support for help, "
                "please include the request ID.",
            )
        settings.rate_used += 1
        if settings.writes_per_minute and request.method in WRITES:
            now = self.github.world.clock.now()
            while self._writes and (now - self._writes[0]).total_seconds() >= 60:
                self._writes.popleft()
            if len(self._writes) >= settings.writes_per_minute:
                wait = max(1, math.ceil(60 - (now - self._writes[0]).total_seconds()))
                raise ApiError(
                    403,
                    "You have exceeded a secondary rate limit. "
                    "Please wait a few minutes before you try again.",
                    headers={"retry-after": str(wait)},
                )
            self._writes.append(now)

    def roll_window(self) -> None:
        settings, now = self.github.state.settings, int(self.github.world.clock.now().timestamp())
        # A reset that is far ahead comes from a clock that was set back.
        if not now < settings.rate_reset_at <= now + RATE_WINDOW_SECONDS:
            settings.rate_used, settings.rate_reset_at = 0, now + RATE_WINDOW_SECONDS

    def rate(self) -> dict[str, int]:
        self.roll_window()
        settings = self.github.state.settings
        return {
            "limit": settings.rate_limit,
            "remaining": max(0, settings.rate_limit - settings.rate_used),
            "reset": settings.rate_reset_at,
            "used": settings.rate_used,
        }

    def _render(self, request: Request, reply: Reply, counted: bool) -> Response:
        body = b"" if reply.status == 204 else json.dumps(reply.data, ensure_ascii=False).encode()
        headers = dict(reply.headers)
        status = reply.status
        if request.method == "GET" and status == 200:
            etag = f'W/"{hashlib.sha256(body).hexdigest()}"'
            headers |= {"etag": etag, "cache-control": "private, max-age=60, s-maxage=60"}
            asked = [part.strip() for part in request.headers.get("if-none-match", "").split(",")]
            if etag in asked or etag.removeprefix("W/") in asked:
                status, body = 304, b""
                if counted:  # an unchanged answer costs nothing
                    self.github.state.settings.rate_used -= 1
        headers |= {f"x-ratelimit-{name}": str(value) for name, value in self.rate().items()}
        headers |= {
            "x-ratelimit-resource": "core",
            "x-github-media-type": "github.v3; format=json",
            "x-github-api-version-selected": "2022-11-28",
            "x-github-request-id": secrets.token_hex(8).upper(),
        }
        media = "application/json; charset=utf-8" if body else None
        return Response(body, status_code=status, headers=headers, media_type=media)
