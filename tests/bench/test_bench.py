"""The bench itself: its arithmetic, its drawing, and one small run of the real thing. No time is asserted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import redis
from django.conf import settings

from bench.__main__ import Progress, parse, run_bench
from bench.chart import LIMIT_AT, draw_bars, extent
from bench.context import in_turn
from bench.environment import ROOT
from bench.figures import Bar, Result, Round, percentile, ratio, shown, summarise
from bench.report import document_of, table, tables_of
from bench.round_trips import RoundTripCounter
from bench.scale import QUICK
from bench.sections.feeds import is_whole_table
from bench.sections.pages import compare

CONDITIONS = {
    "scale": "tiny",
    "cores": 2,
    "load_average": [0.5, 0.4, 0.3],
    "python": "3.11",
    "started_at": "2026-01-01T00:00:00+00:00",
}
TINY = replace(
    QUICK,
    name="tiny",
    rounds=1,
    round_seconds=0.1,
    few_issues=4,
    many_issues=8,
    agents=20,
    offered=2,
    counted=2,
)


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        ([7], 0.5, 7),
        ([7], 0.99, 7),
        ([4, 1, 3, 2], 0.5, 2),
        (list(range(1, 101)), 0.5, 50),
        (list(range(1, 101)), 0.95, 95),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 11)), 0.99, 10),
        (list(range(1, 11)), 0.0, 1),
    ],
)
def test_percentiles(values: list[float], share: float, wanted: float) -> None:
    assert percentile(values, share) == wanted


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("bar", "verdict"),
    [
        (Bar("rate", 0.5, 0.5, is_at_least=True), "met"),
        (Bar("rate", 0.49, 0.5, is_at_least=True), "NOT MET"),
        (Bar("trips", 1, 1), "met"),
        (Bar("trips", 1.5, 1), "NOT MET"),
        (Bar("queries", 0, 0), "met"),
        (Bar("queries", 1, 0), "NOT MET"),
        (Bar("rate", None, 0.5, is_at_least=True), "NOT MEASURED"),
    ],
)
def test_a_bar_says_whether_it_is_met(bar: Bar, verdict: str) -> None:
    assert bar.verdict == verdict
    assert bar.is_met == (verdict == "met")


def test_rounds_become_medians() -> None:
    rounds = [
        Round(2.0, 200, 1.0, 2.0, 3.0, {"server": 1.0, "redis": 0.2}),
        Round(1.0, 900, 5.0, 6.0, 7.0, {"server": 0.9, "redis": 0.1}),
        Round(1.0, 300, 2.0, 3.0, 9.0, {"server": 0.6, "redis": 0.1}),
    ]
    found = summarise("both", rounds)
    assert (found.rate, found.p50_ms, found.p99_ms, found.operations) == (300, 2.0, 7.0, 1400)
    assert found.cpu_us == pytest.approx(2000)
    assert found.cores == {"redis": 0.1, "server": 0.6}
    assert found.bottleneck == "server"
    with pytest.raises(ValueError, match="no rounds"):
        summarise("none", [])


def test_a_ratio_to_nothing_is_none() -> None:
    assert ratio(1, 2) == 0.5
    assert ratio(1, 0) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3.0, "3"),
        (1234.5, "1,234"),
        (12.34, "12.3"),
        (0.456, "0.46"),
        (0.0123, "0.012"),
        (None, "-"),
    ],
)
def test_figures_have_their_significant_digits(value: float | None, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("figure", "text"), [(0.5, "0.50"), (0.497, "0.497"), (0.4999, "0.4999"), (0.45, "0.45"), (None, "-")]
)
def test_a_figure_just_short_of_its_limit_has_more_digits(figure: float | None, text: str) -> None:
    assert Bar("rate", figure, 0.5, is_at_least=True).shown_figure == text


def test_every_round_begins_with_another_contender() -> None:
    assert "".join(name for _, name in in_turn(3, ["a", "b", "c"])) == "abccbaabc"


def make_result() -> Result:
    result = Result("request", seconds=3.2)
    result.timings.append(summarise("empty <request>", [Round(1.0, 100, 1.0, 2.0, 3.0, {"server": 0.5})]))
    result.figure("待っている人", 5, "KB", "a note")
    result.at_least("rate & more", 0.4, 0.5)
    result.at_most("trips", 1, 1, unit="×")
    return result


def test_columns_are_aligned_in_any_script() -> None:
    lines = table(("name", "n"), [["待つ", "1"], ["x", "22"]], frozenset({1})).splitlines()
    assert lines == ["name   n", "----  --", "待つ   1", "x     22"]


def test_the_tables_show_figures_bars_and_failures() -> None:
    broken = Result("waiting", error="BenchFailed: nobody was woken")
    text = tables_of(CONDITIONS, [make_result(), broken])
    for part in (
        "empty <request>",
        "待っている人",
        "NOT MET  rate & more",
        "≥ 0.50",
        "met      trips",
        "≤ 1 ×",
        "1 of 2 bars are met.",
        "FAILED waiting: BenchFailed: nobody was woken",
    ):
        assert part in text, text


def test_the_json_document_has_verdicts_and_can_be_written() -> None:
    document = json.loads(json.dumps(document_of(CONDITIONS, [make_result()])))
    (section,) = document["sections"]
    assert [bar["verdict"] for bar in section["bars"]] == ["NOT MET", "met"]
    assert section["timings"][0]["rate"] == 100
    assert section["figures"][0] == {"name": "待っている人", "value": 5, "unit": "KB", "note": "a note"}


def test_the_chart_is_an_svg_with_a_bar_for_each_bar_and_one_line_of_limits() -> None:
    bars = [*make_result().bars, Bar("not there", None, 1)]
    root = ElementTree.fromstring(draw_bars(bars, CONDITIONS))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert len(root.findall(f"{space}rect")) == 1 + len(bars)
    (line,) = root.findall(f"{space}line")
    assert line.get("x1") == line.get("x2")
    texts = [text.text for text in root.iter(f"{space}text")]
    assert "rate & more" in texts
    assert any(text and text.endswith("NOT MEASURED") for text in texts)


@pytest.mark.parametrize(
    ("bar", "share"),
    [
        (Bar("at the limit", 5, 5), LIMIT_AT),
        (Bar("half", 2.5, 5), LIMIT_AT / 2),
        (Bar("far beyond", 500, 5), 1.0),
        (Bar("none allowed, none there", 0, 0), 0.0),
        (Bar("none allowed, one there", 1, 0), 1.0),
        (Bar("not measured", None, 5), 0.0),
    ],
)
def test_a_bar_is_drawn_in_proportion_to_its_limit(bar: Bar, share: float) -> None:
    assert extent(bar) == share


def test_the_slowest_page_and_the_one_with_more_queries_are_named() -> None:
    result = Result("pages")

    def page(name: str, queries: tuple[int, int], ms: tuple[float, float]) -> dict[str, object]:
        small, large = (
            {"queries": count, "least_ms": least, "cold_ms": 2 * least}
            for count, least in zip(queries, ms, strict=True)
        )
        return {"page": name, "small": small, "large": large, "warm_ratio": ms[1] / ms[0]}

    compare(result, "1,000,000", [page("/a", (5, 5), (10.0, 40.0)), page("/b", (5, 7), (10.0, 11.0))])
    queries, slower = result.bars
    assert (queries.figure, queries.note, queries.verdict) == (2, "/b", "NOT MET")
    assert (slower.figure, slower.verdict) == (4.0, "NOT MET")
    assert slower.note == "/a; over it: 1 of 2 pages"


@pytest.mark.parametrize(
    ("step", "is_whole"),
    [
        ("SEARCH items USING INDEX idx_items_status_published_at (status=?)", False),
        ("SCAN items", True),
        ("SCAN feeds_feed LEFT-JOIN", False),
        ("SCAN feeds_itemdetail", True),
        ("USE TEMP B-TREE FOR ORDER BY", True),
    ],
)
def test_a_query_plan_that_grows_with_the_items_is_found(step: str, is_whole: bool) -> None:
    assert is_whole_table(step) == is_whole


def test_sections_can_be_chosen_and_unknown_ones_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--only", "waiting, request"]).sections == ["request", "waiting"]
    with pytest.raises(SystemExit):
        parse(["--only", "requests"])
    assert "there is no section requests" in capsys.readouterr().err


@pytest.fixture
def round_trips() -> Iterator[RoundTripCounter]:
    counter = RoundTripCounter(urlsplit(settings.REDIS_URL).port or 0)
    counter.start()
    yield counter
    counter.stop()


def test_round_trips_are_counted_and_not_reads(round_trips: RoundTripCounter) -> None:
    client: redis.Redis = redis.Redis.from_url(round_trips.url)
    client.ping()
    before = round_trips.count
    client.ping()
    client.get("bench-no-such-key")
    assert round_trips.count - before == 2
    # Far more than one read's worth, and in one burst all the same.
    pipe = client.pipeline(transaction=True)
    for number in range(200):
        pipe.set(f"bench-round-trips-{number}", "x" * 500, ex=5)
    before = round_trips.count
    pipe.execute()
    assert round_trips.count - before == 1
    client.close()


def test_the_bench_uses_nothing_of_the_tests() -> None:
    for path in (ROOT / "bench").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE), path


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.process
@pytest.mark.slow
def test_a_small_run_leaves_figures_and_a_chart_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children()
    file = tmp_path / "new folder" / "bench.json"
    results, document = run_bench(TINY, ["request", "no_such_section"], file, Progress())
    assert children() - before == set()
    assert list(tmp_path.glob("broker-bench-*")) == []

    assert json.loads(file.read_text()) == json.loads(json.dumps(document))
    assert document["conditions"]["scale"] == "tiny"
    request, missing = document["sections"]
    assert request["error"] == ""
    assert "no_such_section" in missing["error"]
    names = [timing["name"] for timing in request["timings"]]
    assert names == [
        "bare claim, nothing there",
        "empty request, 4 issues",
        "empty request, 8 issues",
        "empty request, with tokens",
    ]
    for timing in request["timings"]:
        assert timing["operations"] > 0
        assert timing["rate"] > 0
        assert 0 < timing["p50_ms"] <= timing["p95_ms"] <= timing["p99_ms"]
        assert set(timing["cores"]) == {"server", "load", "redis", "github"}
    bars = {bar["name"]: bar for bar in request["bars"]}
    assert len(bars) == 5
    assert {bar["verdict"] for bar in bars.values()} <= {"met", "NOT MET"}
    counted = {figure["name"]: figure["value"] for figure in request["figures"]}
    assert (
        counted["empty request: Redis round trips"] == bars["empty request: Redis round trips"]["figure"] > 0
    )
    assert counted["empty request: Redis commands"] > 1
    chart = ElementTree.fromstring(file.with_suffix(".svg").read_text())
    assert len(chart.findall("{http://www.w3.org/2000/svg}rect")) == 1 + len(bars)
    assert tables_of(document["conditions"], results)


@pytest.mark.process
@pytest.mark.slow
def test_an_interrupted_run_ends_what_it_started(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench",
                "--quick",
                "--only",
                "heartbeat",
                "--json",
                str(tmp_path / "b.json"),
            ],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )
    started: list[psutil.Process] = []
    until = time.monotonic() + 120
    while len(started) < 3 and time.monotonic() < until:
        assert process.poll() is None, (tmp_path / "log").read_text()
        started = psutil.Process(process.pid).children(recursive=True)
        time.sleep(0.05)
    assert len(started) >= 3
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert list(tmp_path.glob("broker-bench-*")) == []
    assert not (tmp_path / "b.json").exists()
