"""What the operator reads: our own sentences, and the parts' lines, each behind the name of its part."""

from __future__ import annotations

import sys
import threading
from typing import IO

NAME_WIDTH = 8
COLOURS = {"broker": "1", "web": "36", "cluster": "32", "sandbox": "35", "mirin": "33", "redis": "31"}


class Console:
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
        """Text as it is, with nothing in front: for what is to be copied."""
        with self._lock:
            if not self._is_open:
                return
            try:
                self.stream.write(f"{text}\n")
                self.stream.flush()
            except (OSError, ValueError):
                # Whoever read us has gone (a closed pipe or terminal). The parts go on, unheard.
                self._is_open = False

    def follow(self, part: str, output: IO[bytes]) -> None:
        """Print a part's output from a thread of its own until the last writer has closed it."""

        def pump() -> None:
            with output:
                for line in output:
                    self.line(part, line.decode("utf-8", "replace").rstrip("\r\n"))

        threading.Thread(target=pump, name=f"output-{part}", daemon=True).start()
