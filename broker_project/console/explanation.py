"""Where one thing stands, in words for its page: what it waits for and what a person can do about it."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from broker_project.lib.config.dynamic import maintenance
from broker_project.models import Poller


@dataclass(frozen=True)
class Standing:
    """``is_well``: nothing keeps it, or it is done."""

    words: str
    advice: str = ""
    is_well: bool = False


def standstill(*pollers: str) -> Standing | None:
    """What stops the work of these pollers for everything alike, if anything does."""
    if (flag := maintenance()).is_on:
        words = _("Maintenance: all pollers stand still.")
        return Standing(f"{words} {flag.reason}".strip(), _("An admin switches it off on the page of Redis."))
    rows = Poller.objects.filter(name__in=pollers, paused_at__isnull=False)
    paused = list(rows.order_by("name").values_list("name", "paused_by"))
    if len(paused) < len(pollers):
        return None
    name, who = paused[0]
    words = _("The poller “%(name)s” is paused by %(who)s.") % {"name": name, "who": who or "?"}
    return Standing(words, _("Resume it on its page."))
