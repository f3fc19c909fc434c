"""What people see and do, in a real browser: no console error, no failed request, no foreign host."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Visitor
from tests.support.broker_process import BrokerProcess, run_manage

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]

Visit = Callable[..., Visitor]
STATUS = ["/status/", "/status/tasks/", "/status/feeds/", "/status/fixtures/"]
LISTS = [
    "/admin/",
    "/admin/tasks/issue/",
    "/admin/tasks/assignment/",
    "/admin/tasks/agent/",
    "/admin/feeds/item/",
    "/admin/feeds/feed/",
    "/admin/fixtures/fixturestatus/",
    "/admin/fixtures/report/",
    "/admin/broker/poller/",
]
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u202egnp.exe 🙂"
    + "長" * 10_000
)


def ask_for_task(broker: BrokerProcess, agent: str) -> dict[str, Any]:
    request = urllib.request.Request(
        broker.url("/api/v1/request-task"),
        data=json.dumps({"agent_id": agent, "timeout": 20}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        task: dict[str, Any] = json.loads(answer.read())
        return task


def count(visitor: Visitor, label: str) -> int:
    stages = visitor.page.locator(".stage", has_text=label).first
    return int(stages.locator(".count").inner_text())


def test_a_stranger_logs_in_and_arrives(visit: Visit) -> None:
    visitor = visit()
    visitor.open("/status/feeds/")
    assert "/admin/login/" in visitor.page.url
    visitor.log_in()
    assert "Sandbox" in visitor.text(".notices")
    assert visitor.page.title() == "Overview – Broker"


@pytest.mark.parametrize("locale", ["en-GB", "ja-JP"])
@pytest.mark.parametrize("width", [1280, 360])
def test_no_page_is_wider_than_its_window(visit: Visit, locale: str, width: int) -> None:
    visitor = visit(locale=locale, width=width).log_in()
    for page in [*STATUS, *LISTS]:
        assert visitor.open(page).status == 200
        assert visitor.overflow <= 0, page
        assert visitor.page.get_attribute("html", "lang") == locale[:2]


def test_a_row_is_a_card_on_a_phone(visit: Visit) -> None:
    visitor = visit(width=390).log_in()
    visitor.open("/admin/feeds/item/")
    row = visitor.page.locator("#result_list tbody tr").first
    cells = row.evaluate(
        """row => [...row.cells].filter(cell => cell.offsetParent !== null).map(cell => [
            cell.dataset.label || "", cell.getBoundingClientRect().right,
            getComputedStyle(cell, "::before").content])"""
    )
    labels = [label for label, _right, _shown in cells]
    assert labels[:3] == ["", "Title", "Status"]  # the box to tick first
    assert all(right <= 390 for _label, right, _shown in cells)
    assert all(shown == f'"{label}"' for label, _right, shown in cells if label)


def test_every_page_that_the_admins_index_leads_to_answers(visit: Visit) -> None:
    visitor = visit().log_in()
    visitor.open("/admin/")
    seen: set[str] = set()
    waiting = [str(visitor.page.evaluate("location.pathname"))]
    # Two steps away: the lists, and the first thing of each list.
    for _step in range(2):
        found: list[str] = []
        for path in waiting:
            if path in seen or "logout" in path or "password" in path:
                continue
            seen.add(path)
            assert visitor.open(path).status == 200, path
            links = visitor.page.eval_on_selector_all(
                "#content a[href^='/'], .results th a", "links => links.map(a => a.getAttribute('href'))"
            )
            found += [link for link in links if link.startswith(("/admin/", "/status/"))]
            rows = visitor.page.eval_on_selector_all(
                "#result_list tbody tr:first-child th a", "links => links.map(a => a.pathname)"
            )
            found += rows
        waiting = list(dict.fromkeys(found))[:60]
    assert len(seen) > 20


def test_lists_filter_by_address_and_search(visit: Visit) -> None:
    visitor = visit().log_in()
    visitor.open("/admin/tasks/issue/")
    visitor.page.click(".status-tabs a:has-text('on offer')")
    visitor.page.wait_for_load_state()
    assert "state=on_offer" in visitor.page.url
    reasons = visitor.page.locator("#result_list .field-why").all_inner_texts()
    assert reasons
    assert all("behind" in text or "on offer" in text or "review due" in text for text in reasons), reasons
    visitor.page.fill("#searchbar", "no such title at all")
    visitor.page.press("#searchbar", "Enter")
    visitor.page.wait_for_load_state()
    assert "state=on_offer" in visitor.page.url
    assert visitor.page.locator("#result_list").count() == 0


def test_a_list_is_narrowed_by_dates_and_acted_on_as_a_whole(visit: Visit) -> None:
    visitor = visit().log_in()
    page = visitor.page
    visitor.open("/admin/fixtures/fixturestatus/")
    page.click(".status-tabs a:has-text('pending')")
    page.wait_for_load_state()
    page.click(".filter-panel > summary")
    page.fill(".date-range input[name=date_from]", "2000-01-01")
    page.click(".date-range button")
    page.wait_for_load_state()
    assert "status__exact=pending" in page.url
    assert "date_from=2000-01-01" in page.url
    total = int(page.locator(".status-tabs a[aria-current] strong").inner_text())
    assert total > 50  # more than one page, or there is no whole to choose
    page.check("#action-toggle")
    page.click(".actions .question a")
    page.select_option("select[name=action]", "mark_complete")
    page.click(".actions button[name=index]")
    page.wait_for_load_state()
    assert f"This will be done for {total} rows." in visitor.text("#content")
    page.click("text=No, take me back")
    page.wait_for_load_state()
    assert f"pending {total}" in visitor.text(".status-tabs")
    page.check("#result_list tbody tr:first-child .action-select")
    page.select_option("select[name=action]", "export_csv")
    with page.expect_download() as download:
        page.click(".actions button[name=index]")
    assert download.value.suggested_filename.startswith("fixturestatus-")
    page.fill(".date-range input[name=date_until]", "2000-01-02")
    page.click(".date-range button")
    page.wait_for_load_state()
    assert "Nothing matches." in visitor.text("#content")


def test_an_item_is_retried_from_its_page(visit: Visit) -> None:
    visitor = visit().log_in()
    page = visitor.page
    visitor.open("/admin/feeds/item/?status__exact=1")
    page.click("#result_list tbody tr:first-child th a")
    page.wait_for_load_state()
    address = page.url
    assert "Why is it not moving?" in visitor.text("#why")
    page.click(".allowed-actions button:has-text('Retry')")
    assert "This will be done for 1 row." in visitor.text("#content")
    page.click("input[type=submit][value='Yes, go on']")
    page.wait_for_load_state()
    assert "1 item set to retry" in visitor.text(".messagelist")
    page.goto(address)
    assert "set to retry" in visitor.text("#timeline")
    assert "admin" in visitor.text("#timeline")


def test_the_api_can_be_tried_on_its_page(visit: Visit) -> None:
    visitor = visit().log_in()
    page = visitor.page
    visitor.open("/api/v1/docs")
    page.click(".opblock:has-text('/api/v1/explain') .opblock-summary")
    page.click("button:has-text('Try it out')")
    page.fill("input[placeholder=agent_id]", "browser-agent-1")
    page.click("button:has-text('Execute')")
    page.wait_for_selector(".live-responses-table .response-col_status:has-text('200')")


def test_a_guide_is_shown_in_its_colours(visit: Visit) -> None:
    visitor = visit().log_in()
    page = visitor.page
    visitor.open("/status/fixtures/reports/")
    page.click(".guides li a >> nth=0")
    page.wait_for_load_state()
    assert "/report/" in page.url
    colours = page.evaluate(
        "() => [...document.querySelectorAll('h1 .team')].map(t => getComputedStyle(t, '::after').backgroundColor)"
    )
    assert len(set(colours)) == 2
    assert page.evaluate("getComputedStyle(document.querySelector('main')).maxWidth") == "880px"
    assert visitor.overflow <= 0


@pytest.mark.process
def test_pages_that_are_not_there_or_not_for_everybody(visit: Visit, broker: BrokerProcess) -> None:
    visitor = visit().log_in()
    assert visitor.open("/status/nowhere/").status == 404
    assert "There is no such page" in visitor.text()
    assert visitor.page.evaluate("getComputedStyle(document.querySelector('main')).textAlign") == "center"
    visitor.problems.clear()  # the 404 itself was asked for


@pytest.mark.process
def test_a_count_changes_by_itself_and_nothing_jumps(visit: Visit, broker: BrokerProcess) -> None:
    visitor = visit().log_in()
    before = count(visitor, "at work")
    height = visitor.page.locator("header.top").bounding_box()
    ask_for_task(broker, "browser-agent-1")
    visitor.page.wait_for_function(
        "before => [...document.querySelectorAll('.stage')].some(s => s.textContent.includes('at work')"
        " && Number(s.querySelector('.count').textContent) > before)",
        arg=before,
    )
    assert visitor.page.locator("header.top").bounding_box() == height
    assert "browser-agent-1" in visitor.text("#live")


@pytest.mark.process
def test_release_asks_first_and_reports(visit: Visit, broker: BrokerProcess) -> None:
    task = ask_for_task(broker, "browser-agent-2")
    visitor = visit().log_in()
    visitor.open(f"/admin/tasks/assignment/{task['assignment_id']}/change/")
    visitor.page.click("button:has-text('Release')")
    assert "This will be done for 1 row." in visitor.text("#content")
    visitor.page.click("input[type=submit][value='Yes, go on']")
    visitor.page.wait_for_load_state()
    assert "1 assignment released" in visitor.text(".messagelist")
    visitor.open(f"/admin/tasks/assignment/{task['assignment_id']}/change/")
    assert "released by admin" in visitor.text("#content")
    assert visitor.page.locator("button:has-text('Release')").count() == 0


def test_a_poller_is_paused_resumed_run_and_watched(visit: Visit) -> None:
    visitor = visit().log_in()
    page = visitor.page

    def press(button: str) -> None:
        visitor.open("/admin/broker/poller/issues/change/")
        page.click(f".allowed-actions button:has-text('{button}')")
        page.click("input[type=submit][value='Yes, go on']")
        page.wait_for_load_state()

    press("Pause")
    assert "1 poller paused" in visitor.text(".messagelist")
    press("Resume")
    assert "1 poller resumed" in visitor.text(".messagelist")
    press("Run now")
    visitor.open("/admin/broker/poller/issues/change/")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#runs tbody tr')].some(row => row.cells[1].textContent === 'admin'"
        " && row.cells[3].textContent.trim())"
    )


def test_an_agent_is_made_and_its_token_shown_once(visit: Visit) -> None:
    visitor = visit().log_in()
    visitor.open("/admin/tasks/agent/add/")
    visitor.page.fill("#id_name", "made-in-browser")
    visitor.page.check("input[name=roles] >> nth=0")
    visitor.page.click("input[name=_save]")
    token = visitor.text("#token")
    assert re.fullmatch(r"brk_\S{30,}", token)
    visitor.page.click("text=Done, I have it")
    visitor.page.wait_for_load_state()
    assert token not in visitor.page.content()


def test_maintenance_is_switched_seen_and_switched_back(visit: Visit) -> None:
    visitor = visit().log_in()
    page = visitor.page

    def switch(button: str) -> None:
        visitor.open("/admin/redis/")
        row = page.locator("tr", has_text="Maintenance").first
        if button == "Switch on":
            row.locator("input[name=reason]").fill("a test looks")
        row.locator(f"input[value='{button}']").click()
        page.locator("#content form:has(input[name=confirmed]) [type=submit]").first.click()
        page.wait_for_load_state()

    switch("Switch on")
    try:
        visitor.open("/status/")
        assert "a test looks" in visitor.text(".notices")
    finally:
        switch("Switch off")
    page.wait_for_timeout(2500)  # every process reads its switches again within two seconds
    visitor.open("/status/")
    assert "a test looks" not in visitor.text(".notices")


def test_the_language_is_switched_and_kept(visit: Visit) -> None:
    visitor = visit().log_in()
    visitor.page.click("form.language button")
    visitor.page.wait_for_load_state()
    assert visitor.page.get_attribute("html", "lang") == "ja"
    assert "概要" in visitor.text("h1")
    visitor.open("/status/tasks/")
    assert visitor.page.get_attribute("html", "lang") == "ja"


def test_dark_and_light_by_preference_and_switch(visit: Visit) -> None:
    visitor = visit(color_scheme="dark").log_in()
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = visitor.page.evaluate(colour)
    visitor.page.click(".theme-toggle")
    light = visitor.page.evaluate(colour)
    assert dark != light
    visitor.open("/status/feeds/")
    assert visitor.page.evaluate(colour) == light


@pytest.mark.process
def test_hostile_titles_are_inert_and_do_not_break_the_layout(visit: Visit, broker: BrokerProcess) -> None:
    code = (
        "from tasks.models import Issue; from feeds.models import Item; from fixtures.models import Match;"
        f"t = {HOSTILE!r}; i = Issue.objects.filter(is_open=True).order_by('-pk').first();"
        "Issue.objects.filter(pk=i.pk).update(title=t);"
        "j = Item.objects.order_by('-pk').first(); Item.objects.filter(pk=j.pk).update(title=t);"
        "m = Match.objects.filter(report__isnull=False).order_by('-kickoff_at').first();"
        "Match.objects.filter(pk=m.pk).update(home_name=t[:100], away_name=t[-100:]);"
        "print('made', i.pk, j.pk, m.pk)"
    )
    done = run_manage("shell", "-c", code, env=broker.env)
    assert done.returncode == 0, done.stderr
    made = re.search(r"made (\d+) (\d+) (\d+)", done.stdout)
    assert made
    issue, item, match = made.groups()
    for width in (1280, 360):
        visitor = visit(width=width).log_in()
        for page in [
            "/status/",
            "/status/feeds/",
            "/admin/tasks/issue/",
            f"/admin/tasks/issue/{issue}/change/",
            "/admin/feeds/item/",
            f"/admin/feeds/item/{item}/change/",
            "/status/fixtures/",
            "/status/fixtures/reports/",
            "/admin/fixtures/match/",
            f"/admin/fixtures/fixturestatus/{match}/change/",
        ]:
            visitor.open(page)
            assert visitor.page.title() != "owned"
            assert visitor.overflow <= 0, page


@pytest.mark.parametrize("page", [*STATUS, "/admin/", "/admin/tasks/issue/"])
def test_what_screen_readers_need_is_there(visit: Visit, page: str) -> None:
    visitor = visit().log_in()
    visitor.open(page)
    nameless = visitor.page.evaluate(
        """() => [...document.querySelectorAll(
                'button, a[href], input:not([type=hidden]), select, textarea, svg[role=img]')]
            .filter(e => e.offsetParent !== null || e.tagName === 'svg')
            .filter(e => !(e.innerText || '').trim() && !e.getAttribute('aria-label') && !e.title && !e.value
                && !(e.labels && e.labels.length) && !e.textContent.trim() && !e.placeholder)
            .map(e => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    assert visitor.page.locator("h1").count() == 1
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.getAttribute('href')") in ("#main", "#content-start")


def test_the_middle_stays_usable_while_it_renews(visit: Visit) -> None:
    visitor = visit().log_in()
    page = visitor.page
    page.focus("#live a >> nth=3")
    address = page.evaluate("document.activeElement.getAttribute('href')")
    with page.expect_response(lambda r: r.request.headers.get("x-broker-refresh") == "1"):
        pass
    page.wait_for_timeout(200)
    assert page.evaluate("document.activeElement.getAttribute('href')") == address
    page.click("#live-note button")
    assert "Resume" in visitor.text("#live-note")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_axe_finds_nothing_serious(visit: Visit, scheme: str, width: int) -> None:
    visitor = visit(locale="ja-JP", color_scheme=scheme, width=width).log_in()
    things = ["/admin/redis/", "/admin/tasks/issue/1/change/", "/admin/feeds/item/1/change/"]
    found = []
    for path in [*STATUS, "/status/fixtures/reports/", *LISTS, *things]:
        assert visitor.open(path).status == 200
        seen = len(visitor.problems)
        violations = Axe().run(visitor.page).response["violations"]
        del visitor.problems[seen:]  # axe tries styles of its own, which the policy refuses
        for rule in violations:
            if rule["impact"] in ("serious", "critical"):
                found.append((path, rule["id"], rule["nodes"][0]["html"][:200]))
    assert found == []
