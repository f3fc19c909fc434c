"""What an issue's body says about its branch, and which names are safe. Pure functions over untrusted text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker_project.lib.hidden_text import has_invisible

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
    reason: str


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
    if problem := name_problem(name):
        return BranchRefused(f"branch name refused: {problem}")
    if name.lower() in {"main", "master", "head", "develop", default_branch.lower()}:
        return BranchRefused("branch name refused: it is a protected branch")
    if base and (problem := name_problem(base)):
        return BranchRefused(f"base branch refused: {problem}")
    if base == name:
        return BranchRefused("branch name refused: it is its own base branch")
    return BranchPlan(name, base)


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


def name_problem(name: str) -> str:
    """Why git, or safety, forbids the name; empty if it is fine. The rules of ``git check-ref-format`` and more."""
    if not name:
        return "empty"
    if not name.isprintable() or re.search(r"\s", name) or has_invisible(name):
        return "spaces, control or hidden characters"
    if len(name.encode()) > MAX_BRANCH_BYTES:
        return "too long"
    if name.startswith(("-", "/", ".")) or name.endswith(("/", ".")):
        return "begins or ends with a forbidden character"
    if any(part in name for part in ("..", "//", "@{", "/.", "\\")) or any(char in name for char in "~^:?*["):
        return "characters that git forbids"
    if name == "@" or any(part.endswith(".lock") for part in name.split("/")):
        return "a name that git reserves"
    if name.startswith("refs/") or re.fullmatch(r"[0-9a-fA-F]{40}", name):
        return "looks like a reference or a commit"
    if re.search(r"[$`;|&<>\"'(){}!#%]", name):
        return "characters that a shell would act on"
    return ""
