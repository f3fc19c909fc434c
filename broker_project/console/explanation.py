"""Where one thing stands, for its page: what it waits for and what a person can do about it.

Each app decides on a code in its own ``explanation.py`` and keeps the words in the table beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.utils import formats, timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from broker_project.lib.config.dynamic import maintenance
from broker_project.lib.sentences import Words
from broker_project.models import Poller


@dataclass(frozen=True)
class Explanation:
    """A code, its words and what they speak of. Said in the reader's language."""

    code: StrEnum
    words: Words
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        return self._say(self.words.sentence)

    @property
    def advice(self) -> str:
        return self._say(self.words.advice) if self.words.advice else ""

    @property
    def is_well(self) -> bool:
        return self.words.is_well

    def _say(self, words: str) -> str:
        shown = {
            name: formats.localize(timezone.localtime(value)) if isinstance(value, datetime) else value
            for name, value in self.parameters.items()
        }
        return gettext(words) % shown


class Stopped(StrEnum):
    """What stops the work of whole pollers."""

    MAINTENANCE = "maintenance"
    MAINTENANCE_BECAUSE = "maintenance_because"
    PAUSED = "paused"


WORDS: dict[Stopped, Words] = {
    Stopped.MAINTENANCE: Words(
        _("Maintenance: all pollers stand still."), _("An admin switches it off on the page of Redis.")
    ),
    Stopped.MAINTENANCE_BECAUSE: Words(
        _("Maintenance: all pollers stand still. %(reason)s"),
        _("An admin switches it off on the page of Redis."),
    ),
    Stopped.PAUSED: Words(_("The poller “%(name)s” is paused by %(who)s."), _("Resume it on its page.")),
}


def why_stopped(*pollers: str) -> Explanation | None:
    """What stops all of these pollers, and so everything that waits for them; None if one of them runs."""

    def stopped(code: Stopped, **parameters: str) -> Explanation:
        return Explanation(code, WORDS[code], parameters)

    if (flag := maintenance()).is_on:
        if flag.reason:
            return stopped(Stopped.MAINTENANCE_BECAUSE, reason=flag.reason)
        return stopped(Stopped.MAINTENANCE)
    rows = Poller.objects.filter(name__in=pollers, paused_at__isnull=False)
    paused = list(rows.order_by("name").values_list("name", "paused_by"))
    if len(paused) < len(pollers):
        return None
    name, who = paused[0]
    return stopped(Stopped.PAUSED, name=name, who=who or "?")
