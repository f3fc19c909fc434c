"""What is on offer, to whom, in which order, and what comes of an attempt. Values in, values out.

The same functions decide for the queues in Redis, for ``GET /explain`` and for the admin's "why not?". The clock is an
argument.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tasks.reasons import Reason, ReasonCode

IN_PROGRESS = "in-progress"
NEEDS_REVIEW = "needs-review"
REVIEW_DONE = "review-done"
PARKED = "parked"
NEVER_OFFERED = ("story", "epic")
STEERING = frozenset({IN_PROGRESS, NEEDS_REVIEW, REVIEW_DONE, PARKED, *NEVER_OFFERED})
RESERVED = STEERING | {"fix"}
PRIORITY = re.compile(r"P([0-9]+)")
WORST_PRIORITY = 2**31 - 1  # what the column holds
QUEUES = ("high", "normal", "low")
QUEUE_LIMITS = (1, 2)  # the worst priority of each queue but the last
AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")


class TaskType(StrEnum):
    DEVELOPMENT = "development"
    REVIEW = "review"
    FIX = "fix"


class AssignmentState(StrEnum):
    CLAIMING = "claiming"  # the row is there, GitHub is being told
    LIVE = "live"  # an agent has it
    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"  # given back by the agent or an admin
    LOST = "lost"  # no heartbeat
    ABORTED = "aborted"  # never reached the agent


LIVE_STATES = (AssignmentState.CLAIMING.value, AssignmentState.LIVE.value)
ENDINGS_THAT_COUNT = (AssignmentState.FAILED, AssignmentState.LOST)


class IssueStatus(StrEnum):
    """The words of ``issue:status`` (seed 002)."""

    OPEN = "open"
    PROCESSING = "processing"
    NEEDS_REVIEW = "needs-review"
    COMPLETED = "completed"
    ERROR = "error"
    PARKED = "parked"


def status_word(labels: Collection[str], *, is_open: bool) -> IssueStatus:
    """How an issue stands that no agent has."""
    if not is_open:
        return IssueStatus.COMPLETED
    if PARKED in labels:
        return IssueStatus.PARKED
    return IssueStatus.NEEDS_REVIEW if NEEDS_REVIEW in labels else IssueStatus.OPEN


def status_after(
    by_labels: IssueStatus, ended: AssignmentState, task_type: TaskType, *, is_outdated: bool = False
) -> tuple[IssueStatus, bool]:
    """How an issue stands after its last attempt, and whether the attempt is why.

    An attempt has its say as long as the labels are those that it left. ``is_outdated``: a review was asked for
    after it had ended.
    """
    if by_labels is IssueStatus.PARKED:
        return by_labels, ended in ENDINGS_THAT_COUNT or ended is AssignmentState.RELEASED
    is_done = ended is AssignmentState.COMPLETED
    if task_type is TaskType.REVIEW or (is_done and task_type is TaskType.DEVELOPMENT):
        left = IssueStatus.NEEDS_REVIEW
    else:
        left = IssueStatus.OPEN
    if by_labels is not left or is_outdated:
        return by_labels, False
    if ended is AssignmentState.FAILED:
        return IssueStatus.ERROR, True
    return (IssueStatus.COMPLETED if is_done and task_type is not TaskType.DEVELOPMENT else by_labels), True


def priority_of(labels: Iterable[str]) -> int | None:
    """``P`` and digits, case-sensitive; the smallest number wins."""
    found = [int(match.group(1)[:50]) for label in labels if (match := PRIORITY.fullmatch(label))]
    return min(*found, WORST_PRIORITY) if found else None


def our_word(label: str) -> str:
    """One of the labels that steer the work, as it is written here; any other as it is.

    To GitHub two names that differ in case are one label, written as whoever made it wrote it.
    """
    word = label.lower()
    return word if word in STEERING else label


def labels_at_work(labels: Iterable[str], agent: str) -> list[str]:
    """An issue's labels while that agent has it: GitHub has our two, the row may not have heard of it yet."""
    known = list(labels)
    return known + [name for name in (IN_PROGRESS, agent) if name not in known]


