"""The sandbox's own page: what the stand-ins hold, the recent calls, the faults."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from sandbox.core import World, iso

SHOWN_CALLS = 30
SHOWN_ROWS = 200
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}

STYLE = """
:root { color-scheme: light dark; --line: #d5d9de; --soft: #5a6472; --chip: #e8edf3; --warn: #fff3cd;
  --warn-ink: #5c4400; --ink: #1c2430; --paper: #fff; --link: #0b5cad; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --line: #39424e; --soft: #a3adba; --chip: #2b3440;
  --warn: #4a3b0a; --warn-ink: #ffe9a8; --ink: #e6eaf0; --paper: #14181e; --link: #7db8ff; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Hiragino Sans", "Noto Sans JP", sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .25rem; border-bottom: 2px solid var(--line); }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; color: var(--soft); }
.notice { background: var(--warn); color: var(--warn-ink); padding: .6rem .8rem; border-radius: .4rem;
  margin: 0; }
nav { margin: .8rem 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; min-width: 3rem; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.chip { display: inline-block; background: var(--chip); border-radius: 1rem; padding: 0 .5rem;
  margin: 0 .2rem .2rem 0; font-size: .8rem; white-space: nowrap; }
.soft { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
footer { margin: 2rem 0 1rem; color: var(--soft); font-size: .85rem; }
"""

# Only <main> is replaced, and only when it differs: the scroll position and a selection stay as they are.
SCRIPT = """
async function refresh() {
  if (document.hidden || String(getSelection())) return;
  try {
    const answer = await fetch("/?part=main", {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.status);
    const text = await answer.text(), main = document.querySelector("main");
    if (main.dataset.last !== text) {
      const aside = [...main.querySelectorAll(".wide")].map(box => box.scrollLeft);
      main.innerHTML = text;
      main.dataset.last = text;
      main.querySelectorAll(".wide").forEach((box, index) => { box.scrollLeft = aside[index] || 0; });
    }
    document.getElementById("live").textContent = "";
  } catch (error) {
    document.getElementById("live").textContent = "The sandbox does not answer.";
  }
}
setInterval(refresh, 3000);
"""


def page_routes(world: World) -> list[Route]:
    async def page(request: Request) -> Response:
        main = _main(world)
        if request.query_params.get("part") == "main":
            return HTMLResponse(main, headers=HEADERS)
        return HTMLResponse(
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>Broker sandbox</title><style>{STYLE}</style></head><body>"
            "<h1>Broker sandbox: stand-ins, nothing here is real</h1>"
            '<p class="notice">These are local stand-ins for GitHub, Gemini, Mastodon, API-Football, Google '
            "Cloud Storage and a news feed. Nothing leaves this machine.</p>"
            f'<p id="live" class="bad" role="status"></p><main>{main}</main>'
            "<footer>Refreshes every three seconds.</footer>"
            f"<script>{SCRIPT}</script></body></html>",
            headers=HEADERS,
        )

    return [Route("/", page)]


def _main(world: World) -> str:
    overviews = {name: system.overview() for name, system in world.systems.items()}
    links = [f'<a href="#{escape(name)}">{escape(name)}</a>' for name in [*overviews, "faults", "calls"]]
    parts = [f"<nav>{''.join(links)}</nav>"]
    offset = world.clock.offset_seconds
    if offset:
        parts.append(
            f'<p class="bad">The clock is shifted by {offset:g} seconds: {escape(iso(world.clock.now()))}</p>'
        )
    for name, overview in overviews.items():
        parts.append(f'<section id="{escape(name)}"><h2>{escape(name)}</h2>')
        parts += [
            _table(str(section["title"]), section["columns"], section["rows"])
            for section in overview.get("sections", [])
        ]
        parts.append("</section>")
    faults = [
        [
            fault["kind"],
            fault["system"],
            fault["method"] or "any",
            fault["path"] or "any",
            f"{fault['fired']} of {fault['times'] or '∞'}",
            "active" if fault["active"] else "used up",
        ]
        for fault in world.faults.listing()
    ]
    parts.append('<section id="faults"><h2>faults</h2>')
    parts.append(_table("On order", ["kind", "system", "method", "path", "fired", "state"], faults))
    calls = [
        [
            call["at"],
            call["system"],
            call["method"],
            call["path"],
            call["status"] or "none",
            " ".join(filter(None, (call["fault"], call["note"]))),
        ]
        for call in world.calls(limit=SHOWN_CALLS)
    ]
    parts.append('</section><section id="calls"><h2>calls</h2>')
    parts.append(_table("Newest first", ["time", "system", "method", "path", "status", "note"], calls))
    parts.append("</section>")
    return "".join(parts)


def _table(title: str, columns: list[Any], rows: list[list[Any]]) -> str:
    heading = f"<h3>{escape(title)} ({len(rows)})</h3>"
    if not rows:
        return f'{heading}<p class="soft">None.</p>'
    head = "".join(f'<th scope="col">{escape(str(column))}</th>' for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows[:SHOWN_ROWS]
    )
    more = f'<p class="soft">and {len(rows) - SHOWN_ROWS} more</p>' if len(rows) > SHOWN_ROWS else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'{heading}<div class="wide">{table}</div>{more}'


def _cell(cell: Any) -> str:
    if cell is None or cell == "":
        return '<span class="soft">–</span>'
    if isinstance(cell, list):
        return "".join(f'<span class="chip">{escape(str(part))}</span>' for part in cell) or _cell(None)
    if isinstance(cell, dict):
        text, href = str(cell.get("text", "")), str(cell.get("href", ""))
        if urlsplit(href).scheme in ("http", "https", ""):
            return f'<a href="{escape(href)}">{escape(text)}</a>'
        return escape(text)
    return escape(str(cell))
