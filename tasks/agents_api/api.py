"""The agent API (DESIGN: agent API). Authenticate, validate, one service call, JSON.

``request-task`` and ``heartbeat`` are described here and, under the server, answered by :mod:`tasks.agents_api.entry`.
Where there is no such server (Django's own test client, WSGI) these functions answer, with plain polling instead of
the hub.
"""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from ninja import NinjaAPI, Router
from ninja.errors import HttpError, ValidationError
from ninja.openapi.docs import Swagger
from ninja.parser import Parser
from ninja.security import HttpBearer
from pydantic_core import from_json
from redis.exceptions import RedisError

from broker_project.lib.config.access import Rate
from broker_project.lib.config.dynamic import LONG_POLL_SECONDS, value_of
from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redis.client import redis_client
from tasks.agents_api import schemas
from tasks.agents_api.agent_cache import AccessRefused, Caller, check_agent_id, directory
from tasks.agents_api.authentication import Visitor, enter_by_django
from tasks.agents_api.entry import REPLAY_WAIT_SECONDS, save_and_answer
from tasks.agents_api.task_request import (
    MAX_SKIPS,
    AgentGotOne,
    Answer,
    TaskRequest,
    database_down_answer,
    maintenance_answer,
    nothing_answer,
    problem,
    redis_down_answer,
    refusal_before_claim,
)
from tasks.models import Assignment
from tasks.offers.index import CLAIM
from tasks.repositories import enabled_repositories
from tasks.selectors import explanation
from tasks.services.fixes import UnknownPullRequest, repository_of_pull, request_fix
from tasks.services.leases import (
    LeaseLost,
    UnknownAssignment,
    complete_assignment,
    fail_assignment,
    find_assignment,
    live_assignment_of,
    release_assignment,
)

log = get_logger(__name__)
LOOK_SECONDS = 0.5
Id = int


class StrictJson(Parser):
    """JSON as databases know it: no NaN, no half of a surrogate pair, no depth without end. The hot path's own."""

    def parse_body(self, request: HttpRequest) -> Any:
        return from_json(request.body, allow_inf_nan=False)


api = NinjaAPI(
    parser=StrictJson(),
    title="Broker",
    version="1",
    description="Hands GitHub issues to coding agents. Every error is `{error, message}`.",
    docs=Swagger(settings={"persistAuthorization": True}),
    urls_namespace="agent-api",
)


class AgentToken(HttpBearer):
    """Lets a call in before its body is looked at, and describes the token for the page to try the API."""

    def __call__(self, request: HttpRequest) -> Visitor:
        visitor = enter_by_django(request)
        if directory.is_stale:
            directory.refresh()
        visitor.identify(None)
        return visitor

    def authenticate(self, request: HttpRequest, token: str) -> bool:
        return True


router = Router(tags=["agents"], auth=AgentToken())

PROBLEMS = dict.fromkeys((401, 403, 413, 422, 429, 503), schemas.Problem)
ENDING = {200: schemas.Ended, 404: schemas.Problem, 409: schemas.Problem, **PROBLEMS}


