"""A stand-in for GitHub that does as little as possible: it answers :mod:`tasks.github.client` at once.

The sandbox behaves far more like GitHub, but a bench would then measure the sandbox. ``PUT /-/issues`` sets the issues
of a listing; ``GET /-/calls`` tells how many requests there were.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

SHA = "5" * 40
REPOSITORY = "bench/issues"
BASE = f"/repos/{REPOSITORY}"
LABELS = re.compile(rf"{BASE}/issues/(\d+)/labels")
LABEL = re.compile(rf"{BASE}/issues/(\d+)/labels/.+")
ISSUE = re.compile(rf"{BASE}/issues/(\d+)")
OWN_LABELS = ("P0", "BACKENDCODER")  # of the issues that the bench offers
BUDGET = [
    (b"x-ratelimit-limit", b"5000"),
    (b"x-ratelimit-remaining", b"4999"),
    (b"x-ratelimit-reset", b"4102444800"),
]
BODY = (
    "## 成果物\n- a small change, with its test\n\n## 詳細\n" + "Some lines of what is wanted. " * 12 + "\n"
)


def issue_json(number: int, labels: list[str], updated_at: str) -> dict[str, Any]:
    """An issue with the fields that GitHub sends and our client reads."""
    url = f"https://example.test{BASE}/issues/{number}"
    return {
        "id": number,
        "node_id": f"I_{number}",
        "number": number,
        "title": f"Issue {number} of the bench",
        "body": BODY,
        "state": "open",
        "locked": False,
        "comments": 0,
        "user": {"login": "bench", "id": 1, "type": "User"},
        "labels": [{"id": 1, "name": name, "color": "ededed", "default": False} for name in labels],
        "assignees": [],
        "milestone": None,
        "url": url,
        "html_url": f"https://example.test/{REPOSITORY}/issues/{number}",
        "repository_url": f"https://example.test{BASE}",
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": updated_at,
        "closed_at": None,
        "author_association": "MEMBER",
    }


class GitHub:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.count, self.first, self.stamp = 0, 1, "2026-01-01T00:00:00Z"
        self.labels = ["P1", "UIUX"]
        self.pages: dict[int, bytes] = {}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, document, headers = self.answer(scope, body)
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        headers = [
            (b"content-type", b"application/json; charset=utf-8"),
            (b"content-length", str(len(data)).encode()),
            *BUDGET,
            *headers,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    def answer(self, scope: dict[str, Any], body: bytes) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        method, path = scope["method"], scope["path"]
        if path == "/-/calls":
            return 200, dict(self.calls), []
        if path == "/-/issues":
            given = json.loads(body)
            self.count, self.first = given["count"], given.get("first", 1)
            self.stamp, self.labels = given["stamp"], given.get("labels", self.labels)
            self.pages = {}
            return 200, {}, []
        if path == "/health":
            return 200, {"status": "ok"}, []
        self.calls[method] += 1
        if method == "POST":
            return self.write(path, body)
        if method == "DELETE":
            return (200, [], []) if LABEL.fullmatch(path) else (404, {"message": "Not Found"}, [])
        return self.read(scope, path)

    def write(self, path: str, body: bytes) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        if LABELS.fullmatch(path):
            names = [*OWN_LABELS, *json.loads(body)["labels"]]
            return 200, [{"id": 1, "name": name, "color": "ededed"} for name in names], []
        if path == f"{BASE}/git/refs":
            given = json.loads(body)
            return 201, {"ref": given["ref"], "object": {"type": "commit", "sha": SHA}}, []
        return 201, {"id": 1}, []

    def read(self, scope: dict[str, Any], path: str) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        if path == BASE:
            return 200, {"full_name": REPOSITORY, "default_branch": "main"}, []
        if path.startswith(f"{BASE}/branches/"):
            return 200, {"name": path.rsplit("/", 1)[1], "commit": {"sha": SHA}}, []
        if path == f"{BASE}/pulls":
            return self.listing(scope, None)
        if path == f"{BASE}/issues":
            return self.listing(scope, dict(parse_qsl(scope["query_string"].decode())))
        if found := ISSUE.fullmatch(path):
            return 200, issue_json(int(found[1]), self.labels, self.stamp), []
        return 404, {"message": "Not Found"}, []

    def listing(
        self, scope: dict[str, Any], query: dict[str, str] | None
    ) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        """No pull requests, and no issues in a listing of changes; the full listing has all issues."""
        is_full = query is not None and "since" not in query
        etag = f'"{self.stamp}-{is_full}"'.encode()
        if dict(scope["headers"]).get(b"if-none-match") == etag:
            return 304, b"", [(b"etag", etag)]
        if query is None or not is_full:
            return 200, b"[]", [(b"etag", etag)]
        page = int(query.get("page", "1"))
        headers = [(b"etag", etag)]
        if page * 100 < self.count:
            host = dict(scope["headers"])[b"host"].decode()
            link = f'<http://{host}{BASE}/issues?state=open&per_page=100&page={page + 1}>; rel="next"'
            headers.append((b"link", link.encode()))
        return 200, self.page(page), headers

    def page(self, page: int) -> bytes:
        if page not in self.pages:
            start = self.first + (page - 1) * 100
            numbers = range(start, min(start + 100, self.first + self.count))
            found = [issue_json(number, self.labels, self.stamp) for number in numbers]
            self.pages[page] = json.dumps(found).encode()
        return self.pages[page]


application = GitHub()
