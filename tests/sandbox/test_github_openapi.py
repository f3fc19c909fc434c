"""What the stand-in answers is what GitHub's own description of its API allows, status by status."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from sandbox.launcher import SandboxHandle

DATA = Path(__file__).parent.parent / "data" / "github_openapi" / "reduced.json"
REPO = "/repos/broker-sandbox/demo"
ANYWHERE = {"401", "403", "404", "422", "429"}  # the description lists these only where they are special


def to_json_schema(node: Any) -> Any:
    """OpenAPI 3.0 says `nullable`; JSON Schema says that null is one of the types."""
    if isinstance(node, list):
        return [to_json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: to_json_schema(value) for key, value in node.items()}
    if node.pop("nullable", False) is True:
        if "enum" in node and None not in node["enum"]:
            node["enum"] = [*node["enum"], None]
        if isinstance(node.get("type"), str) and not {"oneOf", "anyOf", "allOf"} & set(node):
            node["type"] = [node["type"], "null"]
        else:
            node = {"anyOf": [node, {"type": "null"}]}
    return node


@cache
def description() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


@cache
def components() -> dict[str, Any]:
    converted: dict[str, Any] = to_json_schema(description()["components"])
    return converted


def operation(method: str, path: str) -> tuple[str, dict[str, Any]]:
    """The description's template for a path; a literal segment wins over a parameter."""
    found = []
    for template, methods in description()["paths"].items():
        # The name of a ref or a branch may hold slashes.
        pattern = re.sub(r"\\{(ref|branch|basehead)\\}", "(.+)", re.escape(template))
        pattern = re.sub(r"\\{[a-z_]+\\}", "([^/]+)", pattern)
        if method.lower() in methods and re.fullmatch(pattern, path):
            found.append((template.count("{"), template, methods[method.lower()]))
    assert found, f"{method} {path} is not in the description"
    _, template, responses = min(found, key=lambda item: item[0])
    return template, responses


def check(answer: httpx.Response) -> None:
    method = answer.request.method
    path = answer.request.url.path.removeprefix("/github")
    template, responses = operation(method, path)
    status = str(answer.status_code)
    assert status in responses or status in ANYWHERE, f"{method} {template} never answers {status}"
    schema = responses.get(status, {}).get("schema")
    if (template, status) == ("/app/installations", "200"):
        # The description spells this account out as a user and an enterprise at once, which none is.
        schema = {"type": "array", "items": {"$ref": "#/components/schemas/installation"}}
    if schema is None and answer.is_error:  # many errors are listed without a body, though all have one
        schema = {"$ref": "#/components/schemas/basic-error", "required": ["message", "documentation_url"]}
    if schema is None:
        assert answer.content == b""
        return
    document = {**to_json_schema(schema), "components": components()}
    problems = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in Draft202012Validator(document).iter_errors(answer.json())
    ]
    assert not problems, f"{method} {template} {status}: {problems}"


class Checked:
    """A client that holds every answer against the description."""

    def __init__(self, sandbox: SandboxHandle) -> None:
        self.client = httpx.Client(headers={"Authorization": "Bearer any"}, timeout=30)
        self.root = sandbox.github_url

    def __call__(self, method: str, path: str, expected: int, body: Any = None) -> Any:
        answer = self.client.request(method, self.root + path, json=body)
        assert answer.status_code == expected, answer.text
        check(answer)
        return answer.json() if answer.content else None


@pytest.fixture
def call(sandbox) -> Checked:
    return Checked(sandbox)


def test_the_check_itself_can_fail(call, sandbox):
    answer = call.client.get(f"{call.root}{REPO}/issues/5")
    check(answer)
    for spoil in (
        {"number": "5"},
        {"labels": None},
        {"user": {"login": "x"}},
        {"state": None},
    ):
        broken = httpx.Response(200, json={**answer.json(), **spoil}, request=answer.request)
        with pytest.raises(AssertionError):
            check(broken)
    with pytest.raises(AssertionError):
        check(httpx.Response(418, json={}, request=answer.request))


def test_reading(call):
    for path in (
        REPO,
        f"{REPO}/issues?state=all&per_page=100",
        f"{REPO}/issues/5",
        f"{REPO}/issues/32",
        f"{REPO}/issues/5/comments",
        f"{REPO}/issues/comments",
        f"{REPO}/issues/5/labels",
        f"{REPO}/labels",
        f"{REPO}/labels/P0",
        f"{REPO}/pulls?state=all",
        f"{REPO}/pulls/32",
        f"{REPO}/pulls/32/comments",
        f"{REPO}/pulls/comments",
        f"{REPO}/pulls/32/reviews",
        f"{REPO}/pulls/32/commits",
        f"{REPO}/pulls/32/files",
        f"{REPO}/git/ref/heads/feature/issue-14",
        f"{REPO}/git/matching-refs/heads/feature",
        f"{REPO}/branches",
        f"{REPO}/branches/feature/issue-14",
        f"{REPO}/commits",
        f"{REPO}/commits/main",
        f"{REPO}/compare/main...feature/issue-14",
        f"{REPO}/collaborators/maintainer/permission",
        f"{REPO}/installation",
        "/app/installations",
        "/rate_limit",
        "/user",
    ):
        data = call("GET", path, 200)
        assert data, f"{path} answered nothing to check"


