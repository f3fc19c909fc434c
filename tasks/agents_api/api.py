"""The agent API (DESIGN: agent API). Authenticate, validate, one service call, JSON.

``request-task`` and ``heartbeat`` are only described here, for OpenAPI. :mod:`tasks.agents_api.entry` answers them
before Django sees the request.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from ninja import NinjaAPI, Router
from ninja.errors import HttpError, ValidationError
from ninja.openapi.docs import Swagger
from ninja.parser import Parser
from ninja.security import HttpBearer
from pydantic_core import from_json

from broker_project.lib.config.access import Rate
from tasks.agents_api import answers, schemas
from tasks.agents_api.agent_cache import agent_cache
from tasks.agents_api.answers import Answer, Refused, answer_to
from tasks.agents_api.authentication import Caller, Visitor, identify, visitor_from_request
from tasks.models import Assignment
from tasks.offers.heartbeat import lease_expires_at
from tasks.repositories import enabled_repositories
from tasks.selectors import explanation
from tasks.services.agents import name_problem
from tasks.services.fixes import UnknownPullRequest, repository_of_pull, request_fix
from tasks.services.leases import (
    complete_assignment,
    fail_assignment,
    find_assignment,
    live_assignment_of,
    release_assignment,
)

Id = int


class StrictJson(Parser):
    """JSON as databases take it: no NaN, no half of a surrogate pair, no endless depth. The entry parses alike."""

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
    """Authenticates a call before its body is read, and describes the token on the page to try the API."""

    def __call__(self, request: HttpRequest) -> Visitor:
        visitor = visitor_from_request(request)
        if agent_cache.is_stale:
            agent_cache.refresh()
        visitor.identify(None)
        return visitor

    def authenticate(self, request: HttpRequest, token: str) -> bool:
        return True


router = Router(tags=["agents"], auth=AgentToken())

PROBLEMS = dict.fromkeys((401, 403, 413, 422, 429, 503), schemas.Problem)
ENDING = {200: schemas.Ended, 404: schemas.Problem, 409: schemas.Problem, **PROBLEMS}


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


@api.exception_handler(ValidationError)
def on_invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    first = error.errors[0]
    place = ".".join(str(part) for part in first["loc"][1:] if part != "body")
    return respond(answers.bad_request(place, str(first["msg"])))


@api.exception_handler(HttpError)
def on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    status = 422 if error.status_code == 400 else error.status_code
    return respond(answers.problem(status, "bad_request", str(error.message)))


@api.exception_handler(RequestDataTooBig)
def on_too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return respond(answers.too_large(settings.DATA_UPLOAD_MAX_MEMORY_SIZE))


@api.exception_handler(Exception)
def on_failure(request: HttpRequest, error: Exception) -> HttpResponse:
    return respond(answer_to(error, request.path))


def caller_of(request: HttpRequest, agent_id: str | None, kind: Rate | None = None) -> Caller:
    """Who is calling. Calls of some kinds are also counted by themselves."""
    visitor: Visitor = request.auth  # type: ignore[attr-defined]
    caller = identify(visitor.authorization, agent_id)
    if kind is not None:
        visitor.count(kind, caller.name if caller.has_token else "")
    return caller


def served_by_the_entry() -> HttpResponse:
    """Only a server without ASGI lifespan events brings these calls to Django."""
    return respond(answers.problem(503, "not_served", "This server does not run the broker's ASGI entry."))


@router.post(
    "/request-task",
    response={200: schemas.Task, 204: None, 502: schemas.Problem, **PROBLEMS},
    summary="Ask for a task and wait for one",
)
def request_task(request: HttpRequest, body: schemas.RequestTask) -> HttpResponse:
    return served_by_the_entry()


@router.post(
    "/assignments/{int:assignment_id}/heartbeat",
    response={200: schemas.HeartbeatAnswer, 404: schemas.Problem, 409: schemas.Problem, **PROBLEMS},
    summary="Say that the work goes on",
)
def heartbeat(request: HttpRequest, assignment_id: Id, body: schemas.Heartbeat | None = None) -> HttpResponse:
    return served_by_the_entry()


def own_assignment(request: HttpRequest, assignment_id: int) -> Assignment:
    """The assignment, if the caller may speak for it: by its token, or where the API is open."""
    caller = caller_of(request, None)
    assignment = find_assignment(assignment_id)
    if caller.name and caller.name != assignment.agent.name:
        raise Refused(answers.wrong_agent())
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
    caller = caller_of(request, agent_id)
    assignment = live_assignment_of(caller.name)
    if assignment is None:
        return respond(Answer(204))
    expires = lease_expires_at(assignment.last_heartbeat_at).isoformat()
    return respond(Answer(200, {**assignment.answer, "lease_expires_at": expires}))


def check_id(agent_id: str) -> None:
    if found := name_problem(agent_id):
        raise Refused(answers.bad_request("agent_id", found))


@router.get(
    "/explain",
    response={200: schemas.Explanation, **PROBLEMS},
    summary="Why each issue is or is not on offer",
)
def explain(request: HttpRequest, agent_id: str) -> Any:
    check_id(agent_id)
    caller = caller_of(request, agent_id, Rate.EXPLAIN)
    answers.check_github_is_on()
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
    caller = caller_of(request, None, Rate.FIX)
    answers.check_github_is_on()
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
        raise Refused(answers.problem(404, "unknown_pull_request", message)) from None
    return 202, {
        "pull_request_number": task.pull_number,
        "comments": len(task.comments),
        "state": str(task.state),
    }


api.add_router("", router)
