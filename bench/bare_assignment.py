"""An assignment with nothing around it: the same calls to SQLite, GitHub and Redis, and no more.

``POST /assign`` claims as :mod:`bench.bare` does, then a thread reads a row, writes one in a transaction, makes the
three requests on a kept connection, writes two rows in a second transaction and fifteen keys by one script. No Django,
no rules, no prompt, no PyGithub: what is left is what Python, its threads and the system take for the calls alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import redis

from bench.bare import Bare
from bench.github import BASE, BODY
from bench.serve import reply

THREADS = 16  # as the product has
KEYS = 15
TABLES = """
CREATE TABLE IF NOT EXISTS issue (number INTEGER PRIMARY KEY, body TEXT);
CREATE TABLE IF NOT EXISTS assignment (id INTEGER PRIMARY KEY, number INTEGER, state TEXT, answer TEXT);
CREATE TABLE IF NOT EXISTS event (id INTEGER PRIMARY KEY, number INTEGER, what TEXT);
"""
WRITE = "for i = 1, #ARGV, 2 do redis.call('SET', ARGV[i], ARGV[i + 1], 'EX', 600) end return 1"
HEADERS = ["Authorization: token of-no-worth", "User-Agent: bench", "Accept: application/json"]
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class BareAssignment(Bare):
    def __init__(self) -> None:
        super().__init__()
        github = urlsplit(os.environ["BENCH_GITHUB_URL"])
        self.github = (github.hostname or "", github.port or 80)
        self.redis: redis.Redis = redis.Redis.from_url(
            os.environ["BENCH_REDIS_URL"], decode_responses=True, max_connections=THREADS
        )
        self.write = str(self.redis.script_load(WRITE))
        self.threads = ThreadPoolExecutor(THREADS)
        self.own = threading.local()
        self.turn = threading.Lock()  # SQLite has one writer; the product's threads take turns as well

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/assign":
            await super().__call__(scope, receive, send)
            return
        body = json.loads((await receive())["body"])
        head = await self.claim(body["agent_id"])
        if head is None:
            await reply(send, 204, b"")
            return
        answer = await asyncio.get_running_loop().run_in_executor(self.threads, self.assign, int(head))
        await reply(send, 200, answer)

    def database(self) -> sqlite3.Connection:
        if not hasattr(self.own, "database"):
            self.own.database = sqlite3.connect(
                os.environ["BENCH_DATABASE"], isolation_level=None, timeout=20
            )
            with self.turn:
                self.own.database.executescript(
                    f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {TABLES}"
                )
        found: sqlite3.Connection = self.own.database
        return found

    def assign(self, number: int) -> bytes:
        database = self.database()
        database.execute("SELECT body FROM issue WHERE number = ?", [number]).fetchone()
        with self.turn:
            database.execute("BEGIN IMMEDIATE")
            row = [number, "claiming"]
            key = database.execute("INSERT INTO assignment (number, state) VALUES (?, ?) RETURNING id", row)
            (made,) = key.fetchone()
            database.execute("COMMIT")
        sha = self.ask("GET", f"{BASE}/branches/main")["commit"]["sha"]
        self.ask("POST", f"{BASE}/git/refs", {"ref": f"refs/heads/feature/issue-{number}", "sha": sha})
        labels = self.ask("POST", f"{BASE}/issues/{number}/labels", {"labels": ["in-progress", "agent"]})
        answer = json.dumps({"issue_id": number, "labels": labels, "body": BODY, "prompt": BODY + BODY})
        with self.turn:
            database.execute("BEGIN IMMEDIATE")
            change = "UPDATE assignment SET state = 'live', answer = ? WHERE id = ? AND state = 'claiming'"
            database.execute(change, [answer, made])
            database.execute("INSERT INTO event (number, what) VALUES (?, 'assigned')", [number])
            database.execute("COMMIT")
        words = [
            word
            for n in range(KEYS)
            for word in (f"bench:bare:{n}:{number}", answer if n == 0 else BODY[:80])
        ]
        self.redis.evalsha(self.write, 0, *words)
        return answer.encode()

    def ask(self, verb: str, path: str, body: Any = None) -> Any:
        """One request on this thread's own connection. Only for a server whose answers have a length."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{verb} {path} HTTP/1.1",
            f"Host: {self.github[0]}",
            f"Content-Length: {len(data)}",
            *HEADERS,
        ]
        request = "\r\n".join([*lines, "", ""]).encode() + data
        # The server closes a connection that was idle for some seconds.
        answer = (hasattr(self.own, "github") and self.send(request)) or self.connect().send(request)
        head, _, found = answer.partition(b"\r\n\r\n")
        length = int(LENGTH.search(head)[1])  # type: ignore[index]
        while len(found) < length:
            found += self.own.github.recv(65536)
        return json.loads(found)

    def connect(self) -> BareAssignment:
        self.own.github = socket.create_connection(self.github, 15)
        return self

    def send(self, request: bytes) -> bytes:
        """The first bytes of the answer; nothing if the connection is closed."""
        try:
            self.own.github.sendall(request)
            first: bytes = self.own.github.recv(65536)
        except ConnectionError:
            return b""
        return first


application = BareAssignment()
