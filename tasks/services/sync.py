"""One look at a repository on GitHub: issues, pull requests, review comments, pending labels.

The poll is the truth and webhooks are a hint: whatever a webhook missed or got wrong, the next poll mends. A
quiet repository costs two or three requests that answer 304, which GitHub does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from django.conf import settings
from django.utils import timezone

from broker_project.lib.config.dynamic import RateLimit, read_rate_limit
from broker_project.lib.errors import BadAnswer, Missing, Rejected
from broker_project.lib.logs import get_logger
from tasks.github.answers import Json
from tasks.github.client import GitHubClient, client_for
from tasks.lifecycle import NEEDS_REVIEW, REVIEW_DONE
from tasks.models import Issue, PullRequest, Repository
from tasks.offers.projector import rebuild_if_needed, write_projection
from tasks.services.events import make_event
from tasks.services.labels import apply_pending_label_changes, store_labels
from tasks.services.refusals import retry_refused
from tasks.services.reviews import digest_comments, store_digest
from tasks.services.snapshot_labels import SnapshotSource
from tasks.services.snapshots import (
    Changes,
    apply_issues,
    apply_pulls,
    close_vanished,
)

log = get_logger(__name__)

OVERLAP = timedelta(minutes=2)
FULL_EVERY = timedelta(days=1)
SMALL = 100  # open issues that one page lists: reading them all costs one request
MAX_LOOKS = 50  # single looks at what a listing lacked, a run
MAX_COMMENT_LOOKS = 50
MAX_REVIEW_DONE = 30  # GitHub takes some 80 writes a minute from everybody together
MAX_LABEL_CHANGES = 50  # assignments whose pending labels one run applies
LOW_SHARE, SPENT_SHARE, LOW_REQUESTS = 0.10, 0.02, 100

Report = Callable[[str], None]


class Budget(Enum):
    """What is left of GitHub's hourly requests: plenty; only for what agents wait for; nothing."""

    PLENTY = "plenty"
    LOW = "low"
    SPENT = "spent"


def budget_for(limit: RateLimit | None, now: datetime) -> Budget:
    if limit is None or limit.reset_at <= now:
        return Budget.PLENTY
    if limit.remaining < limit.limit * SPENT_SHARE:
        return Budget.SPENT
    return Budget.LOW if limit.remaining < max(limit.limit * LOW_SHARE, LOW_REQUESTS) else Budget.PLENTY


def current_budget(now: datetime) -> Budget:
    return budget_for(read_rate_limit(), now)


@dataclass
class Run:
    """One look at one repository, and what came of it so far."""

    repository: Repository
    client: GitHubClient
    now: datetime
    report: Report
    counts: Counter[str] = field(default_factory=Counter)
    dirty: set[int] = field(default_factory=set)  # to be refreshed in the index
    newest_at: datetime | None = None  # GitHub's own time of the last change seen
    oldest_held_at: datetime | None = None
    done: dict[str, Any] = field(default_factory=dict)  # fields of the repository's row, written at the end

    def note(self, changes: Changes) -> None:
        self.dirty |= changes.numbers
        self.counts["opened"] += changes.opened
        self.counts["closed"] += changes.closed
        self.counts["changed"] += changes.changed


def sync_repository(
    repository: Repository, now: datetime, report: Report, *, force_full: bool = False
) -> Counter[str]:
    """Bring rows and index in line with GitHub. Raises the shared errors; what was applied until then stays.

    With little of the rate budget left only what changed is asked for; with nothing left, nothing is.
    """
    budget = current_budget(now)
    run = Run(repository, client_for(repository), now, report)
    if budget is Budget.SPENT:
        run.counts["waiting_for_rate_limit"] = 1
        return run.counts
    is_full = force_full or is_full_due(repository, now)
    if budget is Budget.LOW:
        run.counts["slowed_by_rate_limit"] = 1
        is_full = False
    try:
        run.counts["labels_settled"] = apply_pending_label_changes(repository, MAX_LABEL_CHANGES)
        sync_changed_issues(run)
        if is_full:
            sync_all_issues(run)
        elif budget is Budget.PLENTY and is_small(repository):
            sync_all_issues(run, repository.open_etag if run.counts["unchanged_issues"] else "")
        sync_pulls(run)
        run.dirty |= retry_refused(repository, run.client, all_of_them=is_full)
        if budget is Budget.PLENTY:
            look_at_comments(run)
            mark_reviews_done(run)
    finally:
        # Also after a failure: rows that are committed must not stay unknown to the index. Only then is noted
        # how far we are; a run that is killed before looks at the same window again.
        refresh(run)
        finish(run)
    return run.counts


