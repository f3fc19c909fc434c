"""What an issue's body says about its branch, and which names are safe. Pure functions over untrusted text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker_project.lib.hidden_text import has_invisible
from tasks.reasons import BranchProblem, Reason, ReasonCode

DELIVERABLES = re.compile(r"^## 成果物", re.MULTILINE)
FEATURE_LINE = re.compile(
    r"^[ \t]*[-*][ \t]+\*\*作業ブランチ \(Feature Branch\):\*\*[ \t]*(.*)$", re.MULTILINE
)
BASE_LINE = re.compile(r"^[ \t]*[-*][ \t]+\*\*ベースブランチ \(Base Branch\):\*\*[ \t]*(.*)$", re.MULTILINE)
BRANCH_SECTION = re.compile(r"^##[ \t]+ブランチ名[ \t]*$", re.MULTILINE)
MAX_BRANCH_BYTES = 200


@dataclass(frozen=True)
class BranchPlan:
    """Where the work goes. ``base`` empty: the repository's default branch."""

    name: str
    base: str


@dataclass(frozen=True)
class BranchRefused:
    reason: Reason


def normalise(body: str) -> str:
    return body.replace("\r\n", "\n").replace("\r", "\n")


def has_deliverables(body: str) -> bool:
    return DELIVERABLES.search(normalise(body)) is not None


def plan_branch(body: str, number: int, default_branch: str) -> BranchPlan | BranchRefused:
    """The branch that the body names (the list item before the section), else ``feature/issue-{number}``."""
    text = normalise(body)
    written = first_value(FEATURE_LINE, text)
    if written is None:
        written = section_value(text)
    name = f"feature/issue-{number}" if not written else written.replace("issue-xx", f"issue-{number}")
    base = first_value(BASE_LINE, text) or ""
    problem = name_problem(name)
    if problem is None and name.lower() in {"main", "master", "head", "develop", default_branch.lower()}:
        problem = BranchProblem.PROTECTED
    if problem is not None:
        return BranchRefused(Reason.of(ReasonCode.BRANCH_REFUSED, problem=problem))
    if base and (problem := name_problem(base)):
        return BranchRefused(Reason.of(ReasonCode.BASE_REFUSED, problem=problem))
    if base == name:
        return BranchRefused(Reason.of(ReasonCode.BRANCH_REFUSED, problem=BranchProblem.OWN_BASE))
    return BranchPlan(name, base)


def ref_problem(head: str, base: str) -> Reason | None:
    """Why a pull request's branches cannot go to an agent; None if they can."""
    if problem := name_problem(head):
        return Reason.of(ReasonCode.BRANCH_REFUSED, problem=problem)
    if problem := name_problem(base):
        return Reason.of(ReasonCode.BASE_REFUSED, problem=problem)
    return None


def first_value(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return clean(match.group(1)) if match else None


def section_value(text: str) -> str | None:
    heading = BRANCH_SECTION.search(text)
    if heading is None:
        return None
    for line in text[heading.end() :].split("\n"):
        if line.startswith("#"):
            return None
        if line.strip() and not line.strip().startswith("```"):
            return clean(line)
    return None


def clean(value: str) -> str:
    """The name without the marks of Markdown around it."""
    return re.sub(r"^[-*][ \t]+", "", value.strip()).strip().strip("`").strip()


def name_problem(name: str) -> BranchProblem | None:
    """Why git, or safety, forbids the name; None if it is fine. The rules of ``git check-ref-format`` and more."""
    if not name:
        return BranchProblem.EMPTY
    if not name.isprintable() or re.search(r"\s", name) or has_invisible(name):
        return BranchProblem.UNPRINTABLE
    if len(name.encode()) > MAX_BRANCH_BYTES:
        return BranchProblem.TOO_LONG
    if name.startswith(("-", "/", ".")) or name.endswith(("/", ".")):
        return BranchProblem.ENDS
    if any(part in name for part in ("..", "//", "@{", "/.", "\\")) or any(char in name for char in "~^:?*["):
        return BranchProblem.FORBIDDEN
    if name == "@" or any(part.endswith(".lock") for part in name.split("/")):
        return BranchProblem.RESERVED
    if name.startswith("refs/") or re.fullmatch(r"[0-9a-fA-F]{40}", name):
        return BranchProblem.REFERENCE
    if re.search(r"[$`;|&<>\"'(){}!#%]", name):
        return BranchProblem.SHELL
    return None
