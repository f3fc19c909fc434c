"""Ask whether a known weakness is on record for any pinned package. ``make audit``.

Exit 0: no pinned package has one. 1: some have, and they are listed. 2: the service could not be asked, so nothing is
known; that is not a pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILES = ("requirements.txt", "requirements-dev.txt")
CLEAN, WEAK, UNKNOWN = 0, 1, 2


def ask(files: list[Path], *options: str) -> subprocess.CompletedProcess[str]:
    """pip-audit on the pins as they are written: nothing is resolved and nothing installed."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    command += ["--progress-spinner", "off", "--timeout", "15", *options]
    command += [part for file in files for part in ("-r", str(file))]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def read_answer(text: str) -> list[dict[str, Any]] | None:
    """The packages that were asked about; None if the output is not an answer."""
    try:
        found = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) and found else None


def report(packages: list[dict[str, Any]]) -> int:
    skipped = [package for package in packages if "skip_reason" in package]
    for package in skipped:
        print(f"[audit] {package['name']} was not asked about: {package['skip_reason']}")
    weak = [package for package in packages if package.get("vulns")]
    for package in weak:
        for weakness in package["vulns"]:
            mended = ", ".join(weakness.get("fix_versions") or []) or "no version yet"
            print(f"[audit] {package['name']} {package['version']}: {weakness['id']}, mended in {mended}")
    print(f"[audit] {len(packages) - len(skipped)} packages asked about, {len(weak)} with a known weakness")
    if weak:
        return WEAK
    return UNKNOWN if skipped else CLEAN


def main(options: list[str]) -> int:
    done = ask([ROOT / name for name in FILES], *options)
    packages = read_answer(done.stdout)
    if packages is None:
        reason = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        print(
            "[audit] NOT DONE: the advisory service gave no answer, so nothing is known about weaknesses of the "
            "pinned packages. That they are the files that were pinned is what their hashes guarantee. "
            f"({reason[-1][:300] if reason else f'exit status {done.returncode}'})",
            file=sys.stderr,
        )
        return UNKNOWN
    return report(packages)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
