"""Control endpoints of the GitHub stand-in under `/_sandbox/github`: what people do on the web or by `git push`.

They need no token, count towards no limit, and send the same webhooks as the API.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from sandbox.control import Endpoint, Refused, json_object, no_other_fields, refusing
from sandbox.core import from_iso, iso
from sandbox.github_http import ApiError
from sandbox.github_state import Repository, Settings

if TYPE_CHECKING:
    from sandbox.github import GitHub

DEFAULT_ACTOR = "maintainer"
MAX_ISSUES = 20_000  # in one call


def control_routes(github: GitHub) -> list[BaseRoute]:
    changes = github.changes

    def repository(data: dict[str, Any]) -> Repository:
        owner, slash, name = str(data.get("repository", "broker-sandbox/demo")).partition("/")
        repo = github.state.find(owner, name)
        if not slash or repo is None:
            raise Refused("'repository' must be the owner/name of a repository that exists.")
        return repo

    def actor(data: dict[str, Any]) -> str:
        login = data.get("actor", DEFAULT_ACTOR)
        if not isinstance(login, str) or not login:
            raise Refused("'actor' must be a login.")
        return login

    async def settings(request: Request) -> Response:
        current = github.state.settings
        if request.method == "PATCH":
            data = await json_object(request)
            no_other_fields(data, *(field.name for field in fields(Settings)))
            for name, value in data.items():
                kind = type(getattr(current, name))
                if type(value) is not kind or value < 0:
                    wanted = "true or false" if kind is bool else "a whole number, 0 or more"
                    raise Refused(f"'{name}' must be {wanted}.")
            if data.get("exhausted_status", 403) not in (403, 429):
                raise Refused("'exhausted_status' must be 403 or 429.")
            for name, value in data.items():
                setattr(current, name, value)
            github.world.touch()
        return JSONResponse(vars(current))

    async def repositories(request: Request) -> Response:
        data = await json_object(request)
        no_other_fields(data, "repository", "default_branch", "description", "actor")
        owner, slash, name = str(data.get("repository", "")).partition("/")
        if not (owner and slash and name) or "/" in name:
            raise Refused("'repository' must be owner/name.")
        if github.state.find(owner, name):
            raise Refused("That repository exists already.")
        now = changes.now()
        branch = str(data.get("default_branch", "main"))
        repo = Repository(github.state.next_id(), owner, name, now, now, branch, data.get("description"))
        github.state.repositories[repo.full_name.lower()] = repo
        changes.push_commit(repo, actor(data), branch, "Initial commit")
        return JSONResponse(github.shapes.full_repository(repo), status_code=201)

    async def issues(request: Request) -> Response:
        """Open issues: `{"issues": [{title, body?, labels?, author?, created_at?, updated_at?}]}`."""
        data = await json_object(request)
        no_other_fields(data, "repository", "issues", "actor")
        repo, login, items = repository(data), actor(data), data.get("issues")
        if not isinstance(items, list) or not items or len(items) > MAX_ISSUES:
            raise Refused(f"'issues' must be a list of 1 to {MAX_ISSUES} issues.")
        numbers = []
        for item in items:
            if not isinstance(item, dict):
                raise Refused("An issue is a JSON object.")
            no_other_fields(item, "title", "body", "labels", "author", "created_at", "updated_at")
            try:
                times = {
                    name: iso(from_iso(item[name])) for name in ("created_at", "updated_at") if name in item
                }
            except (TypeError, ValueError) as error:
                raise Refused("Times must be ISO 8601.") from error
            author = item.get("author", login)
            issue = changes.create_issue(
                repo, author, item.get("title"), item.get("body"), item.get("labels", [])
            )
            issue.created_at = times.get("created_at", issue.created_at)
            issue.updated_at = times.get("updated_at", times.get("created_at", issue.updated_at))
            numbers.append(issue.number)
        return JSONResponse({"numbers": numbers}, status_code=201)

    async def push(request: Request) -> Response:
        data = await json_object(request)
        no_other_fields(data, "repository", "branch", "message", "files", "actor")
        repo, branch = repository(data), data.get("branch")
        if branch not in repo.branches:
            raise Refused("'branch' must be a branch of the repository.")
        files = data.get("files", ["README.md"])
        if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
            raise Refused("'files' must be a list of paths.")
        commit = changes.push_commit(repo, actor(data), str(branch), str(data.get("message", "Work")), files)
        return JSONResponse({"sha": commit.sha}, status_code=201)

    async def deliveries(request: Request) -> Response:
        return JSONResponse({"deliveries": [item.as_dict() for item in reversed(github.webhooks.recent)]})

    async def redeliver(request: Request) -> Response:
        delivery = github.webhooks.send_again(request.path_params["guid"])
        if delivery is None:
            raise Refused("No such delivery is remembered.")
        return JSONResponse(delivery.as_dict(), status_code=202)

    table: list[tuple[str, Endpoint, list[str]]] = [
        ("/settings", settings, ["GET", "PATCH"]),
        ("/repositories", repositories, ["POST"]),
        ("/issues", issues, ["POST"]),
        ("/push", push, ["POST"]),
        ("/deliveries", deliveries, ["GET"]),
        ("/deliveries/{guid}/redeliver", redeliver, ["POST"]),
    ]
    return [
        Route(path, refusing(_as_refusal(endpoint)), methods=methods) for path, endpoint, methods in table
    ]


def _as_refusal(endpoint: Endpoint) -> Endpoint:
    async def wrapped(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ApiError as error:
            raise Refused(f"{error}: {error.body.get('errors', '')}") from error

    return wrapped
