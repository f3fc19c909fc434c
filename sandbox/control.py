"""The control endpoints under `/_sandbox`: faults, clock, state, journal.

Bad input is a 422 with a sentence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.core import MAX_JOURNAL_SIZE, World
from sandbox.faults import FaultRefused

MAX_CLOCK_OFFSET_SECONDS = 10 * 365 * 86400


class Refused(ValueError):
    """Input that a control endpoint does not accept; the text is the sentence for the caller."""


class OwnOriginOnly:
    """Refuses requests that a foreign web page sends through somebody's browser: they carry its origin."""

    def __init__(self, app: ASGIApp, world: World) -> None:
        self.app = app
        self.hosts = {"127.0.0.1", "localhost", "::1", urlsplit(world.base_url).hostname}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is not None and urlsplit(origin).hostname not in self.hosts:
            message = "The levers answer only to pages of the sandbox itself."
            await JSONResponse({"error": "forbidden", "message": message}, 403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


Endpoint = Callable[[Request], Awaitable[Response]]


def refusing(endpoint: Endpoint) -> Endpoint:
    """Turn Refused and FaultRefused into 422 `{"error": "invalid", "message": …}`."""

    async def wrapped(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (Refused, FaultRefused) as error:
            return JSONResponse({"error": "invalid", "message": str(error)}, status_code=422)

    return wrapped


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; an empty body is an empty object. Raises Refused."""
    body = await request.body()
    if not body.strip():
        return {}
    try:
        data = json.loads(body)
    except ValueError as error:
        raise Refused(f"The body is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise Refused("The body must be a JSON object.")
    return data


def no_other_fields(data: dict[str, Any], *known: str) -> None:
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise Refused(f"Unknown field: {', '.join(unknown)}.")


def control_routes(world: World) -> list[Route]:
    def known_system(name: Any) -> str:
        if name not in world.systems:
            raise Refused(f"There is no system {name!r}; there are {', '.join(world.systems)}.")
        return str(name)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def faults(request: Request) -> Response:
        if request.method == "POST":
            fault = world.faults.add(await json_object(request), list(world.systems))
            return JSONResponse(fault.as_dict(), status_code=201)
        if request.method == "DELETE":
            world.faults.clear()
            return Response(status_code=204)
        return JSONResponse({"faults": world.faults.listing()})

    async def clock(request: Request) -> Response:
        if request.method == "POST":
            data = await json_object(request)
            no_other_fields(data, "offset_seconds")
            offset = data.get("offset_seconds")
            if isinstance(offset, bool) or not isinstance(offset, int | float) or not math.isfinite(offset):
                raise Refused("'offset_seconds' must be a number.")
            if abs(offset) > MAX_CLOCK_OFFSET_SECONDS:
                raise Refused("'offset_seconds' must be within ten years.")
            world.clock.offset_seconds = float(offset)
            world.touch()
        return JSONResponse(
            {"now": world.clock.now().isoformat(), "offset_seconds": world.clock.offset_seconds}
        )

    async def reset(request: Request) -> Response:
        data = await json_object(request)
        no_other_fields(data, "system", "seed")
        seed = data.get("seed", True)
        if not isinstance(seed, bool):
            raise Refused("'seed' must be true or false.")
        name = data.get("system")
        world.reset(None if name is None else known_system(name), seed=seed)
        return Response(status_code=204)

    async def state(request: Request) -> Response:
        system = world.systems[known_system(request.path_params["system"])]
        if request.method == "PUT":
            try:
                data = json.loads(await request.body())
            except ValueError as error:
                raise Refused(f"The body is not JSON: {error}.") from error
            before = system.dump()
            try:
                system.load(data)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                system.load(before)
                raise Refused(f"That is no state of {system.name}: {error!r}.") from error
            world.touch()
            return Response(status_code=204)
        return JSONResponse(system.dump())

    async def journal(request: Request) -> Response:
        if request.method == "DELETE":
            world.journal.clear()
            return Response(status_code=204)
        if request.method == "PATCH":
            size = (await json_object(request)).get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_JOURNAL_SIZE:
                raise Refused(f"'size' must be between 1 and {MAX_JOURNAL_SIZE}.")
            world.resize_journal(size)
            return Response(status_code=204)
        name = request.query_params.get("system")
        try:
            limit = int(request.query_params.get("limit", "100"))
        except ValueError as error:
            raise Refused("'limit' must be a whole number.") from error
        size = world.journal.maxlen or MAX_JOURNAL_SIZE
        if not 1 <= limit <= size:
            raise Refused(f"'limit' must be between 1 and {size}.")
        return JSONResponse({"calls": world.calls(known_system(name) if name else None, limit)})

    return [
        Route("/health", refusing(health)),
        Route("/faults", refusing(faults), methods=["GET", "POST", "DELETE"]),
        Route("/clock", refusing(clock), methods=["GET", "POST"]),
        Route("/reset", refusing(reset), methods=["POST"]),
        Route("/state/{system}", refusing(state), methods=["GET", "PUT"]),
        Route("/journal", refusing(journal), methods=["GET", "PATCH", "DELETE"]),
    ]
