"""Which repositories there are: the configured one, and those that people added in the admin."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from broker_project.lib.config.outside import Source
from broker_project.lib.errors import SwitchedOff
from tasks.models import Repository

MAX_NAMESPACE = 63


def configured_repository() -> Repository:
    """The row of ``GITHUB_REPOSITORY``, made if need be; it always has the configured namespace.

    Where the setting names another repository than before, the former one is kept, disabled, under another
    namespace. Raises SwitchedOff if no repository is configured.
    """
    name: str = settings.BROKER.github.repository
    namespace: str = settings.BROKER.redis_names.namespace
    if not name or settings.BROKER.github.source is Source.OFF:
        raise SwitchedOff("GitHub", "no repository is configured")
    found = Repository.objects.filter(full_name__iexact=name, namespace=namespace).first()
    return found or appoint_repository(name, namespace)


def appoint_repository(name: str, namespace: str) -> Repository:
    with transaction.atomic():
        rows = Repository.objects.select_for_update()
        former = rows.filter(namespace=namespace).exclude(full_name__iexact=name).first()
        if former is not None:
            suffix = f"-{former.pk}"
            former.namespace = namespace[: MAX_NAMESPACE - len(suffix)] + suffix
            former.is_enabled = False
            former.save(update_fields=["namespace", "is_enabled"])
        row = rows.filter(full_name__iexact=name).first()
        if row is None:
            # Two processes that start at once: the second finds the first one's row.
            row, _ = Repository.objects.get_or_create(full_name=name, defaults={"namespace": namespace})
        if row.namespace != namespace:
            # Its caches lie under the other name, so everything is read anew.
            row.namespace, row.is_enabled, row.last_full_sync_at = namespace, True, None
            row.issues_etag = row.pulls_etag = ""
            row.save()
    return row


def repositories_to_poll() -> list[Repository]:
    """Fresh rows of what is to be polled, the configured one first. Empty while GitHub is off."""
    try:
        configured = configured_repository()
    except SwitchedOff:
        return []
    others = Repository.objects.filter(is_enabled=True).exclude(pk=configured.pk)
    return [*([configured] if configured.is_enabled else []), *others]
