"""What the agents, the people and the pollers of a soak saw. Some of it alone shows that something is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.faults.records import Records

# What each call of the API may answer, whatever is broken behind it.
EXPECTED = {
    "request-task": {200, 204, 502, 503},
    "heartbeat": {200, 409, 503},
    "complete": {200, 409, 503},
    "fail": {200, 409, 503},
    "release": {200, 409, 503},
    "admin": {200, 302, 403, 503},
}
KEPT = 50
SENTENCE = "CommandError: "


@dataclass
class Ledger:
    answers: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    silences: int = 0  # agents that stopped their heartbeats on purpose
    disconnects: int = 0
    endings: dict[int, str] = field(default_factory=dict)  # what the broker said is on record
    pollers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)  # faults that found nothing to break
    opened: int = 0
    surprises: list[str] = field(default_factory=list)

    def answered(self, what: str, status: int | None, text: str = "") -> None:
        self.answers[f"{what} {status or 'no answer'}"] += 1
        if status is not None and status not in EXPECTED[what]:
            self.surprise(f"{what} answered {status}: {text[:300]}")

    def ended(self, assignment: int, state: str) -> None:
        known = self.endings.setdefault(assignment, state)
        if known != state:
            self.surprise(f"assignment {assignment} was said to be {known} and then {state}")

    def polled(self, name: str, status: int | None, output: str) -> None:
        """A poller that could not do its work ends with a sentence and 1; the log above it may say more."""
        word = {0: "done", 1: "failed", -9: "killed"}.get(status if status is not None else -1, str(status))
        self.pollers[f"{name} {word}"] += 1
        if status not in (0, 1, -9) or (status == 1 and SENTENCE not in output):
            self.surprise(f"poll {name} ended with {status}: {output[-1500:]}")

    def surprise(self, text: str) -> None:
        if len(self.surprises) < KEPT:
            self.surprises.append(text)


def forgotten_endings(records: Records, endings: dict[int, str]) -> list[str]:
    """What an agent was told is on record is on record."""
    states: dict[int, str] = dict(records.rows("SELECT id, state FROM tasks_assignment"))
    return [
        f"assignment {pk} was said to be {state} and is {states.get(pk, 'gone')}"
        for pk, state in sorted(endings.items())
        if states.get(pk) != state
    ]
