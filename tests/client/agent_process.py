"""``python -m broker_client`` as a real process, with a small script as the agent's command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from broker_project.lib.config.loader import BASE_DIR
from tests.support.broker_process import wait_for
from tests.support.server import BrokerServer

COPY_ALL = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["FOLDER"])
seen = {name: value for name, value in os.environ.items() if name.startswith("BROKER_")}
task = json.load(open(os.environ["BROKER_TASK_FILE"], encoding="utf-8"))
(folder / "seen.json").write_text(json.dumps({"env": seen, "task": task, "prompt": sys.stdin.read()}))
for number in range(1000):
    print("line", number)
"""
# Notes its process id, then works until it is told to stop, and notes that too.
WORK_ON = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["FOLDER"])
def stop(number, frame):
    (folder / "stopped").write_text(signal.Signals(number).name)
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
(folder / "at-work").write_text(str(os.getpid()))
time.sleep(120)
"""
STUBBORN = WORK_ON.replace("sys.exit(3)", "pass").replace(
    "time.sleep(120)", "[time.sleep(0.2) for _ in range(600)]"
)


class AgentProcess:
    """``run`` with a Python script as its command. Output goes to files, so that nobody blocks on a pipe."""

    def __init__(self, folder: Path, url: str, script: str, *options: str, agent: str, **env: str) -> None:
        self.folder, self.name = folder, agent
        script_path = folder / "agent.py"
        script_path.write_text(script, encoding="utf-8")
        self.arguments = ["run", "--url", url, "--agent-id", agent, *options]
        self.arguments += ["--", sys.executable, str(script_path)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
        self.environment = {**kept, "PYTHONPATH": str(BASE_DIR), "FOLDER": str(folder), **env}
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "broker_client", *self.arguments],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def said(self) -> str:
        return self.err.read_text(encoding="utf-8", errors="replace")

    def file(self, name: str) -> str:
        """What the command wrote into its folder, once it is there."""
        path = self.folder / name
        wait_for(lambda: path.exists() and path.read_text(encoding="utf-8"), f"{name} is written")
        return path.read_text(encoding="utf-8")

    def wait_until_said(self, text: str) -> None:
        wait_for(lambda: text in self.said, f"the client says {text!r}; it said:\n{self.said}")

    def wait_until_asked(self, server: BrokerServer) -> None:
        """Until its request is with the server, which then has a second connection of the client's."""
        port = server.port

        def look() -> bool:
            connections = psutil.Process(self.process.pid).net_connections("tcp")
            return any(c.raddr and c.raddr.port == port and c.status == "ESTABLISHED" for c in connections)

        wait_for(look, "the client is connected")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the client does not end:\n{self.said}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def run_client(server: BrokerServer, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Any subcommand, to its end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    action, *rest = arguments
    return subprocess.run(
        [sys.executable, "-m", "broker_client", action, "--url", server.url, *rest],
        cwd=BASE_DIR,
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


Start = Callable[..., AgentProcess]


def rows(server: BrokerServer, agent: str) -> list[dict[str, Any]]:
    """The agent's assignments, oldest first."""
    query = """
        select a.* from tasks_assignment a join tasks_agent g on g.id = a.agent_id where g.name = ? order by a.id
    """
    return server.query(query, agent)


def states(server: BrokerServer, agent: str) -> list[str]:
    return [row["state"] for row in rows(server, agent)]
