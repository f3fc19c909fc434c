"""``manage.py simulate``: what so many agents, issues and tokens would come to. Reads and changes nothing."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict, fields
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from bench.simulation import BadScenario, Forecast, Limit, Scenario, Waits, simulate

# What each figure means; also the words of --help.
FIGURES = {
    "agents": gettext_noop("agents"),
    "backlog": gettext_noop("open issues at the beginning"),
    "arrivals_per_hour": gettext_noop("new issues an hour"),
    "hours": gettext_noop("hours to simulate"),
    "task_minutes": gettext_noop("mean length of a task in minutes"),
    "task_spread": gettext_noop("spread of the length (standard deviation, as a part of the mean)"),
    "review_share": gettext_noop("share of the tasks that come back as a review"),
    "review_minutes": gettext_noop("mean length of a review in minutes"),
    "review_delay_minutes": gettext_noop("minutes before a review is offered"),
    "poll_seconds": gettext_noop("seconds between two polls of GitHub"),
    "tokens": gettext_noop("GitHub tokens or installations, each with limits of its own"),
    "writes_per_minute": gettext_noop("writes a minute that GitHub takes from a token"),
    "requests_per_hour": gettext_noop("requests an hour that GitHub takes from a token"),
    "assign_seconds": gettext_noop("seconds from a claim to the answer"),
    "seed": gettext_noop("seed of the random numbers"),
}
LIMITS = {
    Limit.WORK: gettext_noop("the work: there is no more to do"),
    Limit.AGENTS: gettext_noop("the agents: all of them are busy"),
    Limit.WRITES: gettext_noop("GitHub's writes a minute"),
    Limit.REQUESTS: gettext_noop("GitHub's requests an hour"),
}


class Command(BaseCommand):
    help = "Predict waiting times, throughput and GitHub's budget for a fleet of agents."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        for name, words in FIGURES.items():
            default = getattr(Scenario, name)
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=type(default),
                default=default,
                metavar="N",
                help=f"{words} (%(default)s)",
            )
        parser.add_argument("--no-webhooks", action="store_true", help="new issues are found by polls alone")
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument(
            "--language",
            choices=[code for code, _name in settings.LANGUAGES],
            default=settings.LANGUAGE_CODE,
            help="of the table (%(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        given = {field.name: options[field.name] for field in fields(Scenario) if field.name in FIGURES}
        scenario = Scenario(**given, has_webhooks=not options["no_webhooks"])
        try:
            forecast = simulate(scenario)
        except BadScenario as error:
            raise CommandError(f"--{str(error).replace('_', '-')}") from None
        if options["json"]:
            document = {"scenario": asdict(scenario), "forecast": forecast.as_dict()}
            self.stdout.write(json.dumps(document, indent=2))
            return
        with translation.override(options["language"]):
            for line in table(scenario, forecast):
                self.stdout.write(line)


def table(scenario: Scenario, forecast: Forecast) -> list[str]:
    given = [(_(words), f"{getattr(scenario, name):g}") for name, words in FIGURES.items() if name != "seed"]
    given.append(
        (
            _("new issues are known"),
            _("at once, by webhooks") if scenario.has_webhooks else _("at the next poll"),
        )
    )
    found = [
        (_("tasks completed"), f"{forecast.completed:,}"),
        (_("of these, reviews"), f"{forecast.reviews:,}"),
        (_("tasks an hour"), f"{forecast.tasks_per_hour:,.1f}"),
        (_("until the work was done, or the time was up"), seconds(forecast.elapsed_seconds)),
        (_("not begun by then"), f"{forecast.left_over:,}"),
        (_("agents at work"), f"{forecast.busy_share:.0%}"),
        (_("an agent waits for a task"), waits(forecast.agent_wait)),
        (_("an issue waits for an agent"), waits(forecast.issue_wait)),
        (_("writes to GitHub"), f"{forecast.writes:,}"),
        (_("most writes in a minute"), f"{forecast.peak_writes_a_minute:,}"),
        (_("requests to GitHub"), f"{forecast.requests:,}"),
        (_("most requests in an hour"), f"{forecast.peak_requests_an_hour:,}"),
    ]
    bars = [(_(LIMITS[Limit(name)]), f"{value:,.0f}") for name, value in forecast.ceilings.items()]
    return [
        *part(_("Given"), given),
        *part(_("Forecast"), found),
        *part(_("Tasks an hour that each limit would allow"), bars),
        "",
        _("The binding limit: %(limit)s.") % {"limit": _(LIMITS[forecast.binding])},
    ]


def part(title: str, rows: list[tuple[str, str]]) -> list[str]:
    size = max(width(words) for words, _value in rows)
    return ["", title, *(f"  {words}{' ' * (size - width(words))}  {value}" for words, value in rows)]


def width(text: str) -> int:
    """Columns on a screen: most Japanese letters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def waits(found: Waits) -> str:
    return _("%(mean)s on average, half within %(p50)s, 95%% within %(p95)s") % {
        "mean": seconds(found.mean),
        "p50": seconds(found.p50),
        "p95": seconds(found.p95),
    }


def seconds(value: float) -> str:
    if value < 90:
        return _("%(number)s s") % {"number": f"{value:.1f}"}
    if value < 5400:
        return _("%(number)s min") % {"number": f"{value / 60:.1f}"}
    return _("%(number)s h") % {"number": f"{value / 3600:.1f}"}
