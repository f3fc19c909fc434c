"""What the dashboard and the status pages show, gathered with a fixed number of queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from redis.exceptions import RedisError

from broker_project.lib.config.dynamic import RateLimit, read_rate_limit
from broker_project.ops.clock.poller_states import PollerState
from feeds import selectors as feed_selectors
from feeds.lifecycle import Status
from fixtures import selectors as match_selectors
from fixtures.clients.football import Quota, known_quota
from fixtures.lifecycle import Status as MatchStatus
from tasks import selectors as task_selectors
from tasks.lifecycle import AssignmentState
from tasks.models import Assignment, Repository
from tasks.services.leases import lost_before

LOW_BUDGET = 0.15  # of GitHub's or API-Football's limit


@dataclass(frozen=True)
class Stage:
    """One place where work can be, with how much is there and the list that shows it."""

    label: Any
    count: int
    url: str
    tone: str = ""  # good, busy, warn, bad


@dataclass(frozen=True)
class Pipeline:
    name: str
    title: str
    page: str
    stages: list[Stage]
    asides: list[Stage] = field(default_factory=list)


def tasks_pipeline() -> Pipeline:
    issues = task_selectors.issue_counts()
    ended = task_selectors.assignment_counts()
    url = "/admin/tasks/issue/?state="
    return Pipeline(
        "tasks",
        _("Tasks"),
        "/status/tasks/",
        [
            Stage(_("open issues"), issues["open"], f"{url}open"),
            Stage(_("on offer"), issues["on_offer"], f"{url}on_offer"),
            Stage(_("at work"), issues["at_work"], "/admin/tasks/assignment/?state__exact=live", "busy"),
            Stage(_("in review"), issues["in_review"], f"{url}in_review"),
            Stage(
                _("done"),
                ended.get(AssignmentState.COMPLETED, 0),
                "/admin/tasks/assignment/?state__exact=completed",
                "good",
            ),
        ],
        [
            Stage(_("parked"), issues["parked"], f"{url}parked", "warn"),
            Stage(
                _("failed"),
                ended.get(AssignmentState.FAILED, 0),
                "/admin/tasks/assignment/?state__exact=failed",
            ),
            Stage(
                _("lost"), ended.get(AssignmentState.LOST, 0), "/admin/tasks/assignment/?state__exact=lost"
            ),
        ],
    )


def feeds_pipeline() -> Pipeline:
    counts = feed_selectors.counts_by_status()
    url = "/admin/feeds/item/?status__exact="
    labels = {status.name.lower(): status.label for status in Status}
    return Pipeline(
        "feeds",
        _("Feeds"),
        "/status/feeds/",
        [
            Stage(labels["unprocessed"], counts["unprocessed"], f"{url}0"),
            Stage(labels["deferred"], counts["deferred"], f"{url}1"),
            Stage(labels["pending"], counts["pending"], f"{url}2", "busy"),
            Stage(labels["processed"], counts["processed"], f"{url}3", "good"),
        ],
        [Stage(_("given up"), feed_selectors.given_up_count(), f"{url}3&reason__exact=6", "warn")],
    )


def fixtures_pipeline() -> Pipeline:
    counts = match_selectors.counts_by_status()
    url = "/admin/fixtures/fixturestatus/?status__exact="
    labels = {choice.value: choice.label for choice in MatchStatus}
    tones = {"processing": "busy", "complete": "good"}
    flow = [
        Stage(labels[word], counts[word], f"{url}{word}", tones.get(word, ""))
        for word in ("pending", "processing", "complete")
    ]
    aside = Stage(labels["failed"], counts["failed"], f"{url}failed", "warn")
    return Pipeline("fixtures", _("Matches"), "/status/fixtures/", flow, [aside])


class NeedKind(StrEnum):
    POLLER_FAILING = "poller_failing"
    AGENT_SILENT = "agent_silent"
    REPOSITORY_UNREADABLE = "repository_unreadable"
    ISSUE_PARKED = "issue_parked"
    ISSUE_EDITED = "issue_edited"
    ITEM_GIVEN_UP = "item_given_up"
    MATCH_FAILED = "match_failed"
    POST_UNCLEAR = "post_unclear"
    FEED_FAILING = "feed_failing"
    QUOTA_LOW = "quota_low"


class NeedPage(NamedTuple):
    """How a kind of need is shown: its words, the list that shows the rows, and its colour."""

    words: str
    url: str
    tone: str = "warn"


# In the order of the list: the bad ones first.
NEEDS: dict[NeedKind, NeedPage] = {
    NeedKind.POLLER_FAILING: NeedPage(gettext_noop("pollers late or failed"), "/admin/broker/poller/", "bad"),
    NeedKind.AGENT_SILENT: NeedPage(
        gettext_noop("agents without a heartbeat"), "/admin/tasks/assignment/?state__exact=live", "bad"
    ),
    NeedKind.REPOSITORY_UNREADABLE: NeedPage(
        gettext_noop("repositories that cannot be read"), "/admin/tasks/repository/", "bad"
    ),
    NeedKind.ISSUE_PARKED: NeedPage(gettext_noop("issues parked"), "/admin/tasks/issue/?state=parked"),
    NeedKind.ISSUE_EDITED: NeedPage(
        gettext_noop("issues edited after their approval"), "/admin/tasks/issue/?state=edited"
    ),
    NeedKind.ITEM_GIVEN_UP: NeedPage(
        gettext_noop("items given up"), "/admin/feeds/item/?status__exact=3&reason__exact=6"
    ),
    NeedKind.MATCH_FAILED: NeedPage(
        gettext_noop("matches failed"), "/admin/fixtures/fixturestatus/?status__exact=failed"
    ),
    NeedKind.POST_UNCLEAR: NeedPage(
        gettext_noop("posts with an unclear answer"), "/admin/feeds/item/?status__exact=2"
    ),
    NeedKind.FEED_FAILING: NeedPage(gettext_noop("feeds that fail"), "/admin/feeds/feed/"),
    NeedKind.QUOTA_LOW: NeedPage(gettext_noop("request budgets nearly used up"), "/status/"),
}


@dataclass(frozen=True)
class Need:
    """Something that a person should look at."""

    kind: NeedKind
    count: int

    @property
    def text(self) -> str:
        return _(NEEDS[self.kind].words)

    @property
    def url(self) -> str:
        return NEEDS[self.kind].url

    @property
    def tone(self) -> str:
        return NEEDS[self.kind].tone


def needs(
    now: datetime, pollers: Iterable[PollerState], pipelines: Iterable[Pipeline], budgets: Iterable[Budget]
) -> list[Need]:
    """What waits for a person, the worst first; empty on a good day."""
    worst = {pipeline.name: pipeline.asides[0].count for pipeline in pipelines}
    silent = Assignment.objects.filter(state=AssignmentState.LIVE, last_heartbeat_at__lt=lost_before(now))
    counts = {
        NeedKind.POLLER_FAILING: sum(state.needs_a_person for state in pollers),
        NeedKind.AGENT_SILENT: silent.count(),
        NeedKind.REPOSITORY_UNREADABLE: (
            Repository.objects.filter(is_enabled=True).exclude(last_error="").count()
        ),
        NeedKind.ISSUE_PARKED: worst["tasks"],
        NeedKind.ISSUE_EDITED: task_selectors.issue_counts()["edited"],
        NeedKind.ITEM_GIVEN_UP: worst["feeds"],
        NeedKind.MATCH_FAILED: worst["fixtures"],
        NeedKind.POST_UNCLEAR: feed_selectors.unclear_post_count(),
        NeedKind.FEED_FAILING: feed_selectors.failing_feeds().count(),
        NeedKind.QUOTA_LOW: sum(budget.is_low for budget in budgets),
    }
    return [Need(kind, counts[kind]) for kind in NEEDS if counts[kind]]


@dataclass(frozen=True)
class Budget:
    """How many requests an outside system still allows."""

    system: str
    remaining: int
    limit: int
    until: datetime | None

    @property
    def is_low(self) -> bool:
        return self.limit > 0 and self.remaining < self.limit * LOW_BUDGET

    @property
    def percent(self) -> int:
        return round(100 * self.remaining / self.limit) if self.limit else 0


def budgets() -> list[Budget]:
    found = []
    try:
        limit: RateLimit | None = read_rate_limit()
        quota: Quota | None = known_quota()
    except (RedisError, OSError):
        return []
    if limit is not None:
        found.append(Budget("GitHub", limit.remaining, limit.limit, limit.reset_at))
    if quota is not None and quota.daily_limit:
        found.append(Budget("API-Football", quota.daily_remaining or 0, quota.daily_limit, None))
    return found


def agents_at_work() -> list[Assignment]:
    return task_selectors.live_assignments()
