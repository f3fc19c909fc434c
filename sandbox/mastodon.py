"""A Mastodon instance with one account, the bot's: posting with Idempotency-Key, length check, own posts."""

import json
from datetime import datetime, timedelta
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sandbox.core import System, from_iso
from sandbox.mastodon_instance import NODEINFO_SCHEMA, instance_v1, instance_v2, nodeinfo
from sandbox.mastodon_text import URL_LENGTH, content_html, countable_length, page_html
from sandbox.partial_state import refuse_unknown

BAD_TOKEN = "bad-token"
ACCOUNT_ID = "109000000000000001"
KEY_LIFETIME = timedelta(hours=1)
RATE_WINDOW_SECONDS = 300
DEFAULT_PAGE, MAX_PAGE = 20, 40
VISIBILITIES = ("public", "unlisted", "private", "direct")


class Mastodon(System):
    name = "mastodon"

    def reset(self) -> None:
        self.max_characters = 500
        self.rate_limit = 300
        self.statuses: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, dict[str, str]] = {}
        self._last_id = 0
        self._window_started_at: datetime | None = None
        self._calls_in_window = 0

    def dump(self) -> dict[str, Any]:
        return {
            "max_characters": self.max_characters,
            "rate_limit": self.rate_limit,
            "statuses": list(self.statuses.values()),
            "keys": self.keys,
            "last_id": self._last_id,
        }

    def load(self, data: dict[str, Any]) -> None:
        """Keys that are missing keep their present value."""
        refuse_unknown(data, self.dump())
        statuses = {
            str(status["id"]): dict(status) for status in data.get("statuses", self.statuses.values())
        }
        self.max_characters = int(data.get("max_characters", self.max_characters))
        self.rate_limit = int(data.get("rate_limit", self.rate_limit))
        self.statuses = statuses
        self.keys = dict(data.get("keys", self.keys))
        self._last_id = int(data.get("last_id", self._last_id))
        self._window_started_at = None

    def overview(self) -> dict[str, Any]:
        rows = [
            [status["created_at"], {"text": status["text"], "href": self._page(status)}, status["visibility"]]
            for status in self._newest_first()
        ]
        return {"sections": [{"title": "Posts", "columns": ["time", "text", "visibility"], "rows": rows}]}

    def routes(self) -> list[BaseRoute]:
        found: list[BaseRoute] = [
            Route("/api/v1/statuses", self.post_status, methods=["POST"]),
            Route("/api/v1/statuses/{id}", self.get_status, methods=["GET"]),
            Route("/api/v1/statuses/{id}", self.edit_status, methods=["PUT"]),
            Route("/api/v1/statuses/{id}", self.delete_status, methods=["DELETE"]),
            Route("/api/v1/accounts/verify_credentials", self.own_account, methods=["GET"]),
            Route("/api/v1/accounts/lookup", self.own_account, methods=["GET"]),
            Route("/api/v1/accounts/{id}", self.get_account, methods=["GET"]),
            Route("/api/v1/accounts/{id}/statuses", self.account_statuses, methods=["GET"]),
            Route("/api/v1/apps/verify_credentials", self.own_app, methods=["GET"]),
            Route("/.well-known/nodeinfo", self.nodeinfo_links, methods=["GET"]),
            Route("/nodeinfo/2.0", self.nodeinfo, methods=["GET"]),
            Route("/@bot/{id}", self.status_page, methods=["GET"]),
            Route("/@bot", self.account_page, methods=["GET"]),
        ]
        # Mastodon.py asks with a slash at the end, others without.
        for slash in ("", "/"):
            found.append(Route(f"/api/v1/instance{slash}", self.instance_v1, methods=["GET"]))
            found.append(Route(f"/api/v2/instance{slash}", self.instance_v2, methods=["GET"]))
        return found

    # Statuses

    async def post_status(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        form = await _parameters(request)
        key = request.headers.get("idempotency-key")
        known = self._status_of_key(key)
        if known is not None:
            return self._answer(self._status(known))
        text, spoiler_text = str(form.get("status") or ""), str(form.get("spoiler_text") or "")
        problem = self._problem(text, spoiler_text, form)
        if problem:
            return self._error(422, f"Validation failed: {problem}")
        now = self.world.clock.now()
        self._last_id = max(int(now.timestamp() * 1000) << 16, self._last_id + 1)
        status: dict[str, Any] = {
            "id": str(self._last_id),
            "created_at": _milliseconds(now),
            "edited_at": None,
            "text": text,
            "spoiler_text": spoiler_text,
            "visibility": form.get("visibility") or "public",
            "language": form.get("language") or "ja",
            "sensitive": _is_true(form.get("sensitive")),
            "in_reply_to_id": form.get("in_reply_to_id"),
        }
        self.statuses[status["id"]] = status
        if key:
            self.keys[key] = {"status_id": status["id"], "expires_at": (now + KEY_LIFETIME).isoformat()}
        self.world.touch()
        return self._answer(self._status(status))

    async def get_status(self, request: Request) -> Response:
        status = self.statuses.get(request.path_params["id"])
        if status is None or (status["visibility"] not in ("public", "unlisted") and not _token(request)):
            return self._error(404, "Record not found")
        return self._answer(self._status(status))

    async def edit_status(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        status = self.statuses.get(request.path_params["id"])
        if status is None:
            return self._error(404, "Record not found")
        form = await _parameters(request)
        text = str(form.get("status") or "")
        spoiler_text = str(form.get("spoiler_text") or "")
        problem = self._problem(text, spoiler_text, {})
        if problem:
            return self._error(422, f"Validation failed: {problem}")
        now = _milliseconds(self.world.clock.now())
        status |= {"text": text, "spoiler_text": spoiler_text, "edited_at": now}
        self.world.touch()
        return self._answer(self._status(status))

    async def delete_status(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        status = self.statuses.pop(request.path_params["id"], None)
        if status is None:
            return self._error(404, "Record not found")
        self.world.touch()
        return self._answer({**self._status(status), "text": status["text"]})

    async def account_statuses(self, request: Request) -> Response:
        if request.path_params["id"] != ACCOUNT_ID:
            return self._error(404, "Record not found")
        if _token(request) == BAD_TOKEN:
            return self._error(401, "The access token is invalid")
        query = request.query_params
        try:
            limit = min(int(query.get("limit") or DEFAULT_PAGE), MAX_PAGE)
            bounds = {name: int(query[name]) for name in ("max_id", "since_id", "min_id") if name in query}
        except ValueError:
            return self._error(400, "Bad request")
        visible = VISIBILITIES if _token(request) else ("public", "unlisted")
        chosen = [
            status
            for status in self._newest_first()
            if status["visibility"] in visible
            and int(status["id"]) < bounds.get("max_id", int(status["id"]) + 1)
            and int(status["id"]) > max(bounds.get("since_id", 0), bounds.get("min_id", 0))
        ]
        # since_id gives the newest after it, min_id those directly after it.
        page = chosen[-limit:] if "min_id" in bounds else chosen[:limit]
        headers = {}
        if page:
            here = f"{self._base}/api/v1/accounts/{ACCOUNT_ID}/statuses?limit={limit}"
            older = f'<{here}&max_id={page[-1]["id"]}>; rel="next"'
            newer = f'<{here}&min_id={page[0]["id"]}>; rel="prev"'
            headers["Link"] = f"{older}, {newer}" if len(page) == limit else newer
        return self._answer([self._status(status) for status in page], headers)

    # Account, application, instance

    async def own_account(self, request: Request) -> Response:
        refused = self._refuse(request)
        if refused:
            return refused
        source = {"privacy": "public", "sensitive": False, "language": "ja", "note": "", "fields": []}
        return self._answer({**self._account(), "source": source})

    async def get_account(self, request: Request) -> Response:
        if request.path_params["id"] != ACCOUNT_ID:
            return self._error(404, "Record not found")
        return self._answer(self._account())

    async def own_app(self, request: Request) -> Response:
        return self._refuse(request) or self._answer(
            {"id": "1", "name": "Broker", "website": None, "scopes": ["read", "write"], "redirect_uris": []}
        )

    async def instance_v1(self, request: Request) -> Response:
        count = len(self.statuses)
        return self._answer(instance_v1(self._domain, self._configuration(), self._account(), count))

    async def instance_v2(self, request: Request) -> Response:
        return self._answer(instance_v2(self._domain, self._configuration(), self._account()))

    async def nodeinfo_links(self, request: Request) -> Response:
        return JSONResponse({"links": [{"rel": NODEINFO_SCHEMA, "href": f"{self._base}/nodeinfo/2.0"}]})

    async def nodeinfo(self, request: Request) -> Response:
        return JSONResponse(nodeinfo(len(self.statuses)))

    # Pages for people

    async def status_page(self, request: Request) -> Response:
        status = self.statuses.get(request.path_params["id"])
        if status is None:
            return HTMLResponse(page_html("Not found", "<p>There is no such post.</p>"), status_code=404)
        return HTMLResponse(page_html("Post", self._article(status)))

    async def account_page(self, request: Request) -> Response:
        articles = "".join(self._article(status) for status in self._newest_first()[:MAX_PAGE])
        return HTMLResponse(page_html("@bot", articles or "<p>No posts yet.</p>"))

    def _article(self, status: dict[str, Any]) -> str:
        return (
            f'<article><p><a href="{escape(self._page(status))}">{escape(status["created_at"])}</a>'
            f" · {escape(status['visibility'])}</p>{content_html(status['text'])}</article>"
        )

    # Small parts

    @property
    def _base(self) -> str:
        return f"{self.world.base_url}/{self.name}"

    @property
    def _domain(self) -> str:
        return self.world.base_url.partition("://")[2]

    def _page(self, status: dict[str, Any]) -> str:
        return f"{self._base}/@bot/{status['id']}"

    def _newest_first(self) -> list[dict[str, Any]]:
        return sorted(self.statuses.values(), key=lambda status: int(status["id"]), reverse=True)

    def _status_of_key(self, key: str | None) -> dict[str, Any] | None:
        now = self.world.clock.now()
        self.keys = {key: use for key, use in self.keys.items() if from_iso(use["expires_at"]) > now}
        return self.statuses.get(self.keys[key]["status_id"]) if key in self.keys else None

    def _problem(self, text: str, spoiler_text: str, form: dict[str, Any]) -> str | None:
        if not text.strip() and not form.get("media_ids"):
            return "Text can't be blank"
        if countable_length(text, spoiler_text) > self.max_characters:
            return f"Text character limit of {self.max_characters} exceeded"
        if (form.get("visibility") or "public") not in VISIBILITIES:
            return "Visibility is not included in the list"
        if form.get("scheduled_at"):
            return "Scheduled at is not offered by this stand-in"
        return None

    def _refuse(self, request: Request) -> Response | None:
        token = _token(request)
        if token is None or token == BAD_TOKEN:
            return self._error(401, "The access token is invalid")
        now = self.world.clock.now()
        started_at = self._window_started_at
        if started_at is None or not 0 <= (now - started_at).total_seconds() < RATE_WINDOW_SECONDS:
            self._window_started_at, self._calls_in_window = now, 0
        self._calls_in_window += 1
        if self._calls_in_window > self.rate_limit:
            return self._error(429, "Too many requests")
        return None

    def _answer(
        self, content: Any, headers: dict[str, str] | None = None, status_code: int = 200
    ) -> Response:
        reset_at = (self._window_started_at or self.world.clock.now()) + timedelta(
            seconds=RATE_WINDOW_SECONDS
        )
        limits = {
            "X-RateLimit-Limit": str(self.rate_limit),
            "X-RateLimit-Remaining": str(max(0, self.rate_limit - self._calls_in_window)),
            "X-RateLimit-Reset": reset_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        return JSONResponse(content, status_code, headers={**limits, **(headers or {})})

    def _error(self, status_code: int, message: str) -> Response:
        return self._answer({"error": message}, status_code=status_code)

    def _configuration(self) -> dict[str, Any]:
        return {
            "urls": {"status": self._base},
            "accounts": {"max_featured_tags": 10},
            "statuses": {
                "max_characters": self.max_characters,
                "max_media_attachments": 4,
                "characters_reserved_per_url": URL_LENGTH,
            },
        }

    def _account(self) -> dict[str, Any]:
        newest = next(iter(self._newest_first()), None)
        return {
            "id": ACCOUNT_ID,
            "username": "bot",
            "acct": "bot",
            "display_name": "Sandbox bot",
            "locked": False,
            "bot": True,
            "discoverable": False,
            "group": False,
            "created_at": "2024-01-01T00:00:00.000Z",
            "note": "",
            "url": f"{self._base}/@bot",
            "uri": f"{self._base}/users/bot",
            "avatar": "",
            "avatar_static": "",
            "header": "",
            "header_static": "",
            "followers_count": 0,
            "following_count": 0,
            "statuses_count": len(self.statuses),
            "last_status_at": newest["created_at"][:10] if newest else None,
            "emojis": [],
            "fields": [],
        }

    def _status(self, status: dict[str, Any]) -> dict[str, Any]:
        """The status as the API shows it: the source text only comes back when it is deleted."""
        shown = {key: value for key, value in status.items() if key != "text"}
        return {
            **shown,
            "in_reply_to_account_id": ACCOUNT_ID if status["in_reply_to_id"] else None,
            "uri": f"{self._base}/users/bot/statuses/{status['id']}",
            "url": self._page(status),
            "replies_count": 0,
            "reblogs_count": 0,
            "favourites_count": 0,
            "quotes_count": 0,
            "favourited": False,
            "reblogged": False,
            "muted": False,
            "bookmarked": False,
            "pinned": False,
            "content": content_html(status["text"]),
            "filtered": [],
            "reblog": None,
            "application": {"name": "Broker", "website": None},
            "account": self._account(),
            "media_attachments": [],
            "mentions": [],
            "tags": [],
            "emojis": [],
            "card": None,
            "poll": None,
        }


async def _parameters(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").startswith("application/json"):
        data: dict[str, Any] = json.loads(await request.body() or b"{}")
        return data
    form = await request.form()
    return {key.removesuffix("[]"): value for key, value in form.multi_items()}


def _token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _is_true(value: Any) -> bool:
    return value is True or str(value).lower() in ("1", "true", "on")


def _milliseconds(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
