"""The seeded repository: a reservation service with work in every state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.core import iso
from sandbox.github_state import Issue, Repository

if TYPE_CHECKING:
    from sandbox.github import GitHub

DATA = Path(__file__).parent / "data"
OWNER, NAME = "broker-sandbox", "demo"
MARK = "=== "

CLOSED = [
    ("ログイン画面の誤字を直す", ["P2", "FRONTENDCODER"], "qa-team", 300),
    ("Add a health check for the mail queue", ["P1", "BACKENDCODER"], "ops-team", 320),
    ("利用規約の改定日を更新する", ["P1", "DOCWRITER"], "product-owner", 340),
    ("Support Apple Pay", ["P3", "FRONTENDCODER"], "product-owner", 360),
]
COMMENTS = {
    "予約確定 API が同時アクセスで二重に登録される": [
        ("ops-team", "本番のログを確認しました。2 件の間隔は 40 ミリ秒でした。"),
        ("support-desk", "お客様には個別にお詫び済みです。"),
    ],
    "ダークモードに対応する": [("frontend-team", "配色トークンの案を用意しました。")],
    "How do we name feature flags?": [("backend-team", "Let us decide on Thursday; I vote for `enable_x`.")],
}
REVIEWS = {
    "Retry webhook deliveries with exponential backoff": [
        ("services/delivery.py", 48, "The jitter is added after the cap, so a wait can exceed it."),
        (
            "services/delivery.py",
            73,
            "Please count the attempt before the call: a crash here would retry for ever.",
        ),
        ("tests/test_delivery.py", 20, "A case with 429 and Retry-After is missing."),
    ],
    "検索結果に空き状況のアイコンを表示する": [
        ("src/components/Availability.tsx", 31, "色だけで区別されています。形も変えてください。"),
        ("src/components/Availability.tsx", 52, "代替テキストが英語のままです。"),
    ],
}


@dataclass(frozen=True)
class Draft:
    """An issue as the data files describe it."""

    title: str
    labels: list[str]
    author: str
    age_hours: int
    body: str


def read_drafts(file_name: str) -> list[Draft]:
    """The issues of a data file; each begins with `=== labels | title | author | age in hours`."""
    drafts = []
    for block in ("\n" + (DATA / file_name).read_text(encoding="utf-8")).split(f"\n{MARK}")[1:]:
        head, _, body = block.partition("\n")
        labels, title, author, age = (part.strip() for part in head.split("|"))
        drafts.append(
            Draft(title, [name.strip() for name in labels.split(",")], author, int(age), body.strip())
        )
    return drafts


def seed(github: GitHub) -> None:
    changes, now = github.changes, github.world.clock.now()

    def ago(hours: float) -> str:
        return iso(now - timedelta(hours=hours))

    repo = Repository(github.state.next_id(), OWNER, NAME, ago(2400), ago(1))
    repo.description = "予約サービスのデモ (a stand-in; nothing here is real)"
    github.state.repositories[repo.full_name.lower()] = repo
    for message, files in (
        ("Initial commit", ["README.md"]),
        ("Reservations and calendar", ["services/reservation.py", "src/components/Calendar.tsx"]),
        ("Webhook deliveries", ["services/delivery.py"]),
    ):
        changes.push_commit(repo, "maintainer", repo.default_branch, message, files)
    start = repo.branches[repo.default_branch]
    for name in ("in-progress", "needs-review", "review-done", "parked"):
        changes.create_label(repo, "maintainer", name, None, None)

    for title, labels, author, hours in CLOSED:
        issue = changes.create_issue(repo, author, title, "## 成果物\n- 修正\n", labels)
        changes.close_issue(repo, "maintainer", issue)
        issue.created_at, issue.updated_at, issue.closed_at = ago(hours), ago(hours - 24), ago(hours - 24)

    waiting: list[Issue] = []
    for draft in read_drafts("github_issues.md"):
        issue = changes.create_issue(repo, draft.author, draft.title, draft.body, draft.labels)
        for offset, (author, text) in enumerate(COMMENTS.get(draft.title, [])):
            comment = changes.add_comment(repo, author, issue, text)
            comment.created_at = comment.updated_at = ago(draft.age_hours - 2 - offset)
        issue.created_at = ago(draft.age_hours)
        issue.updated_at = ago(draft.age_hours - 4 if draft.title in COMMENTS else draft.age_hours)
        if "needs-review" in issue.labels:
            waiting.append(issue)

    for hours, issue in zip((5, 2), waiting, strict=True):
        _open_reviewed_pull(github, repo, issue, start, ago(hours), ago(hours / 2))

    # One piece of work that is all done: closed issue, merged pull request, branch gone.
    done = changes.create_issue(
        repo, "qa-team", "Typo in the cancellation mail", "## 成果物\n- Fix", ["P2", "DOCWRITER"]
    )
    branch = f"feature/issue-{done.number}"
    changes.create_branch(repo, branch, start)
    changes.push_commit(repo, "docs-team", branch, "Fix the typo", ["templates/cancel.txt"])
    data = {"title": "Fix the typo", "head": branch, "base": "main", "body": f"Closes #{done.number}"}
    merged = changes.open_pull(repo, "docs-team", data)
    changes.merge_pull(repo, "maintainer", merged)
    changes.delete_branch(repo, "maintainer", branch)
    for issue in (done, merged):
        issue.created_at, issue.updated_at, issue.closed_at = ago(30), ago(28), ago(28)
    changes.create_branch(repo, "release/2026-summer", start)


def _open_reviewed_pull(
    github: GitHub, repo: Repository, issue: Issue, start: str, opened_at: str, reviewed_at: str
) -> None:
    changes = github.changes
    branch, remarks = f"feature/issue-{issue.number}", REVIEWS[issue.title]
    files = list(dict.fromkeys(path for path, _, _ in remarks))
    changes.create_branch(repo, branch, start)
    changes.push_commit(repo, "backend-team", branch, issue.title, files)
    data = {
        "title": issue.title,
        "head": branch,
        "base": repo.default_branch,
        "body": f"Closes #{issue.number}",
    }
    pull = changes.open_pull(repo, "backend-team", data)
    comments = [{"path": path, "line": line, "body": text} for path, line, text in remarks]
    review = changes.add_review(
        repo,
        "maintainer",
        pull,
        {"event": "REQUEST_CHANGES", "body": "ありがとうございます。", "comments": comments},
    )
    review.submitted_at = reviewed_at
    for comment in repo.review_comments.values():
        if comment.number == pull.number:
            comment.created_at = comment.updated_at = reviewed_at
    pull.created_at, pull.updated_at = opened_at, reviewed_at
    issue.updated_at = opened_at
