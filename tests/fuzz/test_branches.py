"""Issue bodies → branch names: nothing that git or a shell would take amiss, with git itself as the judge."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_project.lib.hidden_text import is_invisible
from tasks.github.branches import BranchPlan, BranchRefused, has_deliverables, name_problem, plan_branch
from tasks.lifecycle import closed_issues

LINE = "- **作業ブランチ (Feature Branch):** "
BASE = "- **ベースブランチ (Base Branch):** "
SECTION = "## ブランチ名\n"
DANGEROUS = set("$`;|&<>\"'(){}!#%\\~^:?*[ \t\r\n")

pieces = st.sampled_from(
    [
        LINE,
        BASE,
        SECTION,
        "## 成果物\n",
        "main",
        "issue-xx",
        "..",
        "/",
        ".lock",
        "@{",
        "-",
        "refs/heads/",
        "`",
        "\r\n",
        "\n",
        "HEAD",
        "\u202e",
        "\u200b",
        "\ufe0f",
        "\U000e0041",
        "\u3164",
        "\x00",
        "\x7f",
        "\ud800",
        "機能",
        "feature",
        "🙂",
        "~",
        "^",
    ]
)
bodies = st.lists(st.one_of(pieces, st.text(max_size=12)), max_size=30).map("".join)


@given(bodies, st.integers(1, 2**31 - 1), st.sampled_from(["main", "trunk", "開発"]))
@example(f"{LINE}a\ud800", 1, "main")  # half a surrogate pair: measuring its bytes was an error of its own
@example(f"{LINE}main\u3164", 1, "main")  # a blank letter made another "main"
@example(f"{LINE}feature/a\ufe0f", 1, "main")  # a selector that nobody sees
def test_any_body_gives_a_name_that_is_safe_or_a_reason(body: str, number: int, default: str) -> None:
    has_deliverables(body)
    closed_issues(body, "owner/name")
    plan = plan_branch(body, number, default)
    if isinstance(plan, BranchRefused):
        assert plan.reason
        return
    assert plan.name.lower() not in {"main", "master", "head", "develop", default.lower()}
    for name in filter(None, (plan.name, plan.base)):
        assert not DANGEROUS & set(name)
        assert not any(is_invisible(char) for char in name)
        assert not name.startswith(("-", ".", "/", "refs/"))
        assert len(name.encode()) <= 200


names = st.one_of(
    st.text(min_size=1, max_size=30),
    st.lists(st.sampled_from("aZ0/.-_@{}~^:?*[\\ \t機🙂l.lock..//"), min_size=1, max_size=12).map("".join),
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(folder)], check=True, capture_output=True)
    return folder


@pytest.mark.process
def test_what_we_accept_git_accepts(repository: Path) -> None:
    """One process for all of an example's names would hide which one git refused; one for each is few enough."""

    @given(names)
    @example("a@b")
    @example("@a")
    def check(name: str) -> None:
        if name_problem(name) or "\x00" in name:
            return
        done = subprocess.run(
            ["git", "check-ref-format", "--branch", name], cwd=repository, capture_output=True, check=False
        )
        assert done.returncode == 0, (name, done.stderr)
        assert isinstance(plan_branch(f"{LINE}x{name}", 7, "main"), BranchPlan | BranchRefused)

    check()
