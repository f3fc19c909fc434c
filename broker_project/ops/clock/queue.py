"""The queue of the pollers' clock, and what may come out of it.

django-q2 signs its rows with the secret key, unpickles them and calls whatever function they name. Here the unpickler
accepts only plain values and times, and only the functions of :data:`RUNNABLE` are run, without hooks, chains or
cached results. Anything else is removed from the queue with a line in the log.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from django_q.brokers.orm import ORM
from django_q.conf import Conf
from django_q.core_signing import BadSignature, loads

from broker_project.lib.logs import get_logger
from broker_project.ops.clock.cluster import CANARY, FIRST_ROUND
from broker_project.ops.clock.schedules import ENTRY_POINT

log = get_logger(__name__)

RUNNABLE = frozenset({ENTRY_POINT, CANARY, FIRST_ROUND})
# The names of the same functions in earlier versions. Rows that those queued are dropped; nothing is lost, since work
# is in rows and the schedules go on.
RUNNABLE_BEFORE = frozenset(
    {
        "broker_project.pollers.run_scheduled",
        "broker_project.cluster.run_canary",
        "broker_project.cluster.run_in_turn",
    }
)
# The fields of our tasks. Options that name further functions (hook, chain) or run it elsewhere are not among them.
FIELDS = frozenset(
    {"id", "name", "func", "args", "kwargs", "started", "save", "timeout", "ack_failure", "group", "cluster"}
)
# The classes in a task: the time at which it was queued.
TIMES = frozenset({("datetime", "datetime"), ("datetime", "timedelta"), ("datetime", "timezone")})


class Refused(Exception):
    """A row that must not be run. The text says why and holds no secret."""


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in TIMES:
            return super().find_class(module, name)
        raise Refused(f"its pickle asks for {module}.{name}"[:200])


class PlainSerializer:
    def loads(self, data: bytes) -> Any:
        return PlainUnpickler(io.BytesIO(data)).load()


def check_row(payload: str) -> None:
    """Raises :class:`Refused` unless the row is signed, plain, and names a function of ours."""
    try:
        task = loads(payload, key=Conf.SECRET_KEY, salt=Conf.PREFIX, serializer=PlainSerializer)
    except Refused:
        raise
    except BadSignature:
        raise Refused("its signature is not ours") from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises anything; none of it may end the cluster
        raise Refused(f"it cannot be read ({type(error).__name__})") from None
    if not isinstance(task, Mapping):
        raise Refused("it is no task")
    function = task.get("func")
    if function in RUNNABLE_BEFORE:
        raise Refused(f"an earlier version queued it ({function})")
    if function not in RUNNABLE:
        raise Refused(f"{str(function)[:200]} is not a function of the clock")
    if not isinstance(task.get("args"), tuple) or not isinstance(task.get("kwargs"), Mapping):
        raise Refused("its arguments are no arguments")
    if strange := sorted(str(name) for name in set(task) - FIELDS if task[name]):
        raise Refused(f"it has the options {', '.join(strange)[:200]}")


class ClockQueue(ORM):  # type: ignore[misc]
    """django-q2's queue in the database, which hands out only what is ours."""

    def dequeue(self) -> list[tuple[int, str]]:
        return [row for row in super().dequeue() or [] if self.is_ours(*row)]

    def is_ours(self, row_id: int, payload: str) -> bool:
        try:
            check_row(payload)
        except Refused as refusal:
            self.fail(row_id)
            log.error("queued task refused", row=row_id, reason=str(refusal))
            return False
        return True


def queue_sync_tasks(task: dict[str, Any], **kwargs: Any) -> None:
    """Signal handler: a task marked ``sync``, as a schedule row can be, would run where it is queued, unchecked.

    It is queued instead, and checked when it comes out.
    """
    task.pop("sync", None)
