"""Issues that GitHub would not let us assign: kept back with the reason, but not for ever.

A change of the issue itself forgets the reason (:mod:`tasks.services.snapshots`); here is what the issue does not
show: a base branch that was made later, or a rule of the repository that is gone.
"""

from __future__ import annotations

from django.db.models import QuerySet

from broker_project.lib.errors import OutsideError
from broker_project.lib.redaction import redact
from tasks.github.branches import BranchPlan
from tasks.github.client import BranchMissing, GitHubClient
from tasks.models import Issue, Repository
from tasks.offers.candidates import branch_of
from tasks.reasons import Reason, ReasonCode

MAX_BASES = 10  # branches asked for in one run


def remember_refused(issue: Issue, error: OutsideError) -> None:
    """Keep an issue off offer because GitHub would not let us assign it."""
    if isinstance(error, BranchMissing):
        reason = Reason.of(ReasonCode.NO_BASE_BRANCH, branch=redact(error.branch, 250))
    else:
        reason = Reason.of(ReasonCode.GITHUB_REFUSED, detail=redact(error.message, 480))
    Issue.objects.filter(pk=issue.pk).update(refused_reason=str(reason), coded_refusal=reason.as_json())


def retry_refused(repository: Repository, client: GitHubClient, *, all_of_them: bool) -> set[int]:
    """Forget refusals that may not hold any more; the numbers. Raises the shared errors.

    All of them now and then; else those for want of a base branch, if it is there.
    """
    refused = Issue.objects.filter(repository=repository, is_open=True).exclude(refused_reason="")
    if all_of_them:
        return forget(refused)
    by_base: dict[str, list[int]] = {}
    for issue in refused.filter(coded_refusal__code=ReasonCode.NO_BASE_BRANCH).defer("raw"):
        plan = branch_of(issue, repository.default_branch)
        if isinstance(plan, BranchPlan):
            by_base.setdefault(plan.base or repository.default_branch, []).append(issue.number)
    numbers: set[int] = set()
    for base in sorted(by_base)[:MAX_BASES]:
        if client.has_branch(base):
            numbers |= forget(refused.filter(number__in=by_base[base]))
    return numbers


def forget(refused: QuerySet[Issue]) -> set[int]:
    numbers = set(refused.values_list("number", flat=True))
    if numbers:
        refused.update(refused_reason="", coded_refusal=None)
    return numbers