def test_issues_and_labels(call):
    number = call("POST", f"{REPO}/issues", 201, {"title": "t", "body": None, "labels": ["P9"]})["number"]
    issue = f"{REPO}/issues/{number}"
    call("PATCH", issue, 200, {"body": "b", "state": "closed"})
    call("PATCH", issue, 200, {"state": "open", "assignees": ["maintainer"]})
    call("POST", f"{issue}/labels", 200, {"labels": ["in-progress", "agent"]})
    call("PUT", f"{issue}/labels", 200, ["P0", "agent"])
    call("DELETE", f"{issue}/labels/agent", 200)
    call("DELETE", f"{issue}/labels/agent", 404)
    call("DELETE", f"{issue}/labels", 204)
    call("POST", f"{REPO}/labels", 201, {"name": "fresh", "color": "00ff00", "description": "d"})
    call("POST", f"{REPO}/labels", 422, {"name": "FRESH", "color": "00ff00"})
    call("PATCH", f"{REPO}/labels/fresh", 200, {"new_name": "fresher"})
    call("DELETE", f"{REPO}/labels/fresher", 204)
    comment = call("POST", f"{issue}/comments", 201, {"body": "hello"})["id"]
    call("GET", f"{REPO}/issues/comments/{comment}", 200)
    call("PATCH", f"{REPO}/issues/comments/{comment}", 200, {"body": "hi"})
    call("DELETE", f"{REPO}/issues/comments/{comment}", 204)


def test_pulls_and_refs(call, sandbox):
    sha = call("GET", f"{REPO}/git/ref/heads/main", 200)["object"]["sha"]
    call("POST", f"{REPO}/git/refs", 201, {"ref": "refs/heads/work", "sha": sha})
    head = sandbox.control("POST", "github/push", {"branch": "work"})["sha"]
    body = {"title": "t", "head": "work", "base": "main", "body": "Fixes #5"}
    number = call("POST", f"{REPO}/pulls", 201, body)["number"]
    pull = f"{REPO}/pulls/{number}"
    call("PATCH", pull, 200, {"title": "u"})
    remark = {"body": "r", "path": "a.py", "line": 1, "commit_id": head, "side": "RIGHT"}
    comment = call("POST", f"{pull}/comments", 201, remark)["id"]
    call("POST", f"{pull}/comments", 201, {"body": "reply", "in_reply_to": comment})
    call("POST", f"{pull}/comments/{comment}/replies", 201, {"body": "another"})
    call("POST", f"{pull}/comments/99/replies", 404, {"body": "to nobody"})
    call("GET", f"{REPO}/pulls/comments/{comment}", 200)
    call("PATCH", f"{REPO}/pulls/comments/{comment}", 200, {"body": "s"})
    call("DELETE", f"{REPO}/pulls/comments/{comment}", 204)
    call("POST", f"{pull}/reviews", 200, {"event": "APPROVE"})
    call("PUT", f"{pull}/merge", 200)
    call("PUT", f"{pull}/merge", 405)
    call("GET", pull, 200)
    call("GET", f"{REPO}/issues/{number}", 200)
    call("PATCH", f"{REPO}/git/refs/heads/work", 200, {"sha": sha, "force": True})
    call("DELETE", f"{REPO}/git/refs/heads/work", 204)
    call("POST", "/app/installations/7001/access_tokens", 201)


def test_refusals(call, sandbox):
    call("GET", "/repos/no/where", 404)
    call("GET", f"{REPO}/issues/99999", 404)
    call("GET", f"{REPO}/branches/none", 404)
    call("GET", f"{REPO}/issues?state=both", 422)
    call("POST", f"{REPO}/issues", 422, {})
    call("POST", f"{REPO}/issues/5/labels", 422, {"labels": ["x" * 51]})
    call("POST", f"{REPO}/git/refs", 422, {"ref": "refs/heads/main", "sha": "0"})
    call("POST", f"{REPO}/pulls", 422, {"title": "t", "head": "main", "base": "main"})
    call("DELETE", f"{REPO}/git/refs/heads/none", 422)
    call("POST", "/app/installations/1/access_tokens", 404)
    check(httpx.get(f"{call.root}/user"))
    sandbox.control("PATCH", "github/settings", {"rate_limit": 0})
    call("GET", f"{REPO}/issues", 403)
