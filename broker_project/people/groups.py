"""The three groups. Permissions are created after a migration, so the groups get theirs then.

A viewer sees; an operator also acts (the admin's actions need the change permission); an admin also manages agents,
tokens, prompts, flags and people. What somebody adds to a group by hand stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import AppConfig
from django.contrib.auth.models import Group, Permission
from django.db.models import Q

from broker_project.people.access import STATUS_GROUPS

OURS = ("broker", "tasks", "feeds", "fixtures")
# Changing these decides who gets in, or what agents and models are told.
ADMIN_ONLY = {
    "tasks": ("agent", "repository", "prompttemplate"),
    "feeds": ("feedsettings",),
    "fixtures": ("fixturesettings",),
    "broker": ("loginfailure", "secondfactor"),
}
# Hidden from the others: names, addresses, and who has a second factor.
HIDDEN = Q(content_type__app_label="broker", content_type__model__in=ADMIN_ONLY["broker"])


def permissions_of(name: str) -> Iterable[Permission]:
    ours = Permission.objects.filter(content_type__app_label__in=OURS)
    viewing = Q(codename__startswith="view_") & ~HIDDEN
    if name == "viewer":
        return ours.filter(viewing)
    if name == "operator":
        reserved = Q(pk__in=[])
        for app, models in ADMIN_ONLY.items():
            reserved |= Q(content_type__app_label=app, content_type__model__in=models)
        acting = Q(codename__startswith="change_") & ~reserved & ~Q(codename="change_redis")
        return ours.filter(viewing | acting | Q(codename__in=["add_feed"]))
    people = Q(content_type__app_label="auth", content_type__model__in=["user", "group"])
    deeds = Q(content_type__app_label="admin", codename="view_logentry")  # who did what
    return Permission.objects.filter(Q(content_type__app_label__in=OURS) | people | deeds)


def make_groups(sender: AppConfig | None = None, using: str = "default", **kwargs: Any) -> None:
    """After a migration, when the permissions of the last of our apps exist."""
    if sender is not None and sender.label != OURS[-1]:
        return
    for name in STATUS_GROUPS:
        group, _made = Group.objects.using(using).get_or_create(name=name)
        group.permissions.add(*permissions_of(name))
