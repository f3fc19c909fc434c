"""Is the quick lane worth running? Break one rule of the product at a time and see whether a test notices.

``make mutants`` copies the tree to a temporary folder, and there, for each mutant of ``tools/mutations.py``, replaces a
piece of text, runs the lane until its first failure and puts the text back. The working tree is never touched. A mutant
whose text is not found exactly once stops the tool: the rule has moved and its mutant has to follow.

A mutant of the database's lane (a lock that SQLite does not need) must be noticed on PostgreSQL and nowhere else.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.mutations import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
FAST = "not process and not browser and not postgres and not slow"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "var", "*_cache", ".hypothesis", "staticfiles", "results")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    noticed_by: str  # the first test that failed; empty if none did
    seconds: float


class Tree:
    """A copy of the working tree in which one file at a time is broken."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT)
        (self.root / ".venv").symlink_to((ROOT / ".venv").resolve())

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.file
        source = path.read_text(encoding="utf-8")
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")

    def run(self, lane: str) -> Outcome:
        """Run a lane until its first failure."""
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        command = [".venv/bin/python", "-m", "pytest", "-x", "--durations=0", "--durations-min=60"]
        if lane == "postgres":
            environment["BROKER_TEST_DATABASE"] = "postgres"
        else:
            command += ["-m", FAST]
        begun = time.monotonic()
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - begun
        if done.returncode == 0:
            return Outcome("", seconds)
        failed = FAILED.search(done.stdout)
        if failed:
            return Outcome(failed[1], seconds)
        # Nothing could be collected or started: that is noticed as well.
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return Outcome(f"the run itself: {' '.join(last)}", seconds)


def check(mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with the list, in sentences."""
    problems = []
    for mutant in mutants:
        path = ROOT / mutant.file
        if not path.exists():
            problems.append(f"{mutant.name}: there is no {mutant.file}.")
            continue
        found = path.read_text(encoding="utf-8").count(mutant.old)
        if found != 1:
            problems.append(f"{mutant.name}: the text is {found} times in {mutant.file}, not once.")
        if mutant.old == mutant.new:
            problems.append(f"{mutant.name}: nothing is changed.")
    names = [mutant.name for mutant in mutants]
    return problems + [
        f"{name}: the name is used twice." for name in {n for n in names if names.count(n) > 1}
    ]


def judge(tree: Tree, mutant: Mutant) -> tuple[bool, str]:
    """Whether the mutant was noticed where it must be, and a line for the table."""
    with tree.broken(mutant):
        outcome = tree.run(mutant.lane)
        line = f"{outcome.seconds:5.0f} s  {outcome.noticed_by or 'NOT NOTICED'}"
        if mutant.lane == "fast" or not outcome.noticed_by:
            return bool(outcome.noticed_by), line
        other = tree.run("fast")
    if other.noticed_by:
        return False, f"{line}; ALSO WITHOUT POSTGRESQL: {other.noticed_by}"
    return True, f"{line} (PostgreSQL alone)"


def main() -> int:
    parser = argparse.ArgumentParser(description="Break one rule at a time and run the quick lane.")
    parser.add_argument("--only", default="", help="only mutants whose name or file contains this")
    parser.add_argument(
        "--list", action="store_true", help="show the mutants and whether their text is found"
    )
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in f"{mutant.name} {mutant.file}"]
    problems = check(MUTANTS)
    if options.list or problems:
        print("\n".join([*(f"{mutant.lane:8} {mutant.name}" for mutant in chosen), *problems]))
        return 1 if problems else 0
    unnoticed = []
    with tempfile.TemporaryDirectory(prefix="broker-mutants-") as folder:
        tree = Tree(Path(folder))
        for lane in sorted({mutant.lane for mutant in chosen}):
            whole = tree.run(lane)
            if whole.noticed_by:
                sys.exit(f"The lane `{lane}` fails without any mutant: {whole.noticed_by}")
            print(f"{whole.seconds:5.0f} s  the lane `{lane}` as it is", flush=True)
        for mutant in chosen:
            is_noticed, line = judge(tree, mutant)
            print(f"{line}  ← {mutant.name}", flush=True)
            if not is_noticed:
                unnoticed.append(mutant.name)
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} mutants were noticed.")
    for name in unnoticed:
        print(f"  not noticed: {name}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
