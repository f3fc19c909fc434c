"""What the operator reads: the first text, our own sentences, and the lines of each part behind its name."""

from __future__ import annotations

import sys
import threading
from typing import IO

from broker_project.lib.config.loader import Config

NAME_WIDTH = 8
COLOURS = {"broker": "1", "web": "36", "cluster": "32", "sandbox": "35", "mirin": "33", "redis": "31"}


class Terminal:
    """Prints whole lines from any thread. Colours only on a terminal."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stdout
        self.is_coloured = self.stream.isatty()
        self._lock = threading.Lock()
        self._is_open = True

    def say(self, text: str) -> None:
        for line in text.splitlines() or [""]:
            self.line("broker", line)

    def line(self, part: str, text: str) -> None:
        name = part.ljust(NAME_WIDTH)
        if self.is_coloured:
            name = f"\x1b[{COLOURS.get(part.split('-')[0], '0')}m{name}\x1b[0m"
        self.show(f"{name} | {text}")

    def show(self, text: str) -> None:
        """Text without a prefix, for what people copy."""
        with self._lock:
            if not self._is_open:
                return
            try:
                self.stream.write(f"{text}\n")
                self.stream.flush()
            except (OSError, ValueError):
                # The reader is gone (a closed pipe or terminal). The parts go on without output.
                self._is_open = False

    def follow(self, part: str, output: IO[bytes]) -> None:
        """Print a part's output from a thread of its own until the last writer has closed it."""

        def pump() -> None:
            with output:
                for line in output:
                    self.line(part, line.decode("utf-8", "replace").rstrip("\r\n"))

        threading.Thread(target=pump, name=f"output-{part}", daemon=True).start()


def banner(config: Config, url: str, sandbox_url: str, log_in: str) -> str:
    """Where everything is, how to log in, and one line to try."""
    rows = [
        ("Broker", f"{url}/"),
        ("Status", f"{url}/status/"),
        ("Admin", f"{url}/admin/"),
        ("Log-in", log_in),
        ("Agent API", f"{url}/api/v1/docs"),
    ]
    if config.sandbox:
        rows.append(("Sandbox", f"{sandbox_url}/   (stand-ins for every system without credentials)"))
    lines = ["", *(f"{name:<10} {text}" for name, text in rows), ""]
    body = '\'{"agent_id": "agent-1", "timeout": 10}\''
    header = ""
    if config.agent_auth == "token":
        lines.append("Make a token for an agent:  .venv/bin/python manage.py create_agent agent-1")
        header = '-H "Authorization: Bearer $TOKEN" '
    lines += [
        "Ask for a task:",
        f"  curl -s -X POST {url}/api/v1/request-task {header}-H 'Content-Type: application/json' -d {body}",
        "",
        "Ctrl-C ends everything.",
    ]
    return "\n".join(lines)
