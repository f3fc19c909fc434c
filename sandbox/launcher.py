"""Start a sandbox in a process of its own, and talk to its control endpoints."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 30.0
STOP_SECONDS = 10.0
READY = "Sandbox ready at "


class SandboxDidNotStart(RuntimeError):
    """The process ended or stayed silent; the text holds what it printed."""


class SandboxHandle:
    """A running sandbox: its address, its process, and its control endpoints."""

    def __init__(self, base_url: str, process: subprocess.Popen[str], control_url: str = "") -> None:
        self.base_url = base_url
        self.process = process
        self.client = httpx.Client(base_url=control_url or base_url, timeout=30.0, trust_env=False)

    @property
    def github_url(self) -> str:
        return f"{self.base_url}/github"

    def control(self, method: str, path: str, json: Any = None) -> Any:
        """Call `/_sandbox/<path>`. Returns the JSON of the answer, or None. Raises httpx.HTTPStatusError."""
        answer = self.client.request(method, f"/_sandbox/{path}", json=json)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def fault(self, system: str, kind: str, **order: Any) -> dict[str, Any]:
        """Add a fault; see sandbox/faults.py for the fields."""
        return dict(self.control("POST", "faults", {"system": system, "kind": kind, **order}))

    def clear_faults(self) -> None:
        self.control("DELETE", "faults")

    def faults(self) -> list[dict[str, Any]]:
        return list(self.control("GET", "faults")["faults"])

    def calls(self, system: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """The journal, newest first."""
        query = f"&system={system}" if system else ""
        return list(self.control("GET", f"journal?limit={limit}{query}")["calls"])

    def keep_calls(self, size: int) -> None:
        """Let the journal keep so many calls."""
        self.control("PATCH", "journal", {"size": size})

    def clear_calls(self) -> None:
        self.control("DELETE", "journal")

    def reset(self, system: str | None = None, *, seed: bool = True) -> None:
        """Reset one system, or everything with faults, clock and journal."""
        if system:
            self.control("POST", "reset", {"system": system, "seed": seed})
            return
        self.clear_faults()
        self.set_clock(0)
        self.control("POST", "reset", {"seed": seed})
        self.clear_calls()

    def state(self, system: str) -> Any:
        return self.control("GET", f"state/{system}")

    def load(self, system: str, data: Any) -> None:
        self.control("PUT", f"state/{system}", data)

    def set_clock(self, offset_seconds: float) -> None:
        self.control("POST", "clock", {"offset_seconds": offset_seconds})

    def kill(self) -> None:
        """SIGKILL: what was not saved yet is lost."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL if that does not end it."""
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@contextlib.contextmanager
def start_sandbox(
    *,
    port: int = 0,
    state_path: Path | str | None = None,
    broker_url: str | None = None,
    webhook_secret: str | None = None,
    lively: bool = False,
    seed: bool = True,
    base_url: str | None = None,
) -> Iterator[SandboxHandle]:
    """A sandbox on a free port (or `port`), stopped at the end, and also when this process is killed.

    With `base_url` it gives that as its own address (a proxy in front of it); the handle still talks to `port`.

    Raises SandboxDidNotStart.
    """
    command = [sys.executable, "-m", "sandbox", "--port", str(port), "--exit-with-stdin"]
    if state_path:
        command += ["--state", str(state_path)]
    if broker_url:
        command += ["--broker-url", broker_url]
    command += ["--lively"] if lively else []
    command += [] if seed else ["--empty"]
    command += ["--base-url", base_url] if base_url else []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    environment.pop("SANDBOX_WEBHOOK_SECRET", None)
    if webhook_secret:
        environment["SANDBOX_WEBHOOK_SECRET"] = webhook_secret
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        ready_url = _wait_until_ready(process)
    except SandboxDidNotStart:
        process.kill()
        process.communicate()
        raise
    control_url = f"http://127.0.0.1:{port}" if base_url and port else ""
    sandbox = SandboxHandle(ready_url, process, control_url)
    try:
        yield sandbox
    finally:
        sandbox.stop()


def _wait_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    lines: list[str] = []
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            line = process.stdout.readline()
            if line.startswith(READY):
                return line.removeprefix(READY).strip()
            lines.append(line)
            if not line:
                break
    raise SandboxDidNotStart("The sandbox did not start: " + ("".join(lines).strip() or "it said nothing"))
