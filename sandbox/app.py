"""The ASGI application: the stand-ins under their prefixes, the control endpoints, the page."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Router

from sandbox.control import OwnOriginOnly, control_routes
from sandbox.core import System, World, logger
from sandbox.faults import FaultMiddleware
from sandbox.page import page_routes

SYSTEMS = ("github", "gemini", "mastodon", "football", "gcs", "feed")


def system_classes() -> list[type[System]]:
    """The one System subclass that each module of the fixed list defines."""
    classes: list[type[System]] = []
    for name in SYSTEMS:
        module = importlib.import_module(f"sandbox.{name}")
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, System) and getattr(value, "name", None) == name
        ]
        if len(found) != 1:
            raise RuntimeError(f"sandbox/{name}.py must define one System named {name!r}, not {len(found)}.")
        classes.append(found[0])
    return classes


def create_app(
    *,
    state_path: Path | str | None = None,
    base_url: str = "http://127.0.0.1:8001",
    broker_url: str | None = None,
    webhook_secret: str | None = None,
    lively: bool = False,
    seed: bool = True,
) -> Starlette:
    """The whole sandbox. Its World is at `app.state.world`."""
    world = World(
        base_url=base_url,
        broker_url=broker_url,
        webhook_secret=webhook_secret,
        state_path=Path(state_path) if state_path else None,
        lively=lively,
    )
    world.add_systems(system_classes())
    world.start(seed=seed)

    routes: list[BaseRoute] = [
        *page_routes(world),
        Mount("/_sandbox", app=OwnOriginOnly(Router(routes=_control(world)), world)),
    ]
    for system in world.systems.values():
        router = Router(routes=system.routes(), redirect_slashes=False)
        routes.append(Mount(f"/{system.name}", app=FaultMiddleware(router, world, system.name)))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        world.save()
        tasks = [
            asyncio.create_task(system.run(), name=f"sandbox {name}")
            for name, system in world.systems.items()
        ]
        for task in tasks:
            task.add_done_callback(_report_crash)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            world.save()

    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.world = world
    return app


def _report_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.error("The background task of %s ended.", task.get_name(), exc_info=error)


def _control(world: World) -> list[BaseRoute]:
    routes: list[BaseRoute] = list(control_routes(world))
    for system in world.systems.values():
        own = system.control_routes()
        if own:
            routes.append(Mount(f"/{system.name}", routes=own))
    return routes
