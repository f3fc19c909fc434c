"""A reader of Redis that measures how long each answer takes: a program of :mod:`bench.json_lines`.

It asks about once a millisecond and sleeps in between: a process that sleeps gets the processor soon after it wakes,
also on a busy machine.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from bench import json_lines
from bench.figures import percentile

PAUSE_SECONDS = 0.001
PING = b"*1\r\n$4\r\nPING\r\n"


class Reader:
    def __init__(self) -> None:
        self.times: list[float] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int, key: str) -> None:
        """PING and GET in turn until ``stop``."""
        get = f"*2\r\n$3\r\nGET\r\n${len(key.encode())}\r\n{key}\r\n".encode()
        self.times = []
        self._is_over.clear()
        self._thread = threading.Thread(target=self._read, args=(port, get), daemon=True)
        self._thread.start()

    def _read(self, port: int, get: bytes) -> None:
        with socket.create_connection(("127.0.0.1", port)) as own:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._is_over.is_set():
                for command in (PING, get):
                    started = time.perf_counter()
                    own.sendall(command)
                    own.recv(65536)
                    self.times.append(time.perf_counter() - started)
                    time.sleep(PAUSE_SECONDS)

    def stop(self) -> dict[str, Any]:
        """The longest answer and the percentiles, in milliseconds."""
        assert self._thread is not None
        self._is_over.set()
        self._thread.join(10)
        found = [1000 * seconds for seconds in self.times]
        return {
            "answers": len(found),
            "p50_ms": percentile(found, 0.5),
            "p99_ms": percentile(found, 0.99),
            "longest_ms": max(found),
            "ten_longest_ms": sorted(found)[-10:],
        }


if __name__ == "__main__":
    reader = Reader()
    json_lines.serve({"start": reader.start, "stop": reader.stop})
