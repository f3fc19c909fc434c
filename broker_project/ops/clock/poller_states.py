"""How the pollers are doing, for pages: a handful of queries, whatever the number of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import OuterRef, Subquery
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from django_q.models import Schedule

from broker_project.lib.config.dynamic import maintenance
from broker_project.models import Poller, PollerRun
from broker_project.ops.clock.pollers import PollerSpec, poller_table
from broker_project.ops.health import late_pollers

# The purposes of the table of pollers, for the translation.
PURPOSES = (
    gettext_noop("sync open issues and review times"),
    gettext_noop("free what lost its agent"),
    gettext_noop("fetch the feeds that are due"),
    gettext_noop("screen, summarise and post"),
    gettext_noop("discover matches, write guides"),
    gettext_noop("write the guides that are due"),
    gettext_noop("CPU, memory and hourly statistics"),
    gettext_noop("remove what is out of date"),
)


@dataclass(frozen=True)
class PollerState:
    spec: PollerSpec
    paused_at: datetime | None
    paused_by: str
    last_run: PollerRun | None
    next_run_at: datetime | None
    is_late: bool

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def purpose(self) -> str:
        return _(self.spec.purpose)

    @property
    def schedule(self) -> str:
        if self.spec.cron:
            return f"{self.spec.cron} (JST)"
        if self.spec.every_seconds % 60:
            return _("every %(count)d s") % {"count": self.spec.every_seconds}
        return _("every %(count)d min") % {"count": self.spec.every_seconds // 60}

    @property
    def duration(self) -> str:
        return duration_in_words(self.last_run) if self.last_run else ""

    @property
    def word(self) -> str:
        """A plain word for style sheets and programs."""
        if self.paused_at is not None:
            return "paused"
        if maintenance().is_on:
            return "maintenance"
        if self.last_run is not None and self.last_run.outcome == PollerRun.Outcome.RUNNING:
            return "late" if self.is_late else "running"
        if self.is_late:
            return "late"
        if self.last_run is not None and self.last_run.outcome == PollerRun.Outcome.FAILED:
            return "failed"
        return "waiting"

    @property
    def state_word(self) -> str:
        words = {
            "paused": _("paused by %(who)s") % {"who": self.paused_by} if self.paused_by else _("paused"),
            "maintenance": _("maintenance"),
            "running": _("running"),
            "late": _("late"),
            "failed": _("failed"),
            "waiting": _("waiting"),
        }
        return words[self.word]

    @property
    def needs_a_person(self) -> bool:
        return self.word in {"late", "failed"}


def duration_in_words(run: PollerRun) -> str:
    seconds = ((run.finished_at or timezone.now()) - run.started_at).total_seconds()
    return (
        _("%(count).1f s") % {"count": seconds}
        if seconds < 60
        else _("%(count)d min") % {"count": seconds / 60}
    )


def ensure_rows(names: Iterable[str]) -> None:
    """One row a poller, so that each can be paused; made when somebody first looks."""
    Poller.objects.bulk_create([Poller(name=name) for name in names], ignore_conflicts=True)


def poller_states() -> list[PollerState]:
    """Every poller of the table, in its order."""
    table = poller_table()
    known = set(Poller.objects.values_list("name", flat=True))
    if missing := [name for name in table if name not in known]:
        ensure_rows(missing)
    # One short walk of the index for each poller: the newest of many runs without reading the others.
    newest = PollerRun.objects.filter(name=OuterRef("name")).order_by("-started_at").values("pk")[:1]
    rows = {row.name: row for row in Poller.objects.filter(name__in=table).annotate(run_id=Subquery(newest))}
    runs = PollerRun.objects.in_bulk([row.run_id for row in rows.values() if row.run_id])
    nexts = dict(Schedule.objects.filter(name__in=table).values_list("name", "next_run"))
    late = late_pollers()
    found = []
    for name, spec in table.items():
        row = rows.get(name)
        found.append(
            PollerState(
                spec,
                row.paused_at if row else None,
                row.paused_by if row else "",
                runs.get(row.run_id) if row and row.run_id else None,
                nexts.get(name),
                name in late,
            )
        )
    return found


class LazyStates:
    """By name, read when first asked."""

    def __init__(self) -> None:
        self._found: dict[str, PollerState] | None = None

    def __getitem__(self, name: str) -> PollerState:
        if self._found is None:
            self._found = {state.name: state for state in poller_states()}
        return self._found[name]
