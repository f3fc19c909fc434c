"""What the dashboard and the status pages show, gathered with a fixed number of queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
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


@dataclass(frozen=True)
class Need:
    """Something that a person should look at."""

    text: str
    count: int
    url: str
    tone: str = "warn"


def needs(
    now: datetime, pollers: Iterable[PollerState], pipelines: Iterable[Pipeline], budgets: Iterable[Budget]
) -> list[Need]:
    """What waits for a person, the worst first; empty on a good day."""
    aside = {
        pipeline.name: pipeline.asides[0].count for pipeline in pipelines
    }  # the first of each is the worst
    silent = Assignment.objects.filter(state=AssignmentState.LIVE, last_heartbeat_at__lt=lost_before(now))
    feeds = feed_selectors.failing_feeds().count()
    repositories = Repository.objects.filter(is_enabled=True).exclude(last_error="").count()
    late = [state for state in pollers if state.needs_a_person]
    rows = [
        (_("pollers late or failed"), len(late), "/admin/broker/poller/", "bad"),
        (
            _("agents without a heartbeat"),
            silent.count(),
            "/admin/tasks/assignment/?state__exact=live",
            "bad",
        ),
        (_("repositories that cannot be read"), repositories, "/admin/tasks/repository/", "bad"),
        (_("issues parked"), aside["tasks"], "/admin/tasks/issue/?state=parked", "warn"),
        (
            _("issues edited after their approval"),
            task_selectors.issue_counts()["edited"],
            "/admin/tasks/issue/?state=edited",
            "warn",
        ),
        (
            _("items given up"),
            aside["feeds"],
            "/admin/feeds/item/?status__exact=3&reason__exact=6",
            "warn",
        ),
        (
            _("matches failed"),
            aside["fixtures"],
            "/admin/fixtures/fixturestatus/?status__exact=failed",
            "warn",
        ),
        (
            _("posts with an unclear answer"),
            feed_selectors.unclear_post_count(),
            "/admin/feeds/item/?status__exact=2",
            "warn",
        ),
        (_("feeds that fail"), feeds, "/admin/feeds/feed/", "warn"),
        (_("request budgets nearly used up"), sum(b.is_low for b in budgets), "/status/", "warn"),
    ]
    found = [Need(text, count, url, tone) for text, count, url, tone in rows if count]
    return sorted(found, key=lambda need: need.tone != "bad")


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
