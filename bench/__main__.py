"""``python -m bench``: run the sections, print the tables, write a JSON file and a chart."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.chart import draw_bars
from bench.context import Context
from bench.environment import ROOT, Environment
from bench.figures import Result
from bench.processes import raise_file_limit
from bench.report import document_of, tables_of, write_json
from bench.scale import FULL, QUICK, Scale

SECTIONS = ("request", "assign", "heartbeat", "waiting", "refresh", "feeds", "fixtures", "pages")


class Progress:
    """One line on standard error that is overwritten; a line each where that is not a terminal."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.section = ""
        self._is_terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self.started:5.0f} s] {self.section}: {text}"
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[2K{line[:150]}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: under a minute")
    parser.add_argument("--only", default="", help=f"sections, with commas between: {','.join(SECTIONS)}")
    parser.add_argument("--json", type=Path, help="where the figures go (default: var/bench/<time>.json)")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a bar is not met")
    given = parser.parse_args(arguments)
    wanted = [name.strip() for name in given.only.split(",") if name.strip()] or list(SECTIONS)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        parser.error(f"there is no section {', '.join(unknown)}; these are: {', '.join(SECTIONS)}")
    given.sections = [name for name in SECTIONS if name in wanted]
    return given


def conditions(scale: Scale) -> dict[str, Any]:
    """The machine and its load. Others may use it at the same time, so only ratios mean anything."""
    return {
        "scale": scale.name,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "memory_bytes": psutil.virtual_memory().total,
        "python": sys.version.split()[0],
        "open_files": raise_file_limit(),
    }


def run_sections(scale: Scale, sections: Sequence[str], progress: Progress) -> list[Result]:
    """Every section by itself: one that fails says so in its result and the others go on."""
    results = []
    with Environment(progress.say) as environment:
        context = Context(environment, scale, progress.say)
        for name in sections:
            progress.section = name
            progress.say("starting")
            started = time.monotonic()
            try:
                result: Result = importlib.import_module(f"bench.sections.{name}").run(context)
            except Exception as error:  # noqa: BLE001 - said in the result, and in the exit status
                progress.end()
                traceback.print_exc()
                result = Result(name, error=f"{type(error).__name__}: {str(error).splitlines()[0][:300]}")
            result.seconds = time.monotonic() - started
            results.append(result)
        progress.section = "end"
        progress.say("ending what was started")
    progress.end()
    return results


def run_bench(
    scale: Scale, sections: Sequence[str], json_file: Path, progress: Progress
) -> tuple[list[Result], dict[str, Any]]:
    """Run and write both files; the results and the document that was written."""
    before = conditions(scale)
    results = run_sections(scale, sections, progress)
    before["load_average_at_end"] = [round(value, 2) for value in os.getloadavg()]
    before["seconds"] = round(time.monotonic() - progress.started, 1)
    document = document_of(before, results)
    json_file.parent.mkdir(parents=True, exist_ok=True)
    write_json(json_file, document)
    bars = [bar for result in results for bar in result.bars]
    json_file.with_suffix(".svg").write_text(draw_bars(bars, before), encoding="utf-8")
    return results, document


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    # A terminated run ends what it started, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scale = QUICK if given.quick else FULL
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    json_file = given.json or ROOT / "var" / "bench" / f"{stamp}.json"
    try:
        results, document = run_bench(scale, given.sections, json_file, Progress())
    except KeyboardInterrupt:
        print("\nInterrupted; everything that was started has been ended.", file=sys.stderr)
        return 130
    print(tables_of(document["conditions"], results))
    print(f"Figures: {json_file}\nChart:   {json_file.with_suffix('.svg')}")
    if any(result.error for result in results):
        return 1
    is_short = any(not bar.is_met for result in results for bar in result.bars)
    return 1 if given.strict and is_short else 0


if __name__ == "__main__":
    sys.exit(main())