def is_full_due(repository: Repository, now: datetime) -> bool:
    last_at = repository.last_full_sync_at
    return last_at is None or repository.synced_until_at is None or now - last_at >= FULL_EVERY


def is_small(repository: Repository) -> bool:
    """Where one page lists everything, it is looked at each time: nothing slips by for a day.

    What changed since the last look does not tell all: an issue that was moved here brings its old time along.
    """
    return Issue.objects.filter(repository=repository, is_open=True).count() <= SMALL


def refresh(run: Run) -> None:
    if rebuild_if_needed(run.repository, run.now):
        return
    if run.dirty:
        run.counts["offered"] = write_projection(run.repository, run.dirty, run.now)


def finish(run: Run) -> None:
    """Note how far we are: one write, and none if nothing moved."""
    repository = run.repository
    changed = {name: value for name, value in run.done.items() if getattr(repository, name) != value}
    if not changed:
        return
    # A webhook that came meanwhile has asked for another look by emptying one of these: that stands.
    names = ("issues_etag", "open_etag", "pulls_etag", "last_full_sync_at")
    asked = {name: getattr(repository, name) for name in names}
    row = Repository.objects.filter(pk=repository.pk)
    if not row.filter(**asked).update(**changed):
        row.update(**{name: value for name, value in changed.items() if name not in asked})


# Issues


def sync_changed_issues(run: Run) -> None:
    """What changed since the last look. GitHub's own times decide, so that clocks may differ."""
    repository = run.repository
    if repository.synced_until_at is None:
        return
    since = repository.synced_until_at - OVERLAP
    listing = run.client.list_issues(since=since, etag=repository.issues_etag)
    if listing.is_unchanged:
        run.counts["unchanged_issues"] = 1
        return
    for page in listing.pages:
        window = read_page(run, page.items, page.asked_at)
        if not repository.issues_etag:
            # A run that was killed, or a webhook without Redis, may have left the index behind the rows.
            run.dirty |= window
    run.done["issues_etag"] = "" if run.oldest_held_at or run.counts["unreadable"] else listing.etag[:200]
    run.done["synced_until_at"] = watermark(run)
    if not listing.etag and listing.answered_at is not None and run.oldest_held_at is None:
        # Many changes at once: without this step every later look would read all of them again.
        run.done["synced_until_at"] = max(watermark(run) or since, listing.answered_at - OVERLAP)


def sync_all_issues(run: Run, etag: str = "") -> None:
    """Everything that is open: finds what came or left without a trace, and what a renamed label changed."""
    repository = run.repository
    if not repository.default_branch or is_full_due(repository, run.now):
        run.done["default_branch"] = run.client.default_branch()[:250]
    listing = run.client.list_issues(since=None, etag=etag)
    if listing.is_unchanged:
        return
    known = set(open_numbers(repository))
    seen: set[int] = set()
    for page in listing.pages:
        seen |= read_page(run, page.items, page.asked_at)
        run.report(f"{repository.full_name}: {len(seen)} open issues read")
    missing = sorted(known - seen)
    for number in missing[:MAX_LOOKS]:
        look_at_issue(run, number)
    run.done.setdefault("synced_until_at", watermark(run))
    is_all_known = len(missing) <= MAX_LOOKS
    if is_all_known:
        run.done["last_full_sync_at"] = run.now
    is_all_applied = is_all_known and not run.oldest_held_at and not run.counts["unreadable"]
    run.done["open_etag"] = listing.etag[:200] if is_all_applied else ""
    run.counts["full_listing"] = 1


def open_numbers(repository: Repository) -> Collection[int]:
    return Issue.objects.filter(repository=repository, is_open=True).values_list("number", flat=True)


def read_page(run: Run, items: list[Json], asked_at: datetime) -> set[int]:
    """Apply one page; the numbers of its issues (not of pull requests)."""
    changes, items = apply_readable(run, apply_issues, items, asked_at)
    run.note(changes)
    run.counts["issues"] += sum("pull_request" not in item for item in items)
    for item in items:
        changed_at = datetime.fromisoformat(str(item["updated_at"]))
        run.newest_at = max(run.newest_at or changed_at, changed_at)
        if item["number"] in changes.held:
            run.oldest_held_at = min(run.oldest_held_at or changed_at, changed_at)
    return {int(str(item["number"])) for item in items if "pull_request" not in item}


