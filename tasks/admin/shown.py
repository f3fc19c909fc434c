"""What several lists show the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from broker_project.console.admin_base import ActionReport, run_each, who
from broker_project.lib.hidden_text import made_visible
from tasks.models import Issue, Repository

TITLE_CHARACTERS = 90


def short(text: str, characters: int = TITLE_CHARACTERS) -> str:
    """A beginning that fits a column, with hidden characters shown."""
    text = made_visible(text)
    return text if len(text) <= characters else text[: characters - 1] + "…"


def local_time(moment: datetime) -> str:
    return formats.localize(timezone.localtime(moment))


def outside_link(address: str, text: str) -> str | SafeString:
    """A link out, if the address is one that a browser should follow."""
    if not address.startswith(("http://", "https://")):
        return text
    return format_html('<a href="{}" rel="noopener noreferrer">{}</a>', address, text)


def label_chips(labels: Iterable[str]) -> SafeString:
    return format_html_join(" ", '<span class="chip">{}</span>', ((short(label, 40),) for label in labels))


def issue_link(repository_id: int, number: int) -> SafeString:
    """To the issue's page by its number, whatever its primary key."""
    address = reverse("admin:tasks_issue_by_number", args=[repository_id, number])
    return format_html('<a href="{}">#{}</a>', address, number)


def each_number(
    pairs: Iterable[tuple[Repository, int]], done: Any, service: Callable[..., None], request: HttpRequest
) -> ActionReport:
    """A service of :mod:`tasks.services.admin_actions` for each issue."""
    return run_each(pairs, done, lambda pair: service(*pair, who=who(request), now=timezone.now()))


def repository_of(issue: Issue) -> tuple[Repository, int]:
    return issue.repository, issue.number


class RoleFilter(admin.SimpleListFilter):
    """Roles of the agents file; listing the column's own values would read every row."""

    title = gettext_lazy("role")
    parameter_name = "role"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        from django.conf import settings

        return [(role, role) for role in sorted(settings.BROKER.role_names)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(role=self.value()) if self.value() else queryset
