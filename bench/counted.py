"""The product with its database statements counted. Only for counting: nothing is timed through it.

Every connection gets a trace callback of SQLite itself, which also sees what Django's own hooks do not (COMMIT).
``GET /-/bench/queries`` answers with the counts by the statement's first word.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from typing import Any

from bench.serve import reply
from broker_project.asgi import application as product

# After the application, which sets Django up.
from django.db.backends.signals import connection_created  # isort: skip

PATH = "/-/bench/queries"
KEPT = 200  # statements that can be asked for
SHOWN_CHARACTERS = 160

counts: Counter[str] = Counter()
recent: deque[str] = deque(maxlen=KEPT)
_lock = threading.Lock()


def note(statement: str) -> None:
    word = statement.split(None, 1)[0].upper() if statement.strip() else ""
    if word.startswith("--"):
        return  # a trigger inside a statement
    with _lock:
        counts[word] += 1
        recent.append(" ".join(statement.split())[:SHOWN_CHARACTERS])


def watch(connection: Any, **_: Any) -> None:
    connection.connection.set_trace_callback(note)


connection_created.connect(watch)


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http" and scope["path"] == PATH:
        with _lock:
            document = {"counts": dict(counts), "recent": list(recent)}
        await reply(send, 200, json.dumps(document).encode())
        return
    await product(scope, receive, send)