def apply_readable(
    run: Run,
    apply: Callable[[Repository, list[Json], SnapshotSource], Changes],
    items: list[Json],
    asked_at: datetime,
) -> tuple[Changes, list[Json]]:
    """Apply one page; what of it was applied. One that makes no sense does not keep the others back."""
    source = SnapshotSource(run.now, asked_at=asked_at)
    try:
        return apply(run.repository, items, source), items
    except BadAnswer:
        changes, readable = Changes(), []
    for item in items:
        try:
            changes.add(apply(run.repository, [item], source))
            readable.append(item)
        except BadAnswer as error:
            log.warning("left out of a listing", number=str(item.get("number"))[:20], error=str(error))
            run.counts["unreadable"] += 1
    return changes, readable


def watermark(run: Run) -> datetime | None:
    """Up to where all is known. What was held back for labels of our own is asked for again."""
    newest_at = run.newest_at
    known_at = run.repository.synced_until_at
    if newest_at is not None and known_at is not None:
        newest_at = max(newest_at, known_at)
    if newest_at is not None and run.oldest_held_at is not None:
        return min(newest_at, run.oldest_held_at)
    return newest_at or known_at


def look_at_issue(run: Run, number: int) -> None:
    """A listing lacked it. It may have slipped by while pages were read, so nothing is closed unasked."""
    asked_at = timezone.now()
    try:
        raw = run.client.get_issue(number)
    except Missing:
        run.dirty |= close_vanished(run.repository, number, run.now)
        run.counts["closed"] += 1
        return
    run.note(apply_readable(run, apply_issues, [raw], asked_at)[0])


# Pull requests


def sync_pulls(run: Run) -> None:
    repository = run.repository
    listing = run.client.list_open_pulls(repository.pulls_etag)
    if listing.is_unchanged:
        run.counts["unchanged_pulls"] = 1
        return
    open_pulls = PullRequest.objects.filter(repository=repository, is_open=True)
    known, seen, held = set(open_pulls.values_list("number", flat=True)), set(), False
    for page in listing.pages:
        changes, readable = apply_readable(run, apply_pulls, page.items, page.asked_at)
        run.note(changes)
        held |= bool(changes.held)
        seen |= {int(item["number"]) for item in readable}
    run.counts["pulls"] = len(seen)
    missing = sorted(known - seen)
    for number in missing[:MAX_LOOKS]:
        look_at_pull(run, number)
    is_all_known = not held and len(missing) <= MAX_LOOKS and not run.counts["unreadable"]
    run.done["pulls_etag"] = listing.etag[:200] if is_all_known else ""


def look_at_pull(run: Run, number: int) -> None:
    asked_at = timezone.now()
    try:
        raw = run.client.get_pull(number)
    except Missing:
        run.dirty |= close_vanished(run.repository, number, run.now)
        return
    run.note(apply_readable(run, apply_pulls, [raw], asked_at)[0])


def reviewed_pulls(repository: Repository) -> list[PullRequest]:
    """Open pull requests that close an open issue labelled ``needs-review``."""
    waiting = {
        number
        for number, labels in Issue.objects.filter(
            repository=repository, is_open=True, review_detected_at__isnull=False
        ).values_list("number", "labels")
        if NEEDS_REVIEW in labels
    }
    if not waiting:
        return []
    pulls = PullRequest.objects.filter(repository=repository, is_open=True).order_by("number")
    return [pull for pull in pulls if waiting & set(pull.closes)]


def look_at_comments(run: Run) -> None:
    """New review comments offer a finished review again; they are only asked for where something happened."""
    stale = [
        pull
        for pull in reviewed_pulls(run.repository)
        if pull.comments_seen_at is None or pull.updated_at > pull.comments_seen_at
    ]
    for pull in stale[:MAX_COMMENT_LOOKS]:
        try:
            comments = run.client.pull_comments(pull.number)
        except Missing:
            continue  # gone since the listing; the next one shows it
        store_digest(pull, digest_comments(comments), run.now)
        run.dirty.update(pull.closes)
        run.counts["comments_read"] += 1


def mark_reviews_done(run: Run) -> None:
    """``review-done`` tells people that a pull request had its time; it has no say in the choice."""
    limit_at = run.now - timedelta(minutes=settings.BROKER.review_timeout_minutes)
    due = [
        p for p in reviewed_pulls(run.repository) if p.opened_at < limit_at and REVIEW_DONE not in p.labels
    ]
    for pull in due[:MAX_REVIEW_DONE]:
        try:
            labels = run.client.add_labels(pull.number, [REVIEW_DONE])
        except (Missing, Rejected) as error:
            log.warning("review-done refused", pull=pull.number, error=str(error))
            continue
        store_labels(run.repository, pull.number, labels, run.now)
        event = make_event(run.repository, pull.number, REVIEW_DONE, now=run.now, who="poll")
        event.save(force_insert=True)
        run.counts["review_done"] += 1
