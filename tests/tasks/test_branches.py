from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.github.branches import BranchPlan, BranchRefused, has_deliverables, name_problem, plan_branch

LINE = "- **作業ブランチ (Feature Branch):** "
BASE = "- **ベースブランチ (Base Branch):** "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("## 成果物\n- x", True),
        ("text\n## 成果物", True),
        ("text\r\n## 成果物\r\n- x", True),
        ("## 成果物一覧", True),
        ("### 成果物", False),
        (" ## 成果物", False),
        ("成果物", False),
        ("", False),
    ],
)
def test_the_deliverables_are_a_line(body: str, expected: bool) -> None:
    assert has_deliverables(body) is expected


@pytest.mark.parametrize(
    ("body", "name", "base"),
    [
        ("", "feature/issue-7", ""),
        (f"{LINE}feature/issue-xx", "feature/issue-7", ""),
        (f"{LINE}`feature/issue-xx-login`", "feature/issue-7-login", ""),
        (f"{LINE}fix/a\r\n{BASE}develop\r\n", "fix/a", "develop"),
        (f"{LINE}fix/a\n{BASE}`release/1.2`", "fix/a", "release/1.2"),
        ("## ブランチ名\n\n`feature/x`\n", "feature/x", ""),
        ("## ブランチ名\nfeature/issue-xx\n## 次", "feature/issue-7", ""),
        ("## ブランチ名\n\n## 次\nfeature/no", "feature/issue-7", ""),
        (f"## ブランチ名\nfeature/section\n\n{LINE}feature/item", "feature/item", ""),
        (f"{LINE}", "feature/issue-7", ""),
        (f"{LINE}機能/予約", "機能/予約", ""),
    ],
)
def test_the_branch_that_a_body_names(body: str, name: str, base: str) -> None:
    assert plan_branch(body, 7, "main") == BranchPlan(name, base)


@pytest.mark.parametrize(
    "name",
    [
        "main",
        "MAIN",
        "master",
        "trunk",
        "-f",
        "a..b",
        "x.lock",
        "a/x.lock/b",
        "a b",
        "a\x07b",
        "a~1",
        "a^",
        "a:b",
        "a?",
        "a*",
        "a[b",
        "a\\b",
        "a@{1}",
        "@",
        "/a",
        "a/",
        "a//b",
        "a/.b",
        ".a",
        "a.",
        "refs/heads/a",
        "HEAD",
        "a;rm",
        "$(id)",
        "a`id`b",
        "a" * 201,
        "a\u202eb",
        "0" * 40,
    ],
)
def test_names_that_are_refused(name: str) -> None:
    assert isinstance(plan_branch(f"{LINE}{name}", 7, "trunk"), BranchRefused)


def test_a_branch_is_not_its_own_base() -> None:
    assert isinstance(plan_branch(f"{LINE}feature/a\n{BASE}feature/a", 7, "main"), BranchRefused)


def test_a_forbidden_base_is_refused() -> None:
    assert isinstance(plan_branch(f"{LINE}feature/a\n{BASE}-f", 7, "main"), BranchRefused)


@given(st.text(max_size=400))
def test_any_body_gives_a_safe_name_or_a_reason(body: str) -> None:
    plan = plan_branch(f"{LINE}{body}", 7, "main")
    if isinstance(plan, BranchRefused):
        assert plan.reason
    else:
        assert name_problem(plan.name) is None


@pytest.mark.process
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\x00"), min_size=1, max_size=40))
def test_whatever_we_accept_git_accepts_too(name: str) -> None:
    if name_problem(name):
        return
    done = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, check=False)
    assert done.returncode == 0, name
