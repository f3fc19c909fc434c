"""What the pages cost with few rows and with very many: queries and milliseconds, caches cold and warm.

    python -m bench.pages --items 1000000 --assignments 100000 [--database URL] [--json FILE]

It makes a database in a temporary folder (or takes the empty one that ``--database`` names), starts a Redis, and
requests the pages through Django's test client as an admin. The same pages are requested with small tables first, then
with large ones. A page holds if it makes no more queries than before and takes at most three times as long with warm
caches (by processor time with SQLite, so that a busy machine does not decide).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.test import Client

SMALL_ITEMS, SMALL_ASSIGNMENTS = 1000, 1000
WARM_SAMPLES, COLD_SAMPLES = 7, 3
QUICK_SAMPLES = 2, 1
LIMIT = 3.0


@dataclass(frozen=True)
class Cost:
    """Medians, and the least of the warm answers, which other work on the machine disturbs least.

    With SQLite, which works in our process, that is processor time.
    """

    queries: int
    cold_ms: float
    warm_ms: float
    least_ms: float


@dataclass(frozen=True)
class Row:
    page: str
    small: Cost
    large: Cost

    @property
    def warm_ratio(self) -> float:
        return self.large.least_ms / self.small.least_ms

    @property
    def cold_ratio(self) -> float:
        return self.large.cold_ms / self.small.cold_ms

    @property
    def holds(self) -> bool:
        return self.large.queries <= self.small.queries and self.warm_ratio <= LIMIT


# Requests


def pages() -> list[str]:
    """Every page that people use, some of them filtered and searched as well."""
    from django.contrib import admin
    from django.urls import reverse
    from django.utils import timezone

    from bench.page_rows import OURS

    found = ["/admin/", "/status/", "/status/tasks/", "/status/feeds/", "/status/fixtures/"]
    found += ["/status/fixtures/reports/", "/status/fixtures/1/report/"]
    for model in admin.site._registry:
        options = model._meta
        if options.app_label in OURS and options.model_name not in ("feedsettings", "fixturesettings"):
            found.append(reverse(f"admin:{options.app_label}_{options.model_name}_changelist"))
    items, assignments = "/admin/feeds/item/", "/admin/tasks/assignment/"
    day = timezone.localdate() - timedelta(days=300)
    until = timezone.localdate() - timedelta(days=100)
    found += [
        f"{items}?status__exact=3",
        f"{items}?status__exact=1&reason__exact=2",
        f"{items}?status__exact=3&reason__exact=6",
        f"{items}?detail__feed__id__exact=2",
        f"{items}?q=Announcement",
        f"{items}?q=no+such+word",
        f"{items}?published_at_from={day}",
        f"{items}?published_at_from={day}&published_at_until={until}&status__exact=3",
        f"{items}?p=20",
        f"{assignments}?state__exact=completed",
        f"{assignments}?state__exact=live",
        f"{assignments}?q=agent-00",
        f"{assignments}?created_at_from={day}",
        "/admin/tasks/issue/?state=on_offer",
        "/admin/tasks/issue/?state=parked",
        "/admin/tasks/issue/?q=export",
        "/admin/tasks/event/?what=completed",
        "/admin/tasks/event/?q=7",
        "/admin/feeds/itemevent/?what=posted",
        "/admin/fixtures/fixturestatus/?status__exact=failed",
        "/admin/tasks/issue/1/change/",
        f"{assignments}1/change/",
        "/admin/tasks/agent/1/change/",
        "/admin/feeds/item/1/change/",
        "/admin/fixtures/fixturestatus/1/change/",
        "/admin/broker/poller/items/change/",
    ]
    return found


def ask(client: Client, page: str) -> float:
    started = time.perf_counter()
    answer = client.get(page)
    taken = (time.perf_counter() - started) * 1000
    if answer.status_code != 200:
        raise SystemExit(f"{page} answered {answer.status_code}")
    return taken


def cost_of(client: Client, page: str, warm_samples: int, cold_samples: int) -> Cost:
    from django.core.cache import cache
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from broker_project.lib.kept import forget_all

    ask(client, page)  # compiles templates and fills the machine's own caches
    cold = []
    queries = 0
    for turn in range(cold_samples):
        cache.delete_pattern("*")  # type: ignore[attr-defined]
        forget_all()
        if turn == 0:
            with CaptureQueriesContext(connection) as caught:
                cold.append(ask(client, page))
            queries = len(caught)
        else:
            cold.append(ask(client, page))
    warm, least = [], []
    clock = time.process_time if connection.vendor == "sqlite" else time.perf_counter
    for _ in range(warm_samples):
        started = clock()
        warm.append(ask(client, page))
        least.append((clock() - started) * 1000)
    return Cost(
        queries, round(statistics.median(cold), 1), round(statistics.median(warm), 1), round(min(least), 1)
    )


def measure(client: Client, is_quick: bool) -> dict[str, Cost]:
    """A quick run requests each page less often, and no filtered lists."""
    warm, cold = QUICK_SAMPLES if is_quick else (WARM_SAMPLES, COLD_SAMPLES)
    return {page: cost_of(client, page, warm, cold) for page in pages() if not (is_quick and "?" in page)}


def run(items: int, assignments: int, is_quick: bool) -> list[Row]:
    from django.contrib.auth.models import User
    from django.test import Client
    from django.utils import timezone

    from bench.page_rows import Sizes, fill

    now = timezone.now()
    client = Client(headers={"accept-language": "en"}, SERVER_NAME="127.0.0.1")
    client.force_login(User.objects.create_superuser("bench"))
    small = Sizes(SMALL_ITEMS, SMALL_ASSIGNMENTS)
    found = []
    for sizes in (small, Sizes(items, assignments)):
        say(f"filling: {sizes.items} items, {sizes.assignments} assignments")
        started = time.monotonic()
        fill(sizes, now)
        say(f"filled in {time.monotonic() - started:.0f} s; asking")
        found.append(measure(client, is_quick))
    return [Row(page, found[0][page], found[1][page]) for page in found[0]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    width = max(len(row.page) for row in rows)
    head = f"{'page':{width}}  {'queries':>9}  {'warm ms':>15}  {'least ms':>13}  {'ratio':>5}"
    lines = [f"{head}  {'cold ms':>15}  {'ratio':>5}  holds"]
    for row in rows:
        small, large = row.small, row.large
        lines.append(
            f"{row.page:{width}}  {small.queries:>3} → {large.queries:>3}  "
            f"{small.warm_ms:>6.0f} → {large.warm_ms:>6.0f}  "
            f"{small.least_ms:>5.0f} → {large.least_ms:>5.0f}  {row.warm_ratio:>5.1f}  "
            f"{small.cold_ms:>6.0f} → {large.cold_ms:>6.0f}  {row.cold_ratio:>5.1f}  "
            f"{'yes' if row.holds else 'NO'}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--assignments", type=int, default=100_000)
    parser.add_argument("--database", default="", help="an empty database; its tables are made and emptied")
    parser.add_argument("--quick", action="store_true", help="fewer pages, asked less often")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a page grows too much")
    given = parser.parse_args(arguments)
    if given.items < SMALL_ITEMS or given.assignments < SMALL_ASSIGNMENTS:
        parser.error(f"at least {SMALL_ITEMS} items and {SMALL_ASSIGNMENTS} assignments")
    folder = Path(tempfile.mkdtemp(prefix="broker-bench-"))
    os.environ.update(
        BROKER_ENV_FILE="",
        BROKER_VAR=str(folder),
        BROKER_LOG_LEVEL="WARNING",
        DJANGO_SETTINGS_MODULE="broker_project.settings",
    )
    for name in ("REDIS_URL", "DATABASE_URL"):
        os.environ.pop(name, None)
    if given.database:
        os.environ["DATABASE_URL"] = given.database
    from broker_project.lib.redis.embedded_server import EmbeddedRedis

    server = EmbeddedRedis(folder)
    server.ensure()
    try:
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        call_command("sync_schedules", stdout=io.StringIO())
        rows = run(given.items, given.assignments, given.quick)
        print(table(rows))
        if given.json:
            figures = {
                "database": connection.vendor,
                "items": given.items,
                "assignments": given.assignments,
                "pages": [
                    {
                        **asdict(row),
                        "warm_ratio": round(row.warm_ratio, 2),
                        "cold_ratio": round(row.cold_ratio, 2),
                        "holds": row.holds,
                    }
                    for row in rows
                ],
            }
            given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        return 1 if given.strict and not all(row.holds for row in rows) else 0
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
