"""The JSON that agents send and get."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
)

from tasks.services.agents import name_problem

MAX_WAIT_SECONDS = 600


class Incoming(BaseModel):
    model_config = ConfigDict(extra="forbid", str_max_length=100_000)


class RequestTask(Incoming):
    agent_id: StrictStr = Field(description="The agent's own id; also its label on GitHub.")
    timeout: Annotated[StrictInt | StrictFloat | None, Field(ge=0, le=MAX_WAIT_SECONDS)] = Field(
        default=120, description="How many seconds to wait for a task; 0 or null answers at once."
    )
    roles: Annotated[list[Annotated[StrictStr, Field(max_length=50)]], Field(max_length=50)] | None = None
    request_id: Annotated[StrictStr, Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="The same id again returns the very task that was given before."
    )

    @field_validator("agent_id")
    @classmethod
    def _usable(cls, value: str) -> str:
        if problem := name_problem(value):
            raise ValueError(problem)
        return value

    @field_validator("roles")
    @classmethod
    def _role_names(cls, value: list[str] | None) -> list[str] | None:
        if any(not role.isprintable() for role in value or ()):
            raise ValueError("a role must not hold control characters")
        return value

    @field_validator("request_id")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("request_id must not hold control characters")
        return value


class Task(BaseModel):
    issue_id: int
    issue_url: str
    title: str
    body: str
    labels: list[str]
    branch_name: str
    prompt: str
    required_role: str
    task_type: Literal["development", "review", "fix"]
    gemini_response: None = None
    assignment_id: int
    repository: str
    base_branch: str
    pull_request_url: str | None
    lease_expires_at: datetime
    heartbeat_seconds: int
    state: str | None = Field(default=None, description="Only on a replay: how the assignment stands.")


class Heartbeat(Incoming):
    progress: Annotated[StrictStr, Field(max_length=2000)] | None = None


class HeartbeatAnswer(BaseModel):
    lease_expires_at: datetime
    cancel: StrictBool = Field(description="True: stop, somebody took the task back or closed the issue.")


class Complete(Incoming):
    result: Any = Field(default=None, description="Anything worth keeping; secrets are hidden.")
    pull_request_number: Annotated[StrictInt, Field(ge=1, le=2_000_000_000)] | None = None

    @field_validator("result")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        """1e999 is JSON and reads as infinity, which no database takes as JSON again."""
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise ValueError("numbers must be finite") from None
        return value


class Fail(Incoming):
    reason: Annotated[StrictStr, Field(min_length=1, max_length=10_000)]


class Ended(BaseModel):
    assignment_id: int
    state: str
    issue_id: int
    ended_at: datetime | None


class FixRequest(Incoming):
    pull_request_number: Annotated[StrictInt, Field(ge=1, le=2_000_000_000)]
    review_comments: Annotated[
        list[Annotated[StrictStr, Field(min_length=1, max_length=10_000)]],
        Field(min_length=1, max_length=500),
    ]


class FixAnswer(BaseModel):
    pull_request_number: int
    comments: int
    state: str


class Explained(BaseModel):
    number: int
    title: str
    priority: int | None
    offered: bool
    reason: str


class Explanation(BaseModel):
    agent_id: str
    gate: str
    issues: list[Explained]


class Problem(BaseModel):
    error: str
    message: str
