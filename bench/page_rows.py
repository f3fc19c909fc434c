"""Rows for :mod:`bench.pages`: a year of tasks, items and matches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.apps import apps
from django.db import connection

from bench.rows import Values, insert_rows
from broker_project.models import PollerRun
from broker_project.ops.clock.pollers import poller_table
from feeds import models as feeds
from fixtures import models as fixtures
from fixtures.lifecycle import jst_text
from tasks import models as tasks
from tasks.offers.projector import rebuild

OURS = ("tasks", "feeds", "fixtures", "broker")
SPAN = timedelta(days=365)  # everything happened within this time
LIVE = 20  # assignments under way, at every size

# How an item can have ended: status, reason, retries, the last event and its status.
ENDINGS_OF_ITEMS: dict[str, tuple[int, int | None, int, str, str]] = {
    "posted": (3, 0, 0, "posted", "processed"),
    "given up": (3, 6, 4, "no", "processed"),
    "skipped": (3, 1, 0, "skip", "processed"),
    "deferred": (1, 2, 1, "wait", "deferred"),
    "pending": (2, None, 0, "yes", "pending"),
    "unprocessed": (0, None, 0, "retry", "unprocessed"),
}
ENDINGS_OF_TASKS = ("completed", "completed", "completed", "failed", "lost")


@dataclass(frozen=True)
class Sizes:
    items: int
    assignments: int

    @property
    def agents(self) -> int:
        return min(200, max(2 * LIVE, self.assignments // 100))

    @property
    def issues(self) -> int:
        return max(300, self.assignments // 10)

    @property
    def matches(self) -> int:
        return max(50, self.items // 200)

    @property
    def runs(self) -> int:
        return max(50, self.items // 20)


def fill(sizes: Sizes, now: datetime) -> None:
    """Empty our tables and fill them to these sizes."""
    empty()
    year = Year(sizes, now)
    repository = tasks.Repository.objects.create(
        pk=1, full_name="owner/name", namespace="poppo", default_branch="main", last_full_sync_at=now
    )
    insert_rows(tasks.Agent, year.agents())
    insert_rows(tasks.Issue, year.issues())
    insert_rows(tasks.PullRequest, year.pulls())
    insert_rows(tasks.FixTask, year.fixes())
    insert_rows(tasks.Assignment, year.assignments())
    insert_rows(tasks.Event, year.task_events())
    insert_rows(tasks.WebhookDelivery, year.deliveries())
    rebuild(repository, now)
    insert_rows(feeds.Feed, year.feeds())
    insert_rows(feeds.Item, year.items())
    insert_rows(feeds.ItemDetail, year.details())
    insert_rows(feeds.Post, year.posts())
    insert_rows(feeds.ItemEvent, year.item_events())
    insert_rows(fixtures.FixtureStatus, year.statuses())
    insert_rows(fixtures.Match, year.matches())
    insert_rows(fixtures.Report, year.reports())
    insert_rows(fixtures.Event, year.match_events())
    insert_rows(PollerRun, year.runs())
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")


def empty() -> None:
    models = [model for model in apps.get_models() if model._meta.app_label in OURS]
    with connection.cursor() as cursor, connection.constraint_checks_disabled():
        for model in models:
            table = connection.ops.quote_name(model._meta.db_table)
            if connection.vendor == "postgresql":
                cursor.execute(f"TRUNCATE {table} RESTART IDENTITY CASCADE")
            else:
                cursor.execute(f"DELETE FROM {table}")


def kind_of(i: int) -> str:
    """Most items are posted; of every thousand some are something else."""
    place = i * 37 % 1000
    limits = ((5, "pending"), (40, "unprocessed"), (100, "deferred"), (160, "given up"), (250, "skipped"))
    return next((kind for limit, kind in limits if place < limit), "posted")


class Year:
    """What happened within a year, evenly spread; the last of everything just now."""

    def __init__(self, sizes: Sizes, now: datetime) -> None:
        self.sizes = sizes
        self.now = now

    def at(self, i: int, total: int) -> datetime:
        return self.now - SPAN * (1 - (i + 1) / total)

    def agents(self) -> Iterator[Values]:
        for i in range(self.sizes.agents):
            yield {
                "id": i + 1,
                "name": f"agent-{i:04}",
                "created_at": self.now,
                "changed_at": self.now,
                "last_seen_at": self.now,
            }

    def issues(self) -> Iterator[Values]:
        for i in range(self.sizes.issues):
            number, at = i + 1, self.at(i, self.sizes.issues)
            yield {
                "id": number,
                "repository_id": 1,
                "number": number,
                "title": f"Issue {number}: export the table / 表を書き出す",
                "body": f"## 成果物\n- **作業ブランチ (Feature Branch):** feature/issue-{number}\n",
                "is_open": i % 2 == 0,
                "labels": ["BACKENDCODER", f"P{i % 5}"] + (["parked"] if i % 6 == 0 else []),
                "html_url": f"https://github.com/owner/name/issues/{number}",
                "author": "author",
                "opened_at": at,
                "updated_at": at,
                "priority": i % 5,
            }

    def pulls(self) -> Iterator[Values]:
        for i in range(self.sizes.issues // 2):
            at = self.at(i, self.sizes.issues // 2)
            yield {
                "id": i + 1,
                "repository_id": 1,
                "number": self.sizes.issues + i + 1,
                "title": f"Closes #{i + 1}",
                "is_open": i % 4 == 0,
                "head_ref": f"feature/issue-{i + 1}",
                "head_sha": "0" * 40,
                "base_ref": "main",
                "closes": [i + 1],
                "opened_at": at,
                "updated_at": at,
            }

    def fixes(self) -> Iterator[Values]:
        for i in range(self.sizes.issues // 5):
            yield {
                "repository_id": 1,
                "pull_number": self.sizes.issues + i + 1,
                "comments": ["mend it"],
                "state": "done",
                "created_at": self.now,
                "expires_at": self.now,
            }

    def assignments(self) -> Iterator[Values]:
        total = self.sizes.assignments
        for i in range(total):
            number, ended_at = i % self.sizes.issues + 1, self.at(i, total)
            begun_at = ended_at - timedelta(minutes=5 + i % 90)
            is_live = i >= total - LIVE
            yield {
                "id": i + 1,
                "agent_id": i % self.sizes.agents + 1,
                "repository_id": 1,
                "number": number,
                "task_type": "development",
                "role": "BACKENDCODER",
                "branch": f"feature/issue-{number}",
                "base_branch": "main",
                "state": "live" if is_live else ENDINGS_OF_TASKS[i % 5],
                "created_at": begun_at,
                "started_at": begun_at,
                "last_heartbeat_at": ended_at,
                "ended_at": None if is_live else ended_at,
                "request_id": f"r-{i}",
                "answer": {"title": f"Issue {number}", "prompt": "Do it. " * 40},
            }

    def task_events(self) -> Iterator[Values]:
        total = self.sizes.assignments
        for i in range(total):
            at = self.at(i, total)
            shared = {
                "repository_id": 1,
                "number": i % self.sizes.issues + 1,
                "assignment_id": i + 1,
                "who": f"agent-{i % self.sizes.agents:04}",
            }
            yield {
                **shared,
                "what": "assigned",
                "from_status": "open",
                "to_status": "processing",
                "at": at - timedelta(minutes=5),
            }
            yield {
                **shared,
                "what": ENDINGS_OF_TASKS[i % 5],
                "from_status": "processing",
                "to_status": "needs-review",
                "at": at,
            }

    def deliveries(self) -> Iterator[Values]:
        for i in range(self.sizes.issues):
            yield {
                "delivery_id": f"d-{i:08}",
                "event": "issues",
                "received_at": self.at(i, self.sizes.issues),
            }

    def feeds(self) -> Iterator[Values]:
        for i in range(5):
            url = f"https://feed-{i}.example.org/"
            yield {"id": i + 1, "url": url, "title": f"Feed {i}", "created_at": self.now}

    def items(self) -> Iterator[Values]:
        for i in range(self.sizes.items):
            status, reason, retries, _what, _word = ENDINGS_OF_ITEMS[kind_of(i)]
            at = self.at(i, self.sizes.items)
            yield {
                "id": i + 1,
                "url": f"https://www.example.org/menu_news/s-news/{i:08}.html",
                "title": f"統計の公表について（第{i}号） Announcement {i}",
                "published_at": at - timedelta(minutes=30),
                "status": status,
                "reason": reason,
                "retry_count": retries,
                "created_at": at,
                "last_checked_at": at,
            }

    def details(self) -> Iterator[Values]:
        for i in range(self.sizes.items):
            yield {
                "item_id": i + 1,
                "feed_id": i % 5 + 1,
                "page_excerpt": "An excerpt of the page. " * 5,
                "verdict": "YES",
                "verdict_reason": "It matters.",
                "screened_at": self.at(i, self.sizes.items),
                "summary": "A summary of the page.",
                "input_tokens": 900,
                "output_tokens": 120,
                "cost_usd": 0.0004,
            }

    def posts(self) -> Iterator[Values]:
        for i in range(self.sizes.items):
            if kind_of(i) == "posted":
                at = self.at(i, self.sizes.items)
                yield {
                    "item_id": i + 1,
                    "text": f"Post {i}",
                    "idempotency_key": f"key-{i}",
                    "state": "posted",
                    "status_id": str(i),
                    "url": f"https://social.example.org/{i}",
                    "created_at": at,
                    "posted_at": at,
                }

    def item_events(self) -> Iterator[Values]:
        for i in range(self.sizes.items):
            _status, _reason, _retries, what, word = ENDINGS_OF_ITEMS[kind_of(i)]
            yield {
                "what": what,
                "from_status": "pending" if word == "processed" else "unprocessed",
                "to_status": word,
                "who": "items",
                "at": min(self.now, self.at(i, self.sizes.items) + timedelta(minutes=3 + i % 30)),
                "item_id": i + 1,
            }

    def kickoffs(self) -> Iterator[tuple[int, datetime]]:
        return ((i, self.at(i, self.sizes.matches)) for i in range(self.sizes.matches))

    def statuses(self) -> Iterator[Values]:
        for i, at in self.kickoffs():
            text = jst_text(at)
            yield {
                "fixture_id": str(i),
                "date": text[:10],
                "kickoff_jst": text,
                "status": "complete" if i % 20 else "failed",
                "first_attempt_at": text,
                "last_attempt_at": text,
                "attempts": 0 if i % 20 else 3,
            }

    def matches(self) -> Iterator[Values]:
        for i, at in self.kickoffs():
            yield {
                "fixture_id": str(i),
                "league_id": 39,
                "league_name": "Premier League",
                "season": 2026,
                "home_id": i % 40 + 1,
                "home_name": f"Home {i % 40}",
                "away_id": i % 37 + 50,
                "away_name": f"Away {i % 37}",
                "kickoff_at": at,
                "discovered_at": at,
                "changed_at": at,
            }

    def reports(self) -> Iterator[Values]:
        for i, at in self.kickoffs():
            if i % 20:
                yield {
                    "match_id": str(i),
                    "html": "<p>A guide.</p>" * 200,
                    "object_name": f"reports/{jst_text(at)[:10]}/{i}.html",
                    "generated_at": at,
                    "first_generated_at": at,
                }

    def match_events(self) -> Iterator[Values]:
        for i, at in self.kickoffs():
            if i % 20:
                yield {
                    "fixture_id": str(i),
                    "what": "completed",
                    "from_status": "processing",
                    "to_status": "complete",
                    "who": "dispatch",
                    "at": at,
                }

    def runs(self) -> Iterator[Values]:
        pollers = list(poller_table())
        for i in range(self.sizes.runs):
            at = self.at(i, self.sizes.runs)
            name = pollers[i % len(pollers)]
            yield {"name": name, "by": "schedule", "started_at": at, "finished_at": at, "outcome": "done"}