class ApiProblem(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def respond(answer: Answer) -> HttpResponse:
    response: HttpResponse
    if answer.body is None:
        response = HttpResponse(status=answer.status)
        del response.headers["Content-Type"]
    else:
        response = JsonResponse(answer.body, status=answer.status, json_dumps_params={"ensure_ascii": False})
    response.headers["Cache-Control"] = "no-store"
    if answer.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(answer.retry_after_seconds)
    return response


@api.exception_handler(ApiProblem)
def on_problem(request: HttpRequest, error: ApiProblem) -> HttpResponse:
    return respond(error.answer)


@api.exception_handler(AccessRefused)
def on_refused(request: HttpRequest, error: AccessRefused) -> HttpResponse:
    return respond(problem(error.status, error.code, error.message, error.retry_after_seconds))


@api.exception_handler(ValidationError)
def on_invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    first = error.errors[0]
    place = ".".join(str(part) for part in first["loc"][1:] if part != "body")
    text = str(first["msg"]).removeprefix("Value error, ")
    return respond(problem(422, "bad_request", f"{place}: {text}." if place else f"{text}."))


@api.exception_handler(HttpError)
def on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    status = 422 if error.status_code == 400 else error.status_code
    return respond(problem(status, "bad_request", str(error.message)))


@api.exception_handler(RequestDataTooBig)
def on_too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return respond(
        problem(413, "too_large", f"The body may have {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes.")
    )


@api.exception_handler(LeaseLost)
def on_lease_lost(request: HttpRequest, error: LeaseLost) -> HttpResponse:
    return respond(problem(409, "lease_lost", "This assignment is no longer yours."))


@api.exception_handler(UnknownAssignment)
def on_unknown(request: HttpRequest, error: UnknownAssignment) -> HttpResponse:
    return respond(problem(404, "unknown_assignment", "There is no such assignment."))


@api.exception_handler(RedisError)
def on_redis(request: HttpRequest, error: RedisError) -> HttpResponse:
    log.warning("Redis does not answer", error=str(error))
    return respond(redis_down_answer())


@api.exception_handler(OperationalError)
def on_database(request: HttpRequest, error: OperationalError) -> HttpResponse:
    log.warning("the database does not answer", path=request.path, error=str(error))
    return respond(database_down_answer())


@api.exception_handler(OutsideError)
def on_outside(request: HttpRequest, error: OutsideError) -> HttpResponse:
    return respond(problem(502, "github_failed", error.message, 30))


@api.exception_handler(Exception)
def on_fault(request: HttpRequest, error: Exception) -> HttpResponse:
    log.exception("request failed", path=request.path, exc_info=error)
    return respond(problem(500, "internal", "Something went wrong here; it was written down."))


def identify(request: HttpRequest, agent_id: str | None, kind: Rate | None = None) -> Caller:
    """Who is calling. Calls of some kinds are counted by themselves, too."""
    visitor: Visitor = request.auth  # type: ignore[attr-defined]
    caller = directory.identify(visitor.authorization, agent_id)
    if kind is not None:
        visitor.count(kind, caller.name if caller.has_token else "")
    return caller


@router.post(
    "/request-task",
    response={200: schemas.Task, 204: None, 502: schemas.Problem, **PROBLEMS},
    summary="Ask for a task and wait for one",
)
def request_task(request: HttpRequest, body: schemas.RequestTask) -> HttpResponse:
    caller = identify(request, body.agent_id)
    if refusal := refusal_before_claim():
        return respond(refusal)
    return respond(wait_for_task(TaskRequest(caller, body), request.auth))  # type: ignore[attr-defined]


def wait_for_task(wanted: TaskRequest, visitor: Visitor) -> Answer:
    given = "timeout" in wanted.body.model_fields_set
    seconds = float(wanted.body.timeout or 0) if given else float(value_of(LONG_POLL_SECONDS))
    deadline = time.monotonic() + seconds
    if replayed := replay(wanted):
        return replayed
    while True:
        answer = try_once(wanted)
        if isinstance(answer, AgentGotOne):
            return replay(wanted) or nothing_answer(seconds)
        if answer is not None:
            return answer
        wanted.is_first_check = False
        if time.monotonic() >= deadline:
            return replay(wanted) or nothing_answer(seconds)
        time.sleep(LOOK_SECONDS)
        if directory.is_stale:
            directory.refresh()
        visitor.is_still(wanted.caller.name)


def replay(wanted: TaskRequest) -> Answer | None:
    """The task of an earlier request with this id; waits for one that is still being assigned."""
    deadline = time.monotonic() + REPLAY_WAIT_SECONDS
    while wanted.body.request_id is not None:
        found = wanted.replay()
        if isinstance(found, Answer):
            return found
        if not found:
            break
        if time.monotonic() >= deadline:
            return nothing_answer(0)
        time.sleep(LOOK_SECONDS)
    return None


def try_once(wanted: TaskRequest) -> Answer | AgentGotOne | None:
    repositories = enabled_repositories()
    for _ in range(MAX_SKIPS):
        found: Any = redis_client().eval(CLAIM, *wanted.claim_arguments(repositories, timezone.now()))
        if found[0] == "none":
            return None
        if found[0] == "maintenance":
            return maintenance_answer(found[1])
        answer = wanted.act(found, repositories)
        if answer is not None:
            return answer
    return None


@router.post(
    "/assignments/{int:assignment_id}/heartbeat",
    response={200: schemas.HeartbeatAnswer, 404: schemas.Problem, 409: schemas.Problem, **PROBLEMS},
    summary="Say that the work goes on",
)
def heartbeat(request: HttpRequest, assignment_id: Id, body: schemas.Heartbeat | None = None) -> HttpResponse:
    caller = identify(request, None)
    answer, _ = save_and_answer(assignment_id, caller, (body.progress or "") if body else "")
    return respond(answer)


def own_assignment(request: HttpRequest, assignment_id: int) -> Assignment:
    """The assignment, if the caller may speak for it: by its token, or where the API is open."""
    caller = identify(request, None)
    assignment = find_assignment(assignment_id)
    if caller.name and caller.name != assignment.agent.name:
        raise AccessRefused(403, "wrong_agent", "This assignment belongs to another agent.")
    return assignment


def ended(assignment: Assignment) -> dict[str, Any]:
    return {
        "assignment_id": assignment.pk,
        "state": str(assignment.state),
        "issue_id": assignment.number,
        "ended_at": assignment.ended_at,
    }


@router.post("/assignments/{int:assignment_id}/complete", response=ENDING, summary="The work is done")
def complete(request: HttpRequest, assignment_id: Id, body: schemas.Complete | None = None) -> Any:
    assignment = own_assignment(request, assignment_id)
    given = body or schemas.Complete()
    done = complete_assignment(
        assignment, assignment.agent.name, given.result, given.pull_request_number, timezone.now()
    )
    return ended(done)


@router.post("/assignments/{int:assignment_id}/fail", response=ENDING, summary="The work cannot be done")
def fail(request: HttpRequest, assignment_id: Id, body: schemas.Fail) -> Any:
    assignment = own_assignment(request, assignment_id)
    return ended(fail_assignment(assignment, assignment.agent.name, body.reason, timezone.now()))


@router.post("/assignments/{int:assignment_id}/release", response=ENDING, summary="Give the task back")
def release(request: HttpRequest, assignment_id: Id) -> Any:
    assignment = own_assignment(request, assignment_id)
    return ended(release_assignment(assignment, assignment.agent.name, timezone.now()))


@router.get(
    "/agents/{agent_id}/current-task",
    response={200: schemas.Task, 204: None, **PROBLEMS},
    summary="What the agent works on",
)
def current_task(request: HttpRequest, agent_id: str) -> HttpResponse:
    check_id(agent_id)
    caller = identify(request, agent_id)
    assignment = live_assignment_of(caller.name)
    if assignment is None:
        return respond(Answer(204))
    from tasks.offers.heartbeat import lease_expires_at

    expires = lease_expires_at(assignment.last_heartbeat_at).isoformat()
    return respond(Answer(200, {**assignment.answer, "lease_expires_at": expires}))


def check_id(agent_id: str) -> None:
    if found := check_agent_id(agent_id):
        raise ApiProblem(problem(422, "bad_request", f"agent_id: {found}."))


@router.get(
    "/explain",
    response={200: schemas.Explanation, **PROBLEMS},
    summary="Why each issue is or is not on offer",
)
def explain(request: HttpRequest, agent_id: str) -> Any:
    check_id(agent_id)
    caller = identify(request, agent_id, Rate.EXPLAIN)
    if refusal := refusal_before_claim():
        raise ApiProblem(refusal)
    rows = explanation(enabled_repositories(), caller.roles, timezone.now())
    return {
        "agent_id": agent_id,
        "gate": settings.BROKER.priority_gate,
        "issues": [
            {
                "number": row.number,
                "title": row.title,
                "priority": row.priority,
                "offered": row.offered,
                "reason": str(row.reason),
            }
            for row in rows
        ],
    }


@router.post(
    "/tasks/fix",
    response={202: schemas.FixAnswer, 404: schemas.Problem, 502: schemas.Problem, **PROBLEMS},
    summary="Have review comments mended",
)
def fix(request: HttpRequest, body: schemas.FixRequest) -> Any:
    caller = identify(request, None, Rate.FIX)
    if refusal := refusal_before_claim():
        raise ApiProblem(refusal)
    try:
        task = request_fix(
            repository_of_pull(enabled_repositories(), body.pull_request_number),
            body.pull_request_number,
            body.review_comments,
            caller.name or "open API",
            timezone.now(),
        )
    except UnknownPullRequest:
        message = f"There is no open pull request {body.pull_request_number}."
        raise ApiProblem(problem(404, "unknown_pull_request", message)) from None
    return 202, {
        "pull_request_number": task.pull_number,
        "comments": len(task.comments),
        "state": str(task.state),
    }


api.add_router("", router)
