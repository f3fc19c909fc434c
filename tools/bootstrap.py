"""Make the virtual environment and install the pinned requirements. Standard library only.

``python3 tools/bootstrap.py [--dev]`` is idempotent: when the environment already holds what the requirement
files ask for, it returns in milliseconds and touches no network. Every failure is one sentence and exit 1.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
OLDEST_PYTHON = (3, 11)
# How pip names the package whose file differs, and the one that has no hash.
HASH_DIFFERS = re.compile(
    r"^ +([A-Za-z0-9._-]+(?:==[^ ]+)?)(?: from [^\n]*)?:\n +Expected sha256", re.MULTILINE
)
HASH_MISSING = re.compile(r"^ +([A-Za-z0-9._-]+(?:==[^ ]+)?) (?:--hash|from )", re.MULTILINE)


class BootstrapError(Exception):
    """A sentence for the user, printed without a traceback."""


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def find_python() -> str:
    """An interpreter that Broker runs on: this one if it is new enough, else the newest on PATH."""
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return sys.executable
    for minor in range(14, OLDEST_PYTHON[1] - 1, -1):
        if path := shutil.which(f"python3.{minor}"):
            return path
    found = ".".join(str(part) for part in sys.version_info[:3])
    raise BootstrapError(f"Broker needs Python 3.11 or newer, and only {found} was found on PATH.")


def fingerprint(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def make_venv() -> None:
    if VENV.is_dir():
        if venv_works():
            return
        say("the virtual environment is broken (moved folder, upgraded Python?); making it anew")
        shutil.rmtree(VENV)
    if not os.access(ROOT, os.W_OK | os.X_OK):
        raise BootstrapError(f"this folder cannot be written to: {ROOT}")
    say("making the virtual environment .venv")
    made = subprocess.run([find_python(), "-m", "venv", str(VENV)], capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        if "ensurepip" in made.stdout + made.stderr:
            raise BootstrapError(
                "Python's venv module is incomplete here: install your system's python3-venv package."
            )
        raise BootstrapError(
            f"the virtual environment could not be made: {last_line(made.stderr or made.stdout)}"
        )


def venv_works() -> bool:
    # A link to a Python that is gone does not "exist", but prevents a new one.
    if not PYTHON.exists():
        return False
    return subprocess.run([str(PYTHON), "-c", "import pip"], capture_output=True).returncode == 0


@contextmanager
def alone() -> Iterator[None]:
    """Two runs in one folder (`make run` beside `make test`) take turns. The lock ends with the process."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is at work in this folder; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def heartbeat(stop: threading.Event, started: float) -> None:
    while not stop.wait(10):
        say(f"still installing ({time.monotonic() - started:.0f} s)")


def install(requirements: Path) -> None:
    wanted = [line for line in requirements.read_text().splitlines() if "==" in line]
    say(f"installing {len(wanted)} pinned packages from {requirements.name} (once; a minute or so)")
    started = time.monotonic()
    stop = threading.Event()
    threading.Thread(target=heartbeat, args=(stop, started), daemon=True).start()
    try:
        done = subprocess.run(
            [
                str(PYTHON),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-input",
                "--disable-pip-version-check",
                "--require-hashes",
                "-r",
                str(requirements),
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
    finally:
        stop.set()
    if done.returncode != 0:
        log = VENV / "install.log"
        log.write_text(done.stdout + done.stderr)
        raise BootstrapError(explain(done.stderr))
    say(f"installed {requirements.name} in {time.monotonic() - started:.0f} s")


def name_in(stderr: str, pattern: re.Pattern[str]) -> str:
    """The package that pip complains about, without the address that it came from."""
    found = pattern.search(stderr)
    return found[1] if found else "a package"


def explain(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else last_line(stderr)
    unreachable = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Temporary failure")
    if any(sign in stderr for sign in unreachable) or "Could not find a version" in stderr:
        return (
            "the package index could not be reached or lacks a pinned package; check the network and run the "
            f"command again (details in .venv/install.log): {reason}"
        )
    if "DO NOT MATCH THE HASHES" in stderr:
        return (
            f"{name_in(stderr, HASH_DIFFERS)} is not the file that was pinned, and nothing was installed: the "
            "package index or something on the way to it has changed it (details in .venv/install.log)."
        )
    if "Hashes are required" in stderr or "must have their versions pinned" in stderr:
        return (
            f"{name_in(stderr, HASH_MISSING)} has no hash in the requirements, and nothing was installed: run "
            "`make lock` (details in .venv/install.log)."
        )
    if "No space left" in stderr:
        return "the disk is full: make room and run the command again."
    return f"installing the requirements failed (details in .venv/install.log): {reason}"


def prepare(dev: bool) -> None:
    files = [ROOT / "requirements.txt"] + ([ROOT / "requirements-dev.txt"] if dev else [])
    for file in files:
        file.stat()  # one that is missing is named before anything is made
    make_venv()
    for file in files:
        stamp = VENV / f".installed-{file.stem}"
        # The interpreter is part of the stamp: another Python needs other wheels.
        state = fingerprint([file]) + os.path.realpath(PYTHON)
        if stamp.exists() and stamp.read_text() == state:
            continue
        stamp.unlink(missing_ok=True)
        install(file)
        stamp.write_text(state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also install what tests and checks need")
    arguments = parser.parse_args()
    try:
        with alone():
            prepare(arguments.dev)
    except BootstrapError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"[setup] this folder cannot be written to: {error.filename}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"[setup] {error.strerror}: {error.filename}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[setup] stopped; run the command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
