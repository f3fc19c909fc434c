"""Admin lists, dashboard and status pages with few and with very many rows, by :mod:`bench.pages`.

That is a program of its own with its own database: ``python -m bench.pages --items N --assignments N --json FILE``.
"""

from __future__ import annotations

import json
from typing import Any

from bench.context import Context
from bench.figures import Result
from bench.processes import clean_environment

SLOWER = 3.0


def run(context: Context) -> Result:
    result = Result("pages")
    items, assignments = context.scale.page_items, context.scale.page_assignments
    context.say(f"{items:,} items")
    file = context.environment.folder / "pages.json"
    command = [
        "-m",
        "bench.pages",
        "--items",
        str(items),
        "--assignments",
        str(assignments),
        "--json",
        str(file),
        *(["--quick"] if context.scale.is_quick else []),
    ]
    context.environment.program(*command, env=clean_environment())
    result.details["pages"] = found = json.loads(file.read_text())
    compare(result, f"{items:,}", found["pages"])
    return result


def compare(result: Result, many: str, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        small, large = row["small"], row["large"]
        result.figure(
            f"{row['page']}: {many} items",
            large["least_ms"],
            "ms",
            f"with few {small['least_ms']:.1f} ms; queries {small['queries']} and {large['queries']}; "
            f"with cold caches {small['cold_ms']:.0f} and {large['cold_ms']:.0f} ms",
        )
    most = max(rows, key=lambda row: row["large"]["queries"] - row["small"]["queries"])
    slowest = max(rows, key=lambda row: row["warm_ratio"])
    more = most["large"]["queries"] - most["small"]["queries"]
    result.at_most(f"pages: queries that {many} items add", more, 0, note=most["page"])
    over = sum(row["warm_ratio"] > SLOWER for row in rows)
    note = f"{slowest['page']}; over it: {over} of {len(rows)} pages"
    result.at_most(
        f"pages: time at {many} items against few", slowest["warm_ratio"], SLOWER, unit="×", note=note
    )
