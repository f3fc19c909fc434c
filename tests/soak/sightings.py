"""What an agent saw, one entry a moment: each call when it is sent, and again when it is answered."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

REQUEST = "request-task"
SILENCE = "silence"  # not a call: the agent stops its heartbeats on purpose


@dataclass(frozen=True)
class Sighting:
    """Times are seconds since the epoch; all processes are on one machine and share its clock."""

    at: float
    agent: str
    call: str
    is_answer: bool = False
    request_id: str = ""
    assignment: int = 0
    issue: int = 0
    timeout: float = 0.0
    status: int | None = None  # None in an answer: none came
    is_hang_up: bool = False  # none came because the agent closed the connection
    state: str = ""
    lease_until: float = 0.0
    is_cancelled: bool = False
    seconds: float = 0.0  # from sending to the answer
    text: str = ""  # of an answer that is not 200

    @property
    def is_task(self) -> bool:
        """The agent was given this, and may work on it."""
        return self.is_answer and self.call == REQUEST and self.status == 200 and self.state == "live"

    def as_line(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value or name == "status"}
        return json.dumps(given, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> Sighting:
        return cls(**json.loads(line))
