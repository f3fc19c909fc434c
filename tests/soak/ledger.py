"""What the agents, the people and the pollers of a soak saw. Some of it alone shows that something is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.records import Records
from tests.soak.sightings import REQUEST, SILENCE, Sighting

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


@dataclass(frozen=True)
class FaultRun:
    """A fault that was carried out, with its times as seconds since the epoch."""

    name: str
    facts: Mapping[str, Any]
    began: float
    ended: float


@dataclass
class Ledger:
    answers: Counter[str] = field(default_factory=Counter)
    sightings: list[Sighting] = field(default_factory=list)
    tasks: dict[int, float] = field(default_factory=dict)  # assignments, and when their agents had them
    silences: int = 0  # agents that stopped their heartbeats on purpose
    disconnects: int = 0
    endings: dict[int, str] = field(default_factory=dict)  # what the broker said is on record
    pollers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)  # faults that found nothing to break
    fault_runs: list[FaultRun] = field(default_factory=list)
    opened: dict[int, float] = field(default_factory=dict)  # issues by number, and when people opened them
    surprises: list[str] = field(default_factory=list)
    scene: str = ""  # what is going on, for whoever looks into a surprise

    def answered(self, what: str, status: int | None, text: str = "") -> None:
        self.answers[f"{what} {status or 'no answer'}"] += 1
        if status is not None and status not in EXPECTED[what]:
            self.surprise(f"{what} answered {status}: {text[:300]}")

    def see(self, sighting: Sighting) -> None:
        """Take in what an agent saw."""
        self.sightings.append(sighting)
        if sighting.call == SILENCE:
            self.silences += 1
        elif sighting.is_hang_up:
            self.disconnects += 1
        elif sighting.is_answer:
            self.answered(sighting.call, sighting.status, sighting.text)
            if sighting.is_task:
                self.tasks.setdefault(sighting.assignment, sighting.at)
            elif sighting.status == 200 and sighting.call not in (REQUEST, "heartbeat"):
                self.ended(sighting.assignment, sighting.state)

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
        if self.scene:
            text = f"{self.scene}: {text}"
        if len(self.surprises) < KEPT and text not in self.surprises:
            self.surprises.append(text)


def forgotten_endings(records: Records, endings: dict[int, str]) -> list[str]:
    """What an agent was told is on record is on record."""
    states: dict[int, str] = dict(records.rows("SELECT id, state FROM tasks_assignment"))
    return [
        f"assignment {pk} was said to be {state} and is {states.get(pk, 'gone')}"
        for pk, state in sorted(endings.items())
        if states.get(pk) != state
    ]
