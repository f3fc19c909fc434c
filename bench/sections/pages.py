"""Admin lists, dashboard and status pages with few and with very many rows: what :mod:`bench.pages` found.

That is a program of its own: ``python -m bench.pages --items N --assignments N --json FILE``. Of its file a list is
looked for, at the top or under ``pages``, of objects that name an address (``path``, ``url``, ``page`` or ``name``),
a number of ``queries`` and a time (``ms``, ``median_ms``, ``p50_ms`` or ``seconds``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Result
from bench.scene import ROOT, BenchFailed, clean_environment
from bench.stage import Stage

NAMES = ("path", "url", "page", "name")
TIMES = {"ms": 1.0, "median_ms": 1.0, "p50_ms": 1.0, "seconds": 1000.0}


@dataclass(frozen=True)
class Page:
    queries: float
    ms: float


def run(stage: Stage) -> Result:
    result = Result("pages")
    if not (ROOT / "bench" / "pages.py").exists():
        result.figure("pages", "not measured", note="there is no bench/pages.py")
        return result
    found = []
    for items, assignments in zip(stage.scale.page_items, stage.scale.page_assignments, strict=True):
        stage.say(f"{items:,} items")
        file = stage.scene.folder / f"pages-{items}.json"
        stage.scene.program(
            "-m",
            "bench.pages",
            "--items",
            str(items),
            "--assignments",
            str(assignments),
            "--json",
            str(file),
            env=clean_environment(),
        )
        result.details[f"{items:,} items"] = document = read(file)
        found.append(pages_of(document))
    compare(result, stage.scale.page_items, *found)
    return result


def read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise BenchFailed(f"bench.pages left no readable file: {error}") from None


def pages_of(document: Any) -> dict[str, Page]:
    rows = document.get("pages", document) if isinstance(document, dict) else document
    if isinstance(rows, dict):
        rows = [{"path": name, **row} for name, row in rows.items() if isinstance(row, dict)]
    found = {}
    for row in rows if isinstance(rows, list) else []:
        name = next((str(row[key]) for key in NAMES if key in row), "")
        ms = next((float(row[key]) * factor for key, factor in TIMES.items() if key in row), None)
        if name and ms is not None and "queries" in row:
            found[name] = Page(float(row["queries"]), ms)
    if not found:
        raise BenchFailed("bench.pages says nothing of pages, queries and times")
    return found


def compare(result: Result, sizes: tuple[int, int], few: dict[str, Page], many: dict[str, Page]) -> None:
    few_name, many_name = (f"{size:,}" for size in sizes)
    both = [name for name in few if name in many]
    for name in both:
        small, large = few[name], many[name]
        result.figure(
            f"{name}: {many_name} items",
            large.ms,
            "ms",
            f"with {few_name} {small.ms:.1f} ms; queries {small.queries:g} and {large.queries:g}",
        )
    more = {name: many[name].queries - few[name].queries for name in both}
    slower = {name: many[name].ms / max(few[name].ms, 0.001) for name in both}
    most, slowest = max(more, key=lambda n: more[n]), max(slower, key=lambda n: slower[n])
    result.at_most(f"pages: queries that {many_name} items add", more[most], 0, note=most)
    result.at_most(
        f"pages: time at {many_name} items against {few_name}", slower[slowest], 3, unit="×", note=slowest
    )
