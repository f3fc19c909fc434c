"""Where `html_url` leads: an issue or pull request as a small page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from sandbox.page import HEADERS, STYLE

if TYPE_CHECKING:
    from sandbox.github import GitHub

MORE_STYLE = (
    "pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .8rem; }"
)


def page_routes(github: GitHub) -> list[BaseRoute]:
    async def issue_page(request: Request) -> Response:
        parameters = request.path_params
        repo = github.state.find(parameters["owner"], parameters["repo"])
        issue = repo.issues.get(parameters["number"]) if repo else None
        if repo is None or issue is None:
            return HTMLResponse(
                "<!doctype html><title>Not found</title><p>No such issue.", 404, headers=HEADERS
            )
        chips = "".join(f'<span class="chip">{escape(name)}</span>' for name in repo.label_names(issue))
        remarks = [
            (item.created_at, item.author, "", item.body)
            for item in repo.comments.values()
            if item.number == issue.number
        ]
        remarks += [
            (item.created_at, item.author, f"{item.path}:{item.line or ''}", item.body)
            for item in repo.review_comments.values()
            if item.number == issue.number
        ]
        talk = "".join(
            f"<h3>{escape(author)} <span class=soft>{escape(at)} {escape(where)}</span></h3>"
            f"<pre>{escape(body)}</pre>"
            for at, author, where, body in sorted(remarks)
        )
        side = f"<p>{escape(issue.pull.head)} → {escape(issue.pull.base)}</p>" if issue.pull else ""
        title = f"{escape(issue.title)} #{issue.number}"
        return HTMLResponse(
            '<!doctype html><html lang="ja"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}{MORE_STYLE}</style></head><body>"
            '<p class="notice">Broker sandbox: a stand-in, nothing here is real. <a href="/">All</a></p>'
            f"<h1>{title}</h1><p>{escape(repo.full_name)} · {escape(issue.state)} · {escape(issue.author)} · "
            f"{escape(issue.created_at)}</p><p>{chips}</p>{side}"
            f"<pre>{escape(issue.body or '')}</pre>{talk}</body></html>",
            headers=HEADERS,
        )

    return [
        Route("/{owner}/{repo}/issues/{number:int}", issue_page),
        Route("/{owner}/{repo}/pull/{number:int}", issue_page),
    ]
