"""What every stand-in shares: the clock, the base class, and the world that holds them and keeps their state.

All endpoints and background tasks run on one event loop and change state only between two awaits, so no
stand-in needs a lock. Endpoints must therefore be `async def` (Starlette runs plain functions in threads).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from starlette.routing import BaseRoute

from sandbox.faults import Faults

logger = logging.getLogger("sandbox")

JOURNAL_SIZE = 1000  # calls, unless somebody asks for more
MAX_JOURNAL_SIZE = 1_000_000
SAVE_DELAY_SECONDS = 1.0
STATE_VERSION = 1


def iso(moment: datetime) -> str:
    """The moment as `2026-01-31T09:30:00Z`, the way most of the imitated systems write it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_iso(text: str) -> datetime:
    """The aware moment of any ISO 8601 text; without an offset it is taken as UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Clock:
    """The sandbox's present time: the real one, shifted by `offset_seconds`."""

    def __init__(self, offset_seconds: float = 0.0) -> None:
        self.offset_seconds = offset_seconds

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.offset_seconds)


@dataclass(frozen=True)
class Call:
    """One call as the journal remembers it. `status` is None when no answer was sent."""

    at: str
    system: str
    method: str
    path: str
    status: int | None
    fault: str | None = None
    note: str | None = None


class System:
    """One stand-in. Subclasses set `name` (their mount prefix) and override what they need.

    The routes are relative to `/<name>`. Whoever changes state calls `self.world.touch()`.
    """

    name: ClassVar[str]

    def __init__(self, world: World) -> None:
        self.world = world
        self.reset()

    def routes(self) -> list[BaseRoute]:
        """What the outside system answers, mounted at `/<name>`."""
        return []

    def control_routes(self) -> list[BaseRoute]:
        """Control endpoints of this stand-in alone, at `/_sandbox/<name>`; the real system has none of them."""
        return []

    def reset(self) -> None:
        """Delete everything: the state of a system that nobody has used yet."""

    def seed(self) -> None:
        """Fill in believable data relative to `self.world.clock.now()`."""

    def dump(self) -> Any:
        """The whole state as JSON; `load(dump())` changes nothing."""
        return {}

    def load(self, data: Any) -> None:
        """Replace the whole state. Raises KeyError, TypeError or ValueError for data that no dump has."""

    def overview(self) -> dict[str, Any]:
        """What the page shows: `{"sections": [{"title": str, "columns": [str], "rows": [[cell]]}]}`.

        A cell is text, a number, None, a list of texts (shown as labels) or `{"text": str, "href": str}`.
        """
        return {"sections": []}

    async def run(self) -> None:
        """Background activity; started with the server, cancelled when it stops."""


class World:
    """Everything the sandbox holds."""

    def __init__(
        self,
        *,
        base_url: str = "http://127.0.0.1:8001",
        broker_url: str | None = None,
        webhook_secret: str | None = None,
        state_path: Path | None = None,
        lively: bool = False,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.broker_url = broker_url.rstrip("/") if broker_url else None
        self.webhook_secret = webhook_secret
        self.lively = lively
        self.state_path = state_path
        self.clock = Clock()
        self.faults = Faults()
        self.journal: deque[Call] = deque(maxlen=JOURNAL_SIZE)
        self.systems: dict[str, System] = {}
        self._dirty = False
        self._save_timer: asyncio.TimerHandle | None = None

    def add_systems(self, factories: Iterable[Callable[[World], System]]) -> None:
        for factory in factories:
            system = factory(self)
            self.systems[system.name] = system

    def record(
        self,
        system: str,
        method: str,
        path: str,
        status: int | None,
        fault: str | None = None,
        note: str | None = None,
    ) -> None:
        self.journal.append(Call(iso(self.clock.now()), system, method, path, status, fault, note))

    def calls(self, system: str | None = None, limit: int = JOURNAL_SIZE) -> list[dict[str, Any]]:
        """The most recent calls, newest first."""
        chosen = [call for call in reversed(self.journal) if system in (None, call.system)]
        return [asdict(call) for call in chosen[:limit]]

    def resize_journal(self, size: int) -> None:
        """Keep so many calls from now on."""
        self.journal = deque(self.journal, maxlen=size)

    # State on disk

    def touch(self) -> None:
        """State has changed: it is saved about a second later, and at shutdown."""
        self._dirty = True
        if self.state_path is None or self._save_timer is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # before the server runs: the start itself saves
            return
        self._save_timer = loop.call_later(SAVE_DELAY_SECONDS, self._save_when_due)

    def _save_when_due(self) -> None:
        self._save_timer = None
        try:
            self.save()
        except OSError as error:
            logger.error("The state could not be saved: %s", error)

    def save(self) -> None:
        """Save the state now if it changed. Readers see the old file or the new one, never a part of it."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if self.state_path is None or not self._dirty:
            return
        state = {
            "version": STATE_VERSION,
            "saved_at": iso(datetime.now(UTC)),
            "clock_offset_seconds": self.clock.offset_seconds,
            "systems": {name: system.dump() for name, system in self.systems.items()},
        }
        folder = self.state_path.parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{self.state_path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(state, file, ensure_ascii=False)
            os.replace(temporary, self.state_path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._dirty = False

    def start(self, *, seed: bool = True) -> None:
        """Load the saved state. A system without readable data there starts empty, seeded if `seed`."""
        saved = self._read_state()
        for name, system in self.systems.items():
            if name in saved:
                try:
                    system.load(saved[name])
                    continue
                except (AttributeError, LookupError, TypeError, ValueError) as error:
                    logger.warning("The saved state of %s is not usable (%r); it begins anew.", name, error)
            system.reset()
            if seed:
                system.seed()
            self.touch()

    def _read_state(self) -> dict[str, Any]:
        if self.state_path is None or not self.state_path.exists():
            return {}
        try:
            state = json.loads(self.state_path.read_text(encoding="utf-8"))
            if state["version"] != STATE_VERSION:
                raise ValueError(f"version {state['version']!r}")
            self.clock.offset_seconds = float(state["clock_offset_seconds"])
            systems: dict[str, Any] = dict(state["systems"])
        except (OSError, LookupError, TypeError, ValueError) as error:
            logger.warning("%s is not a readable state (%r); it begins anew.", self.state_path, error)
            return {}
        return systems

    def reset(self, system: str | None = None, *, seed: bool = True) -> None:
        """Empty one system or all, and seed them again unless `seed` is False."""
        for name in [system] if system else list(self.systems):
            self.systems[name].reset()
            if seed:
                self.systems[name].seed()
        self.touch()
