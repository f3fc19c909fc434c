"""Repositories: the configured one, and those that people add, each with a namespace of its own."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from broker_project.console.admin_base import ActionReport, ListPage, confirmed_action, run_each
from broker_project.console.lists import Tab
from broker_project.lib.environment import ConfigError
from broker_project.lib.errors import ActionRefused
from broker_project.lib.redis.key_config import check_namespace
from tasks import selectors
from tasks.models import Repository
from tasks.repositories import forget_repositories

FULL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")


class RepositoryForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Repository
        fields = ["full_name", "namespace", "is_enabled"]

    def clean_full_name(self) -> str:
        name = str(self.cleaned_data["full_name"]).strip()
        if not FULL_NAME.fullmatch(name) or name.endswith(("/.", "/..", ".git")):
            raise ValidationError(gettext("Write it as owner/name."))
        if Repository.objects.filter(full_name__iexact=name).exclude(pk=self.instance.pk).exists():
            raise ValidationError(gettext("This repository is there already."))
        return name

    def clean_namespace(self) -> str:
        namespace = str(self.cleaned_data["namespace"]).strip()
        try:
            check_namespace("namespace", namespace)
        except ConfigError:
            raise ValidationError(gettext("Letters, digits and . _ - only, at most 63.")) from None
        if namespace == settings.BROKER.redis_names.namespace:
            raise ValidationError(gettext("This is the namespace of the configured repository."))
        return namespace


@admin.register(Repository)
class RepositoryAdmin(ListPage[Repository]):
    form = RepositoryForm
    list_display = [
        "full_name",
        "namespace",
        "is_enabled",
        "default_branch",
        "last_full_sync_at",
        "last_error",
    ]
    list_filter = ["is_enabled"]
    search_fields = ["full_name", "namespace"]
    actions = ["enable", "disable", "read_anew"]
    empty_hint = _("Set GITHUB_REPOSITORY, or add one here.")
    SEEN = ["default_branch", "synced_until_at", "last_full_sync_at", "last_error"]

    def get_fields(self, request: HttpRequest, obj: Repository | None = None) -> list[Any]:
        return ["full_name", "namespace", "is_enabled", *(self.SEEN if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Repository | None = None) -> list[str]:
        # Another name would be another repository, and the keys lie under the namespace.
        return ["full_name", "namespace", *self.SEEN] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: Repository | None = None) -> bool:
        return False  # its history goes with it; switch it off instead

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        counts = selectors.repository_counts()
        return [
            Tab(_("enabled"), counts[True], (("is_enabled__exact", "1"),)),
            Tab(_("disabled"), counts[False], (("is_enabled__exact", "0"),)),
        ]

    def save_model(self, request: HttpRequest, obj: Repository, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        forget_repositories()

    def switch(self, queryset: QuerySet[Repository], on: bool, done: Any, otherwise: Any) -> ActionReport:
        def switch(row: Repository) -> None:
            if not Repository.objects.filter(pk=row.pk, is_enabled=not on).update(is_enabled=on):
                raise ActionRefused(otherwise)

        report = run_each(queryset, done, switch)
        forget_repositories()
        return report

    @confirmed_action(description=_("Enable"), permission="change")
    def enable(self, request: HttpRequest, queryset: QuerySet[Repository]) -> ActionReport:
        return self.switch(queryset, True, _("enabled"), _("enabled already"))

    @confirmed_action(
        description=_("Disable: its issues are no longer on offer"),
        warning=_("Work under way goes on."),
        permission="change",
    )
    def disable(self, request: HttpRequest, queryset: QuerySet[Repository]) -> ActionReport:
        return self.switch(queryset, False, _("disabled"), _("disabled already"))

    @confirmed_action(description=_("Read everything anew with the next poll"), permission="change")
    def read_anew(self, request: HttpRequest, queryset: QuerySet[Repository]) -> ActionReport:
        report = ActionReport(_("to be read anew"))
        report.changed = queryset.update(last_full_sync_at=None, issues_etag="", pulls_etag="")
        return report
