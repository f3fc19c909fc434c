"""Functions that nobody may get run through the queue. Each leaves a file behind if it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def spring(name: str = "function", *given: Any, **named: Any) -> None:
    (Path(os.environ["TRAPS"]) / name).touch()


def hook(task: Any) -> None:
    spring("hook")


class Loaded:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return spring, (self.name,)
