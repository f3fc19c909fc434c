"""Agents as processes: what they see arrives, and who was killed comes back. Parts that stand still go on again."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.soak.crew import Crew
from tests.soak.judge import holds, several_tasks_for_one_id
from tests.soak.ledger import Ledger
from tests.soak.signals import stopped
from tests.support.broker_process import wait_for

pytestmark = pytest.mark.process

LIMIT_SECONDS = 60.0


class Willing(BaseHTTPRequestHandler):
    """A broker that has a task for everybody, and the same one for the same request_id."""

    numbers = itertools.count(1)
    given: dict[str, int] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = self.path.rsplit("/", 1)[1]
        lease = (datetime.now(UTC) + timedelta(seconds=12)).isoformat()
        answer = {"state": f"{call}d", "lease_expires_at": lease, "cancel": False}
        if call == "request-task":
            number = self.given.setdefault(body["request_id"], next(self.numbers))
            answer = {
                "assignment_id": number,
                "issue_id": number,
                "lease_expires_at": lease,
                "heartbeat_seconds": 1,
            }
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Willing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not look():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def test_what_agents_see_arrives_and_who_was_killed_comes_back(url: str, tmp_path: Path) -> None:
    ledger = Ledger()
    crew = Crew(tmp_path, url, 3, 1, "chaos", ledger)

    async def run() -> None:
        lives = crew.start()
        await until(lambda: bool(ledger.tasks), "a first task")
        first = crew.processes["agent-0"].pid
        assert crew.kill_one(Random(1))
        await until(lambda: crew.processes["agent-0"].pid != first, "another process")
        known = len(ledger.tasks)
        await until(lambda: len(ledger.tasks) > known, "a task for it")
        await crew.end(lives, LIMIT_SECONDS)

    asyncio.run(run())
    assert crew.alive() == []
    sent = Counter(seen.call for seen in ledger.sightings if not seen.is_answer)
    heard = Counter(seen.call for seen in ledger.sightings if seen.is_answer)
    assert (
        heard["request-task"] <= sent["request-task"] <= heard["request-task"] + 2
    )  # killed, perhaps with a twin
    assert {hold.assignment for hold in holds(ledger.sightings)} == set(ledger.tasks)
    assert not several_tasks_for_one_id(ledger.sightings)
    assert not ledger.surprises


def stands_still(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_a_process_and_its_children_stand_still_for_a_while() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as process:
        leader = psutil.Process(process.pid)
        wait_for(lambda: leader.children(), "the child has started")
        family = [leader, *leader.children()]
        with stopped(leader) as is_done:
            assert is_done
            wait_for(lambda: all(stands_still(one) for one in family), "all stand still")
        wait_for(lambda: not any(stands_still(one) for one in family), "all go on")
        for one in reversed(family):
            one.kill()
    with stopped(process.pid) as is_done:
        assert not is_done
