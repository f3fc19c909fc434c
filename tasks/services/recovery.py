"""The sweep: leases without a heartbeat, assignments that died half-way, labels that belong to nobody."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import cast

from django.utils import timezone

from broker_project.lib.errors import OutsideError
from broker_project.lib.logs import get_logger
from broker_project.lib.redis import keys as k
from broker_project.lib.redis.client import redis_client
from broker_project.lib.redis.keyspace import BadKeyField
from tasks.github.client import client_for
from tasks.lifecycle import IN_PROGRESS, LIVE_STATES, AssignmentState
from tasks.models import Agent, Assignment, FixTask, Issue, Repository
from tasks.offers.index import keys_of
from tasks.offers.projector import project, rebuild_if_needed
from tasks.reasons import Reason, ReasonCode
from tasks.services.labels import changed_labels, label_changes, send_label_changes, store_labels
from tasks.services.leases import end, lost_before, show_ended

log = get_logger(__name__)

# Longer than an assignment can take: the lock that guards it has gone by then.
CLAIM_LOST_AFTER = timedelta(seconds=k.ISSUE_LOCK_SECONDS)
SHOWN_AFTER = timedelta(minutes=1)  # whoever wrote a row has told Redis by then, or will not


def sweep_leases(now: datetime) -> int:
    """End what had no heartbeat for the length of a lease, by its row. Redis has no say in it."""
    lost = Assignment.objects.select_related("agent", "repository").filter(
        state=AssignmentState.LIVE, last_heartbeat_at__lt=lost_before(now)
    )
    count = 0
    for assignment in lost:
        since = timezone.localtime(assignment.last_heartbeat_at)
        reason = Reason.of(ReasonCode.NO_HEARTBEAT, time=f"{since:%Y-%m-%d %H:%M:%S %Z}")
        count += end(assignment, AssignmentState.LOST, who="sweep", now=now, reason=reason)
    return count


def sweep_claims(now: datetime) -> int:
    """Assignments whose maker died between the row and the answer: undone, and not counted as an attempt."""
    stale = Assignment.objects.select_related("agent", "repository").filter(
        state=AssignmentState.CLAIMING, created_at__lt=now - CLAIM_LOST_AFTER
    )
    count = 0
    for assignment in stale:
        ended = end(
            assignment,
            AssignmentState.ABORTED,
            who="sweep",
            now=now,
            reason=Reason.of(ReasonCode.DIED_ASSIGNING),
            request_id=None,
        )
        count += ended
    return count


def sweep_index(repository: Repository, now: datetime) -> int:
    """Claims that never became a row: back on offer, once their lock has gone."""
    client, keys = redis_client(), keys_of(repository)
    rebuild_if_needed(repository, now)
    old = client.zrangebyscore(keys.key(k.INDEX_CLAIMED), "-inf", (now - CLAIM_LOST_AFTER).timestamp())
    numbers = [int(str(number)) for number in old]
    if numbers:
        project(repository, numbers, now)
    return len(numbers)


def sweep_shown(repository: Repository, now: datetime) -> int:
    """Bring what Redis shows of the work in hand in line with the rows.

    Whoever died between a row and Redis left the one ahead of the other.
    """
    keys = keys_of(repository)
    members = cast("set[str]", redis_client().smembers(keys.key(k.ISSUES_PROCESSING)))
    shown = {int(number) for number in members}
    rows = Assignment.objects.select_related("agent", "repository").filter(repository=repository)
    live = set(rows.filter(state=AssignmentState.LIVE).values_list("number", flat=True))
    count = 0
    for number in shown - live:
        ended = rows.filter(number=number, ended_at__lt=now - SHOWN_AFTER).order_by("-id").first()
        if ended is not None:
            show_ended(ended, now)
            count += 1
    if live - shown:
        project(repository, live - shown, now)
    return count + len(live - shown)


def sweep_zombies_shown(repository: Repository) -> int:
    """Forget zombies whose ``process:info`` has ended (a week): otherwise every lost lease stays for ever."""
    client, keys = redis_client(), keys_of(repository)
    shown = keys.key(k.PROCESSES_ZOMBIES)
    gone, asked = [], []
    pipe = client.pipeline(transaction=False)
    for name in sorted(cast("set[str]", client.smembers(shown))):
        try:
            pipe.exists(keys.key(k.PROCESS_INFO, process=name))
        except BadKeyField:
            gone.append(name)  # no process of ours was ever called so
        else:
            asked.append(name)
    gone += [name for name, is_known in zip(asked, pipe.execute(), strict=True) if not is_known]
    return client.srem(shown, *gone) if gone else 0


def sweep_labels(repository: Repository, now: datetime) -> int:
    """Take ``in-progress`` and an agent's label off issues that no live assignment stands behind.

    Only labels that we put on: the issue carries the id of a known agent, and an assignment of ours ended.
    """
    names = {name.lower(): name for name in Agent.objects.values_list("name", flat=True)}
    live = set(
        Assignment.objects.filter(repository=repository, state__in=LIVE_STATES).values_list(
            "number", flat=True
        )
    )
    owing = set(
        Assignment.objects.filter(repository=repository, labels_due__isnull=False).values_list(
            "number", flat=True
        )
    )
    count = 0
    # JSON containment is not portable; the few issues in progress are read and looked at here.
    rows = Issue.objects.filter(repository=repository, is_open=True, labels__icontains=IN_PROGRESS)
    for issue in rows.only("number", "labels").iterator():
        agents = [names[label.lower()] for label in issue.labels if label.lower() in names]
        if IN_PROGRESS not in issue.labels or not agents or issue.number in live or issue.number in owing:
            continue
        if not Assignment.objects.filter(
            repository=repository, number=issue.number, agent__name__in=agents
        ).exists():
            continue
        changes = label_changes(remove=[IN_PROGRESS, *agents])
        try:
            send_label_changes(client_for(repository), issue.number, changes)
        except OutsideError as error:
            log.warning("stray labels stay until the next sweep", issue=issue.number, error=str(error))
            continue
        store_labels(repository, issue.number, changed_labels(issue.labels, changes), now)
        project(repository, [issue.number], now)
        count += 1
    return count


def expire_fix_tasks(now: datetime) -> int:
    due = FixTask.objects.select_related("repository").filter(state=FixTask.State.OPEN, expires_at__lte=now)
    count = 0
    for fix in due:
        if FixTask.objects.filter(pk=fix.pk, state=FixTask.State.OPEN).update(state=FixTask.State.EXPIRED):
            project(fix.repository, [fix.pull_number], now)
            count += 1
    return count
