"""The states of the pollers, for pages and ``/readyz``: a handful of queries, whatever the number of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max, OuterRef, Subquery, TextChoices
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_q.models import Schedule

from broker_project.lib.config.dynamic import maintenance
from broker_project.models import Poller, PollerRun
from broker_project.ops.clock.pollers import PollerSpec, poller_table

LATE_AFTER_INTERVALS = 3


class PollerCondition(TextChoices):
    """How a poller is doing. The values are also the names that style sheets use."""

    PAUSED = "paused", gettext_lazy("paused")
    MAINTENANCE = "maintenance", gettext_lazy("maintenance")
    RUNNING = "running", gettext_lazy("running")
    LATE = "late", gettext_lazy("late")
    FAILED = "failed", gettext_lazy("failed")
    WAITING = "waiting", gettext_lazy("waiting")


@dataclass(frozen=True)
class PollerState:
    spec: PollerSpec
    row: Poller
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
    def condition(self) -> PollerCondition:
        is_running = self.last_run is not None and self.last_run.outcome == PollerRun.Outcome.RUNNING
        has_failed = self.last_run is not None and self.last_run.outcome == PollerRun.Outcome.FAILED
        if self.row.paused_at is not None:
            return PollerCondition.PAUSED
        if maintenance().is_on:
            return PollerCondition.MAINTENANCE
        if self.is_late:
            return PollerCondition.LATE
        if is_running:
            return PollerCondition.RUNNING
        return PollerCondition.FAILED if has_failed else PollerCondition.WAITING

    @property
    def shown_condition(self) -> str:
        if self.condition is PollerCondition.PAUSED and self.row.paused_by:
            return _("paused by %(who)s") % {"who": self.row.paused_by}
        return str(self.condition.label)

    @property
    def needs_a_person(self) -> bool:
        return self.condition in {PollerCondition.LATE, PollerCondition.FAILED}


def duration_in_words(run: PollerRun) -> str:
    seconds = ((run.finished_at or timezone.now()) - run.started_at).total_seconds()
    return (
        _("%(count).1f s") % {"count": seconds}
        if seconds < 60
        else _("%(count)d min") % {"count": seconds / 60}
    )


def ensure_rows(names: Iterable[str]) -> None:
    """One row per poller, so that each can be paused; made when somebody first looks."""
    Poller.objects.bulk_create([Poller(name=name) for name in names], ignore_conflicts=True)


def late_pollers() -> set[str]:
    """Pollers that ran before, are not paused, and have missed several of their times."""
    now = timezone.now()
    last = dict(PollerRun.objects.values_list("name").annotate(Max("started_at")))
    paused = set(Poller.objects.filter(paused_at__isnull=False).values_list("name", flat=True))
    return {
        name
        for name, spec in poller_table().items()
        if name in last
        and name not in paused
        and now - last[name] > timedelta(seconds=LATE_AFTER_INTERVALS * spec.every_seconds)
    }


def poller_states() -> list[PollerState]:
    """Every poller of the table, in its order."""
    table = poller_table()
    known = set(Poller.objects.values_list("name", flat=True))
    if missing := [name for name in table if name not in known]:
        ensure_rows(missing)
    # One index lookup per poller: the newest of many runs without reading the others.
    newest = PollerRun.objects.filter(name=OuterRef("name")).order_by("-started_at").values("pk")[:1]
    rows = {row.name: row for row in Poller.objects.filter(name__in=table).annotate(run_id=Subquery(newest))}
    runs = PollerRun.objects.in_bulk([row.run_id for row in rows.values() if row.run_id])
    nexts = dict(Schedule.objects.filter(name__in=table).values_list("name", "next_run"))
    late = late_pollers()
    return [
        PollerState(spec, rows[name], runs.get(rows[name].run_id), nexts.get(name), name in late)
        for name, spec in table.items()
    ]


class LazyStates:
    """States by name, read at the first lookup."""

    def __init__(self) -> None:
        self._found: dict[str, PollerState] | None = None

    def __getitem__(self, name: str) -> PollerState:
        if self._found is None:
            self._found = {state.name: state for state in poller_states()}
        return self._found[name]
