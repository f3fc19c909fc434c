"""Programs that read commands from standard input, one JSON line each, and answer with one line.

The load generator and the programs that fill databases work like this, in processes of their own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Command = Callable[..., Any]


def serve(commands: dict[str, Command]) -> None:
    """Answer commands until standard input ends. Anything else that is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(answer_line(commands, line), file=answers, flush=True)


def answer_line(commands: dict[str, Command], line: str) -> str:
    name, given = json.loads(line)
    try:
        return json.dumps({"answer": commands[name](**given)})
    except Exception as error:  # noqa: BLE001 - the parent decides what a failure means
        traceback.print_exc()
        return json.dumps({"error": f"{name}: {type(error).__name__}: {error}"})