def process_id(number: int, agent: str) -> str:
    """What seed 002 calls an agent's work on an issue."""
    return f"issue-{number}-{agent}"


def agent_id_problem(agent_id: str, roles: Collection[str]) -> str:
    """Why this cannot be an agent's id; empty if it can. An id is used as a GitHub label."""
    if not AGENT_ID.fullmatch(agent_id):
        return "an agent id is 1 to 50 letters, digits, '.', '_' or '-', beginning with a letter or digit"
    taken = RESERVED | {role.lower() for role in roles}
    if agent_id.lower() in taken or PRIORITY.fullmatch(agent_id):
        return f"{agent_id!r} has another meaning as a label"
    return ""


@dataclass(frozen=True)
class PullFacts:
    number: int
    is_open: bool
    fingerprint: str
    branch_problem: Reason | None = None  # of its branches, which whoever opened it has named


@dataclass(frozen=True)
class IssueFacts:
    """All that the choice looks at. For a fix task: its pull request's number and labels."""

    number: int
    title: str
    labels: tuple[str, ...]
    updated_at: datetime
    is_fix: bool = False
    is_taken: bool = False  # a live assignment exists, whatever the labels say
    withheld: Reason | None = None  # what GitHub refused, or why one of the optional gates keeps it back
    has_deliverables: bool = True
    branch_problem: Reason | None = None  # a name that git or safety forbids
    pull: PullFacts | None = None  # the linked pull request
    review_detected_at: datetime | None = None
    reviewed_fingerprint: str = ""

    @property
    def priority(self) -> int | None:
        return priority_of(self.labels)

    @property
    def task_type(self) -> TaskType:
        if self.is_fix:
            return TaskType.FIX
        return TaskType.REVIEW if NEEDS_REVIEW in self.labels else TaskType.DEVELOPMENT


@dataclass(frozen=True)
class Offer:
    """Can be handed out, from ``due_at`` on. ``priority`` None: counts in the best bucket, whichever that is."""

    number: int
    task_type: TaskType
    roles: tuple[str, ...]
    priority: int | None
    updated_at: datetime
    due_at: datetime | None = None

    @property
    def order(self) -> tuple[bool, datetime, int]:
        """Inside a bucket: fix tasks first, then the oldest change, then the smallest number."""
        return (self.task_type is not TaskType.FIX, self.updated_at, self.number)


@dataclass(frozen=True)
class NotOffered:
    number: int
    reason: Reason


def classify(facts: IssueFacts, known_roles: Collection[str], review_delay: timedelta) -> Offer | NotOffered:
    """Whether an issue can be handed out to anybody at all, and if not, why: the first rule that applies."""
    roles = tuple(sorted(set(facts.labels) & set(known_roles)))
    reason = (
        _refused_by_labels(facts, roles)
        or _refused_by_content(facts)
        or (_refused_as_review(facts) if facts.task_type is TaskType.REVIEW else None)
        or _refused_by_pull(facts)
    )
    if reason is not None:
        return NotOffered(facts.number, reason)
    due_at = None
    if facts.task_type is TaskType.REVIEW and facts.review_detected_at is not None:
        due_at = facts.review_detected_at + review_delay
    return Offer(facts.number, facts.task_type, roles, facts.priority, facts.updated_at, due_at)


def _refused_by_labels(facts: IssueFacts, roles: Collection[str]) -> Reason | None:
    if facts.is_taken:
        return Reason.of(ReasonCode.TAKEN)
    if IN_PROGRESS in facts.labels:
        return Reason.of(ReasonCode.LABELLED, label=IN_PROGRESS)
    if PARKED in facts.labels:
        return Reason.of(ReasonCode.PARKED)
    for label in NEVER_OFFERED:
        if label in facts.labels:
            return Reason.of(ReasonCode.LABELLED, label=label)
    return None if roles else Reason.of(ReasonCode.NO_ROLE)


