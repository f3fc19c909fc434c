"""The tables on standard output and the JSON file."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import Result, shown

VERSION = 1


def width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]) -> str:
    """Columns as wide as their contents; those in ``right`` are aligned to the right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(width(line[column]) for line in lines) for column in range(len(head))]

    def draw(line: Sequence[str]) -> str:
        cells = []
        for column, text in enumerate(line):
            space = " " * (widths[column] - width(text))
            cells.append(space + text if column in right else text + space)
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * size for size in widths)
    return "\n".join([draw(lines[0]), rule, *(draw(line) for line in lines[1:])])


def tables_of(conditions: dict[str, Any], results: Sequence[Result]) -> str:
    parts = [conditions_line(conditions)]
    timings = [
        [
            timing.name,
            shown(timing.rate),
            shown(timing.p50_ms),
            shown(timing.p95_ms),
            shown(timing.p99_ms),
            shown(timing.cpu_us),
            " ".join(f"{name} {share:.2f}" for name, share in timing.cores.items()),
        ]
        for result in results
        for timing in result.timings
    ]
    if timings:
        head = (
            "timings (medians of rounds)",
            "per s",
            "p50 ms",
            "p95 ms",
            "p99 ms",
            "CPU µs",
            "cores in use",
        )
        parts.append(table(head, timings, frozenset({1, 2, 3, 4, 5})))
    figures = [
        [figure.name, shown(figure.value), figure.unit, figure.note]
        for result in results
        for figure in result.figures
    ]
    if figures:
        parts.append(table(("counts and sizes", "value", "", "note"), figures, frozenset({1})))
    bars = [
        [bar.verdict, bar.name, bar.shown_figure, bar.rule, bar.note]
        for result in results
        for bar in result.bars
    ]
    if bars:
        parts.append(table(("verdict", "bar", "figure", "limit", "note"), bars, frozenset({2})))
        met = sum(row[0] == "met" for row in bars)
        parts.append(f"{met} of {len(bars)} bars are met.")
    parts += [f"FAILED {result.section}: {result.error}" for result in results if result.error]
    parts.append("Seconds: " + ", ".join(f"{result.section} {result.seconds:.0f}" for result in results))
    return "\n\n".join(parts)


def conditions_line(conditions: dict[str, Any]) -> str:
    load, at_end = conditions["load_average"], conditions.get("load_average_at_end", ["?"])
    return (
        f"Broker bench, {conditions['scale']}: {conditions['cores']} cores, load {load[0]} before and {at_end[0]} "
        f"after, Python {conditions['python']}. Only ratios within this run mean anything."
    )


def document_of(conditions: dict[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "conditions": conditions,
        "sections": [result.as_json() for result in results],
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
