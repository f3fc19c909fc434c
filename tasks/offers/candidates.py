"""From rows to the plain values that :mod:`tasks.lifecycle` decides on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from tasks.github.branches import BranchPlan, BranchRefused, has_deliverables, plan_branch, ref_problem
from tasks.lifecycle import (
    IN_PROGRESS,
    LIVE_STATES,
    NEEDS_REVIEW,
    AssignmentState,
    IssueFacts,
    PullFacts,
    TaskType,
    our_word,
    priority_of,
)
from tasks.models import Assignment, FixTask, Issue, PullRequest, Repository
from tasks.offers.policy import edited_issues, withheld_reason
from tasks.reasons import Reason


@dataclass(frozen=True)
class Subject:
    """One thing that may be handed out, with the rows behind it. ``issue`` is None for a pull request of no issue."""

    facts: IssueFacts
    issue: Issue | None
    pull: PullRequest | None
    fix: FixTask | None
    plan: BranchPlan | BranchRefused | None = None  # of an issue's own branch

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


def subjects(repository: Repository, numbers: Collection[int] | None = None) -> Iterable[Subject]:
    """Every open issue and every pending fix task, or those of the given numbers."""
    issues = Issue.objects.filter(repository=repository, is_open=True).defer("raw")
    taken = Assignment.objects.filter(repository=repository, state__in=LIVE_STATES)
    fixes = FixTask.pending(repository)
    if numbers is not None:
        issues, taken = issues.filter(number__in=numbers), taken.filter(number__in=numbers)
        fixes = fixes.filter(pull_number__in=numbers)
    at_work = {
        number: agent if state == AssignmentState.LIVE else ""
        for number, state, agent in taken.values_list("number", "state", "agent__name")
    }
    fixes_by_pull = {fix.pull_number: fix for fix in fixes}
    found = list(issues)
    pulls = open_pulls(repository, wants_pulls(found), fixes_by_pull.keys())
    edited = edited_issues(found)
    by_issue = {number: pull for pull in pulls.values() for number in pull.closes}
    for issue in found:
        if issue.number not in fixes_by_pull:
            withheld = withheld_reason(issue, edited)
            yield issue_subject(
                repository, issue, by_issue.get(issue.number), at_work.get(issue.number), withheld
            )
    yield from fix_subjects(repository, fixes_by_pull, pulls, at_work)


def subjects_of(
    repository: Repository, numbers: Collection[int], task_type: TaskType
) -> Mapping[int, Subject]:
    """What the index says is on offer, by number, with as few queries as its kind needs.

    Whether somebody else has it is not asked: the constraint on assignments answers that.
    """
    if task_type is TaskType.FIX:
        return {subject.facts.number: subject for subject in subjects(repository, numbers)}
    issues = list(Issue.objects.filter(repository=repository, number__in=numbers, is_open=True))
    pulls = open_pulls(repository, wants_pulls(issues), ())
    edited = edited_issues(issues)
    by_issue = {number: pull for pull in pulls.values() for number in pull.closes}
    return {
        issue.number: issue_subject(
            repository, issue, by_issue.get(issue.number), None, withheld_reason(issue, edited)
        )
        for issue in issues
    }


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


def labels_at_work(labels: Iterable[str], agent: str) -> list[str]:
    """An issue's labels while that agent has it: GitHub has our two, the row may not have heard of it yet."""
    known = list(labels)
    return known + [name for name in (IN_PROGRESS, agent) if name not in known]


def relabelled(raw: dict[str, Any], labels: Iterable[str]) -> dict[str, Any]:
    """GitHub's JSON of an issue with these labels."""
    known = {
        our_word(label["name"]): label
        for label in raw.get("labels") or []
        if isinstance(label, dict) and isinstance(label.get("name"), str)
    }
    return {**raw, "labels": [known.get(name, {"name": name}) for name in labels]}


def issue_subject(
    repository: Repository,
    issue: Issue,
    pull: PullRequest | None,
    taken_by: str | None,
    withheld: Reason | None,
) -> Subject:
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
    return Subject(facts, issue, pull, None, plan)


def fix_subjects(
    repository: Repository,
    fixes: dict[int, FixTask],
    pulls: dict[int, PullRequest],
    at_work: Collection[int],
) -> Iterable[Subject]:
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
        yield Subject(facts, issue, pull, fix)


def fix_labels(pull: PullRequest, issue: Issue | None) -> tuple[str, ...]:
    from django.conf import settings

    labels = list(pull.labels)
    if issue is not None:
        roles = settings.BROKER.role_names
        if not set(labels) & roles:
            labels += [label for label in issue.labels if label in roles]
        if priority_of(labels) is None:
            labels += [label for label in issue.labels if priority_of([label]) is not None]
    return tuple(labels)
