"""People in the admin: accounts, failed log-ins, second factors, and who did what.

Members of the group ``admin`` manage people, but nobody can grant more than they have: only a superuser makes
superusers, changes their accounts, grants single permissions or changes what a group may do.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import ManyToManyField, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django_otp.plugins.otp_static.models import StaticDevice
from django_otp.plugins.otp_totp.models import TOTPDevice

from broker_project.console.admin_base import ActionReport, EvidenceAdmin, confirmed_action
from broker_project.console.lists import DateRangeFilter
from broker_project.models import LogInFailure, SecondFactor
from broker_project.people.access import STATUS_GROUPS
from broker_project.people.second_factor import devices

# Their own pages show secrets and let them be edited.
for model in (User, Group, TOTPDevice, StaticDevice):
    admin.site.unregister(model)


@admin.register(User)
class PeopleAdmin(UserAdmin):  # type: ignore[type-arg]
    SUPERUSERS_DECIDE = ("is_superuser", "user_permissions")

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[Any, ...]:
        fields = tuple(super().get_readonly_fields(request, obj))
        return fields if request.user.is_superuser else (*fields, *self.SUPERUSERS_DECIDE)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_change_permission(request, obj) and may_touch(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_delete_permission(request, obj) and may_touch(request, obj)

    def formfield_for_manytomany(
        self, db_field: ManyToManyField[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        if db_field.name == "groups" and not request.user.is_superuser:
            # Our groups, and those the person is in already. A group that a superuser made may allow anything.
            match = request.resolver_match
            person = match.kwargs.get("object_id") if match else None
            ours = Q(name__in=STATUS_GROUPS)
            if person and str(person).isdecimal():
                ours |= Q(user=person)
            kwargs["queryset"] = Group.objects.filter(ours).distinct()
        return super().formfield_for_manytomany(db_field, request, **kwargs)


def may_touch(request: HttpRequest, person: User | None) -> bool:
    return person is None or request.user.is_superuser or not person.is_superuser


@admin.register(Group)
class GroupsAdmin(GroupAdmin):
    """Only superusers change what a group may do; others can see it."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.is_superuser

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return request.user.is_superuser

    def has_delete_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return request.user.is_superuser


@admin.register(LogInFailure)
class LogInFailureAdmin(EvidenceAdmin[LogInFailure]):
    list_display = ["attempt_time", "username", "ip_address", "failures_since_start", "is_locked"]
    list_filter = [("attempt_time", DateRangeFilter)]
    search_fields = ["username", "ip_address"]
    search_help_text = _("Name or address")
    empty_hint = _("Nobody has failed to log in of late.")
    ordering = ["-pk"]
    sortable_by = []
    fields = ["attempt_time", "username", "ip_address", "failures_since_start", "user_agent", "is_locked"]
    readonly_fields = ["is_locked"]
    actions = ["unlock"]

    @admin.display(description=_("locked"), boolean=True)
    def is_locked(self, row: LogInFailure) -> bool:
        return row.is_locked

    @confirmed_action(description=_("Unlock: forget the failures"))
    def unlock(self, request: HttpRequest, queryset: QuerySet[LogInFailure]) -> ActionReport:
        report = ActionReport(_("forgotten"))
        for row in list(queryset):
            # Each browser has a row of its own, but the lock is on the name and the address.
            same = LogInFailure.objects.filter(username=row.username, ip_address=row.ip_address)
            report.changed += same.count()
            same.delete()
        return report


@admin.register(SecondFactor)
class SecondFactorAdmin(EvidenceAdmin[SecondFactor]):
    list_display = ["person", "is_confirmed", "made_at", "used_at"]
    list_select_related = ["user"]
    list_filter = [("created_at", DateRangeFilter)]
    search_fields = ["user__username"]
    search_help_text = _("Name of the person")
    empty_hint = _("Nobody has a second factor yet. Each person sets it up at “Second factor”.")
    ordering = ["-pk"]
    fields = ["person", "is_confirmed", "made_at", "used_at"]
    readonly_fields = ["person", "is_confirmed", "made_at", "used_at"]
    actions = ["remove"]

    # The package's own column names are not translated.

    @admin.display(description=_("person"), ordering="user")
    def person(self, row: SecondFactor) -> str:
        return str(row.user.get_username())

    @admin.display(description=_("confirmed"), boolean=True, ordering="confirmed")
    def is_confirmed(self, row: SecondFactor) -> bool:
        return bool(row.confirmed)

    @admin.display(description=_("created"), ordering="created_at")
    def made_at(self, row: SecondFactor) -> datetime | None:
        found: datetime | None = row.created_at
        return found

    @admin.display(description=_("last used"), ordering="last_used_at")
    def used_at(self, row: SecondFactor) -> datetime | None:
        found: datetime | None = row.last_used_at
        return found

    @confirmed_action(
        description=_("Take it away: the password alone will do"),
        warning=_("Recovery codes go with it. Make sure that the person is who it says."),
    )
    def remove(self, request: HttpRequest, queryset: QuerySet[SecondFactor]) -> ActionReport:
        report = ActionReport(_("taken away"))
        for row in list(queryset.select_related("user")):
            if not may_touch(request, row.user):
                report.leave(_("a superuser's"))
            elif devices.remove(row.user, request.user.get_username()):
                report.changed += 1
        return report
