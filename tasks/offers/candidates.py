"""From rows to the plain values that :mod:`tasks.lifecycle` decides on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q

from tasks.github.branches import BranchPlan, BranchRefused, has_deliverables, plan_branch, ref_problem
from tasks.lifecycle import (
    LIVE_STATES,
    NEEDS_REVIEW,
    AssignmentState,
    IssueFacts,
    NotOffered,
    Offer,
    PullFacts,
    TaskType,
    labels_at_work,
    priority_of,
)
from tasks.models import Assignment, FixTask, Issue, PullRequest, Repository
from tasks.offers.policy import decide, edited_issues, withheld_reason
from tasks.reasons import Reason


@dataclass(frozen=True)
class Candidate:
    """One thing that may be handed out, with the rows behind it. ``issue`` is None for a pull request of no issue."""

    facts: IssueFacts
    issue: Issue | None
    pull: PullRequest | None
    fix: FixTask | None
    plan: BranchPlan | BranchRefused | None = None  # of an issue's own branch

    @property
    def verdict(self) -> Offer | NotOffered:
        return decide(self.facts)

    @property
    def counts_as_open(self) -> bool:
        """The strict gate looks at open issues, pull requests not."""
        return self.fix is None


def branch_of(issue: Issue, default_branch: str) -> BranchPlan | BranchRefused:
    return plan_branch(issue.body, issue.number, default_branch or "main")


def pull_facts(pull: PullRequest) -> PullFacts:
    """A branch's name goes to agents and their shells, whoever gave it: the rules for issues hold here, too."""
    problem = ref_problem(pull.head_ref, pull.base_ref)
    return PullFacts(pull.number, pull.is_open, pull.fingerprint, problem)


def candidates(repository: Repository, numbers: Collection[int] | None = None) -> Iterator[Candidate]:
    """Every open issue and every pending fix task, or those of the given numbers."""
    issues = Issue.objects.filter(repository=repository, is_open=True).defer("raw")
    taken = Assignment.objects.filter(repository=repository, state__in=LIVE_STATES)
    fixes = FixTask.pending(repository)
    if numbers is not None:
        issues, taken = issues.filter(number__in=numbers), taken.filter(number__in=numbers)
        fixes = fixes.filter(pull_number__in=numbers)
    agents = {
        number: agent if state == AssignmentState.LIVE else ""
        for number, state, agent in taken.values_list("number", "state", "agent__name")
    }
    return make_candidates(repository, list(issues), {fix.pull_number: fix for fix in fixes}, agents)


def make_candidates(
    repository: Repository,
    issues: Collection[Issue],
    fixes: Mapping[int, FixTask],
    agents: Mapping[int, str],
) -> Iterator[Candidate]:
    """Of open issues and pending fix tasks. ``agents`` has who works on what, empty while that is being arranged."""
    pulls = open_pulls(repository, wants_pulls(issues), fixes.keys())
    edited = edited_issues(issues)
    by_issue = {number: pull for pull in pulls.values() for number in pull.closes}
    for issue in issues:
        if issue.number not in fixes:
            withheld = withheld_reason(issue, edited)
            yield issue_candidate(
                repository, issue, by_issue.get(issue.number), agents.get(issue.number), withheld
            )
    if fixes:
        yield from fix_candidates(repository, fixes, pulls, agents)


def find_candidate(repository: Repository, number: int) -> Candidate | None:
    return next(candidates(repository, [number]), None)


def find_claimed(repository: Repository, number: int, task_type: TaskType) -> Candidate | None:
    """What a claim has got, with as few queries as its kind needs.

    Whether somebody else has it is not asked: the constraint on assignments answers that.
    """
    if task_type is TaskType.FIX:
        return find_candidate(repository, number)
    rows = Issue.objects.filter(repository=repository, number=number, is_open=True).defer("raw")
    return next(make_candidates(repository, list(rows), {}, {}), None)


def wants_pulls(issues: Iterable[Issue]) -> bool:
    return any(NEEDS_REVIEW in issue.labels for issue in issues)


def open_pulls(repository: Repository, all_open: bool, numbers: Collection[int]) -> dict[int, PullRequest]:
    """Open pull requests by number, oldest first, so that the newest link to an issue wins."""
    if not all_open and not numbers:
        return {}
    wanted = Q(is_open=True) if all_open else Q(is_open=True, number__in=numbers)
    return {
        pull.number: pull
        for pull in PullRequest.objects.filter(wanted, repository=repository).order_by("number")
    }


def issue_candidate(
    repository: Repository,
    issue: Issue,
    pull: PullRequest | None,
    taken_by: str | None,
    withheld: Reason | None,
) -> Candidate:
    """``taken_by``: the agent that has it, empty while that is being arranged, None if nobody has it."""
    plan = branch_of(issue, repository.default_branch)
    facts = IssueFacts(
        number=issue.number,
        title=issue.title,
        labels=tuple(labels_at_work(issue.labels, taken_by) if taken_by else issue.labels),
        updated_at=issue.updated_at,
        is_taken=taken_by is not None,
        withheld=issue.refusal or withheld,
        has_deliverables=has_deliverables(issue.body),
        branch_problem=plan.reason if isinstance(plan, BranchRefused) else None,
        pull=pull_facts(pull) if pull else None,
        review_detected_at=issue.review_detected_at,
        reviewed_fingerprint=issue.reviewed_fingerprint,
    )
    return Candidate(facts, issue, pull, None, plan)


def fix_candidates(
    repository: Repository,
    fixes: Mapping[int, FixTask],
    pulls: Mapping[int, PullRequest],
    at_work: Collection[int],
) -> Iterator[Candidate]:
    """Fix tasks take role and priority labels from their pull request, else from the issue that it closes."""
    closed_numbers = {number for n in fixes if n in pulls for number in pulls[n].closes}
    closed = {
        issue.number: issue
        for issue in Issue.objects.filter(repository=repository, number__in=closed_numbers).defer(
            "raw", "body"
        )
    }
    for number, fix in fixes.items():
        pull = pulls.get(number)
        if pull is None:
            continue  # closed meanwhile: nothing to push to
        issue = next((closed[n] for n in pull.closes if n in closed), None)
        facts = IssueFacts(
            number=number,
            title=pull.title,
            labels=fix_labels(pull, issue),
            updated_at=pull.updated_at,
            is_fix=True,
            is_taken=number in at_work,
            pull=pull_facts(pull),
        )
        yield Candidate(facts, issue, pull, fix)


def fix_labels(pull: PullRequest, issue: Issue | None) -> tuple[str, ...]:
    labels = list(pull.labels)
    if issue is not None:
        roles = settings.BROKER.role_names
        if not set(labels) & roles:
            labels += [label for label in issue.labels if label in roles]
        if priority_of(labels) is None:
            labels += [label for label in issue.labels if priority_of([label]) is not None]
    return tuple(labels)
