from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig
from django.db.models.signals import post_migrate


class BrokerConfig(AppConfig):
    name = "broker_project"
    label = "broker"
    verbose_name = "Broker"
    default = True
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from broker_project.ops import checks  # noqa: F401 - registers the system checks
        from broker_project.people.groups import make_groups

        post_migrate.connect(make_groups, dispatch_uid="broker_project.people.groups")


class BrokerAdminConfig(AdminConfig):
    default_site = "broker_project.console.site.BrokerAdminSite"
    default = False
