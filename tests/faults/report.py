"""The table operation × fault × outcome, put together from the tests' own reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

PROPERTY = "fault runs"


class Recorder:
    """``rows`` holds one entry a run: operation, fault, what came back."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []

    def note(self, operation: str, fault: str, outcome: str) -> None:
        self.rows.append([operation, fault, outcome])


def write_report(folder: Path, reports: Iterable[pytest.TestReport]) -> Path:
    """Write ``report.json`` and ``report.md``. A test that failed is in the table with that word."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for report in reports:
        for name, rows in report.user_properties:
            if name == PROPERTY and isinstance(rows, list):
                counted.update((row[0], row[1], row[2]) for row in rows)
                if report.failed:
                    last = rows[-1] if rows else [report.nodeid, "", ""]
                    counted[(last[0], last[1], "BROKEN")] += 1
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        {"operation": operation, "fault": fault, "outcome": outcome, "runs": runs}
        for (operation, fault, outcome), runs in sorted(counted.items())
    ]
    (folder / "report.json").write_text(json.dumps(entries, indent=1) + "\n")
    cells: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        cell = cells.setdefault((str(entry["operation"]), str(entry["fault"])), [])
        cell.append(f"{entry['outcome']} ×{entry['runs']}")
    lines = [
        "# Faults",
        "",
        f"{sum(counted.values())} runs. After each of them everything in `tests/faults/invariants.py` held,"
        " but where it says BROKEN.",
        "",
        "| operation | fault | what came back, and how often |",
        "|---|---|---|",
        *(f"| {operation} | {fault} | {', '.join(cell)} |" for (operation, fault), cell in cells.items()),
    ]
    written = folder / "report.md"
    written.write_text("\n".join(lines) + "\n")
    return written
