"""What people do meanwhile: open and close issues, publish news, plan matches, write into the file, use the admin."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx

from fixtures.csv.parsing import parse_table
from tests.faults.world import LEAGUE
from tests.soak.ledger import Ledger
from tests.soak.site import REPOSITORY, Site
from tests.support.broker_process import password_of

ROLES = ("BACKENDCODER", "FRONTENDCODER", "UIUX", "DOCWRITER")
TEAMS = (33, 40, 42, 47, 49, 50, 51, 63)
TEXT = ["総務省は、無線局の免許の手続を見直す省令案を取りまとめ、意見の募集を開始しました。"]
CSV = "schedule/fixture_status.csv"
PARKED = "%parked%"
BACKLOG = 25
AT_ONCE = 6  # issues that somebody opens in one go
CLOSED_FROM = 15  # finished issues that are left open for reviews
# The admin's list, action, and which rows somebody would choose.
ADMIN_ACTIONS = {
    "admin-release": ("tasks/assignment", "release", "SELECT id FROM tasks_assignment WHERE state = 'live'"),
    "admin-park": ("tasks/assignment", "park", "SELECT id FROM tasks_assignment WHERE state = 'live'"),
    "admin-offer-again": (
        "tasks/assignment",
        "offer_again",
        "SELECT max(a.id) FROM tasks_assignment a JOIN tasks_issue i"
        " ON i.repository_id = a.repository_id AND i.number = a.number"
        " WHERE i.is_open AND CAST(i.labels AS TEXT) LIKE ? GROUP BY i.number",
    ),
    "admin-retry-item": ("feeds/item", "retry", "SELECT id FROM items WHERE status IN (1, 3)"),
    "admin-retry-match": (
        "fixtures/fixturestatus",
        "retry",
        "SELECT fixture_id FROM fixture_status WHERE status IN ('failed', 'complete')",
    ),
}


class People:
    def __init__(self, site: Site, seed: int, ledger: Ledger) -> None:
        self.site, self.ledger = site, ledger
        self.random = Random(f"people-{seed}")
        self.admin = httpx.Client(
            base_url=site.url, timeout=30, trust_env=False, headers={"Referer": site.url}
        )
        self.matches: list[dict[str, Any]] = []
        self.news = 0
        self.foreign = 0

    def close(self) -> None:
        self.admin.close()

    def open_issues(self) -> None:
        """As many as agents may take soon; finished ones are closed in their turn."""
        waiting = self.site.records.value(
            "SELECT count(*) FROM tasks_issue WHERE is_open AND CAST(labels AS TEXT) NOT LIKE ?"
            " AND CAST(labels AS TEXT) NOT LIKE ?",
            *("%needs-review%", PARKED),
        )
        self.open_more(min(AT_ONCE, BACKLOG - waiting))
        self.close_finished()

    def keep_backlog(self, size: int) -> None:
        """So many issues that nobody has had yet."""
        rows = self.site.records.rows("SELECT DISTINCT number FROM tasks_assignment")
        handed_out = {number for (number,) in rows}
        self.open_more(size - len(set(self.ledger.opened) - handed_out))
        self.close_finished()

    def open_more(self, count: int) -> None:
        if count <= 0:
            return
        issues = [
            {
                "title": f"work {len(self.ledger.opened) + number}",
                "body": "## 成果物\n- something\n",
                "labels": [f"P{self.random.randint(0, 3)}", self.random.choice(ROLES)],
            }
            for number in range(count)
        ]
        order = {"repository": REPOSITORY, "issues": issues}
        numbers = self.site.sandbox.control("POST", "github/issues", order)["numbers"]
        self.ledger.opened.update(dict.fromkeys(numbers, time.time()))

    def close_finished(self) -> None:
        """The oldest ones stay open for reviews."""
        with suppress(httpx.HTTPError, ValueError):  # a fault may meet people, too
            done = self.site.github("GET", "/issues?state=open&labels=needs-review&per_page=100")
            finished = [issue["number"] for issue in done.json()] if done.status_code == 200 else []
            for number in finished[CLOSED_FROM:]:
                self.site.github("PATCH", f"/issues/{number}", {"state": "closed"})
            pulls = self.site.github("GET", "/pulls?state=open&per_page=100")
            opened = [pull["number"] for pull in pulls.json()] if pulls.status_code == 200 else []
            for number in opened[2 * CLOSED_FROM :]:
                self.site.github("PATCH", f"/pulls/{number}", {"state": "closed"})

    def publish_news(self) -> None:
        self.news += 1
        slug = f"soak{self.news:05d}"
        documents = (
            [{"name": f"{slug}.pdf", "title": "省令案", "paragraphs": TEXT}] if self.news % 3 == 0 else []
        )
        entry = {"slug": slug, "title": f"省令案の意見募集 {self.news}", "paragraphs": TEXT * 20}
        self.site.sandbox.load("feed", {"add": [{**entry, "documents": documents}]})

    def plan_match(self) -> None:
        home, away = self.random.sample(TEAMS, 2)
        kickoff = datetime.now(UTC) + timedelta(minutes=self.random.randint(10, 40))
        match = {"league": LEAGUE, "home": home, "away": away, "kickoff": kickoff.isoformat()}
        self.matches.append(match)
        self.site.sandbox.load("football", {"extra": self.matches})

    def write_foreign_row(self) -> None:
        """Somebody else's program adds a row to the file, by the rules: only to what it has read."""
        client, name = self.site.sandbox.client, CSV.replace("/", "%2F")
        try:
            generation = client.get(f"/gcs/storage/v1/b/guides/o/{name}").json().get("generation")
            text = client.get(f"/gcs/download/storage/v1/b/guides/o/{name}?alt=media").content
            if not generation or not parse_table(text):
                return
            self.foreign += 1
            row = f"foreign-{self.foreign},2026-01-02,2026-01-02T03:00:00+09:00,complete,,,0,"
            written = client.post(
                "/gcs/upload/storage/v1/b/guides/o",
                params={"uploadType": "media", "name": CSV, "ifGenerationMatch": generation},
                content=text.rstrip() + f"\r\n{row}\r\n".encode(),
                headers={"Content-Type": "text/csv"},
            )
            if written.status_code == 200 and written.json()["generation"] != generation:
                self.site.evidence.csv_rows_seen.add(f"foreign-{self.foreign}")
        except (httpx.HTTPError, ValueError):
            return  # a fault was meant for the broker and met this program; it tries again later

    def use_admin(self, name: str) -> bool:
        """Choose a row and an action on it, and confirm. False if there was no row, or nobody answered."""
        where, action, sql = ADMIN_ACTIONS[name]
        rows = self.site.records.rows(sql, *([PARKED] if "?" in sql else []))
        if not rows:
            return False
        form = {"action": action, "_selected_action": str(self.random.choice(rows)[0]), "confirmed": "yes"}
        with suppress(httpx.TransportError):
            if "sessionid" not in self.admin.cookies and not self.log_in():
                return False
            token = self.admin.cookies.get("csrftoken", "")
            answer = self.admin.post(f"/admin/{where}/", data={**form, "csrfmiddlewaretoken": token})
            self.ledger.answered("admin", answer.status_code, answer.text)
            if answer.status_code == 302 and "/login/" not in answer.headers["Location"]:
                return True
            self.admin.cookies.clear()
        return False

    def log_in(self) -> bool:
        page = self.admin.get("/admin/login/")
        self.ledger.answered("admin", page.status_code, page.text)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        if page.status_code != 200 or not token:
            return False
        form = {"username": "admin", "password": password_of(self.site.broker.output)}
        answer = self.admin.post(
            "/admin/login/", data={**form, "csrfmiddlewaretoken": token[1], "next": "/status/"}
        )
        self.ledger.answered("admin", answer.status_code, answer.text)
        return answer.status_code == 302