def _refused_by_content(facts: IssueFacts) -> Reason | None:
    if facts.task_type is TaskType.DEVELOPMENT:
        if facts.priority is None:
            return Reason.of(ReasonCode.NO_PRIORITY)
        if facts.branch_problem and not facts.withheld:
            return facts.branch_problem
    if facts.withheld:
        return facts.withheld
    if facts.task_type is not TaskType.FIX and not facts.has_deliverables:
        return Reason.of(ReasonCode.NO_DELIVERABLES)
    return None


def _refused_as_review(facts: IssueFacts) -> Reason | None:
    if facts.pull is None or not facts.pull.is_open:
        return Reason.of(ReasonCode.NO_PULL_REQUEST)
    if facts.reviewed_fingerprint and facts.reviewed_fingerprint == facts.pull.fingerprint:
        return Reason.of(ReasonCode.REVIEWED)
    if facts.review_detected_at is None:
        return Reason.of(ReasonCode.REVIEW_NOT_SEEN)
    return None


def _refused_by_pull(facts: IssueFacts) -> Reason | None:
    """A review or a fix works on the branch of its pull request."""
    if facts.task_type is TaskType.DEVELOPMENT or facts.pull is None:
        return None
    return facts.pull.branch_problem


class Gate(StrEnum):
    OPEN = "open"
    ASSIGNABLE = "assignable"


def best_bucket(
    gate: Gate,
    offers: Iterable[Offer],
    open_priorities: Iterable[int],
    agent_roles: Collection[str],
    now: datetime,
) -> int | None:
    """The one priority that counts: of all open issues, or of what this agent could be given now.

    None: nothing has a priority, so only tasks without one can be handed out.
    """
    if gate is Gate.OPEN:
        return min(open_priorities, default=None)
    own = (o for o in offers if not agent_roles or set(agent_roles) & set(o.roles))
    return min((o.priority for o in own if o.priority is not None and is_due(o, now)), default=None)


def is_due(offer: Offer, now: datetime) -> bool:
    return offer.due_at is None or now >= offer.due_at


def why_not(offer: Offer, agent_roles: Collection[str], best: int | None, now: datetime) -> Reason | None:
    """Why an offer does not go to an agent with these roles (none: any role); None if it does."""
    if agent_roles and not set(agent_roles) & set(offer.roles):
        return Reason.of(ReasonCode.OTHER_ROLE, roles=offer.roles)
    if not is_due(offer, now):
        assert offer.due_at is not None
        return Reason.of(ReasonCode.REVIEW_NOT_DUE, time=f"{offer.due_at:%Y-%m-%dT%H:%M:%SZ}")
    if offer.priority is not None and offer.priority != best:
        return Reason.of(ReasonCode.BEHIND_PRIORITY, priority=str(best))
    return None


def choose(
    offers: Iterable[Offer], agent_roles: Collection[str], best: int | None, now: datetime
) -> list[Offer]:
    """What an agent would be given, in order. The scripts in Redis come to the same (a test compares them)."""
    fitting = [offer for offer in offers if why_not(offer, agent_roles, best, now) is None]
    return sorted(fitting, key=lambda offer: offer.order)


def is_to_be_parked(lost_attempts: int, max_attempts: int) -> bool:
    return lost_attempts >= max_attempts


CLOSING = re.compile(
    r"(?i)\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b:?\s+"
    r"(?:(?P<repo>[A-Za-z0-9-]+/[A-Za-z0-9._-]+)?#(?P<number>\d{1,9})"
    r"|https?://[^\s/]+/(?P<url_repo>[A-Za-z0-9-]+/[A-Za-z0-9._-]+)/issues/(?P<url_number>\d{1,9}))\b"
)


def closed_issues(body: str, repository: str) -> list[int]:
    """Numbers of the issues in this repository that a pull request's text says it closes."""
    numbers = []
    for match in CLOSING.finditer(body):
        where = match.group("repo") or match.group("url_repo") or repository
        if where.lower() == repository.lower():
            numbers.append(int(match.group("number") or match.group("url_number")))
    return list(dict.fromkeys(numbers))


def role_for(offer_roles: Sequence[str], agent_roles: Collection[str]) -> str:
    """The role in which an agent takes a task that may have several."""
    for role in offer_roles:
        if not agent_roles or role in agent_roles:
            return role
    return offer_roles[0]
