"""What the clock starts: each poller is single-flight, calls a service and returns its counts."""

from __future__ import annotations

from collections import Counter

from django.utils import timezone

from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redaction import redact
from broker_project.ops.clock.pollers import Counts, PollOptions
from tasks.models import Repository
from tasks.services.recovery import (
    expire_fix_tasks,
    sweep_claims,
    sweep_index,
    sweep_labels,
    sweep_leases,
    sweep_shown,
    sweep_zombies_shown,
)
from tasks.services.repositories import repositories_to_poll
from tasks.services.sync import sync_repository

log = get_logger(__name__)


def poll_issues(options: PollOptions) -> Counts:
    """Sync every enabled repository. One that fails stops no other; if all fail, so does the run."""
    now = timezone.now()
    repositories = repositories_to_poll()
    counts: Counter[str] = Counter(repositories=len(repositories), failed=0)
    last_error: Exception | None = None
    for repository in repositories:
        problem = ""
        try:
            counts.update(sync_repository(repository, now, options.report, force_full=options.force))
        except Exception as error:  # on record in the row; raised below if none went well
            if not isinstance(error, OutsideError):
                log.exception("sync failed", repository=repository.full_name)
            problem = redact(f"{type(error).__name__}: {error}", 1000)
            options.report(f"{repository.full_name}: {problem}")
            counts["failed"] += 1
            last_error = error
        if repository.last_error != problem:
            Repository.objects.filter(pk=repository.pk).update(last_error=problem)
    if last_error is not None and counts["failed"] == len(repositories):
        raise last_error
    return dict(counts)


def sweep_zombies(options: PollOptions) -> Counts:
    """Free what lost its agent; heal what died half-way; take labels off that belong to nobody."""
    now = timezone.now()
    counts = Counter(
        lost=sweep_leases(now), half_assigned=sweep_claims(now), fixes_expired=expire_fix_tasks(now)
    )
    for repository in repositories_to_poll():
        counts["claims_returned"] += sweep_index(repository, now)
        counts["shown_again"] += sweep_shown(repository, now)
        counts["zombies_forgotten"] += sweep_zombies_shown(repository)
        counts["labels_removed"] += sweep_labels(repository, now)
    return dict(counts)
