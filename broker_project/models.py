"""What all apps share: the abstract event, the pollers and their runs; and proxies of log-in tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from axes.models import AccessAttempt
from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django_otp.plugins.otp_totp.models import TOTPDevice


class StatusEvent(models.Model):
    """One status change: what, from, to, why, who, when. Each app has a table of its own."""

    what = models.CharField(_("what"), max_length=60)
    from_status = models.CharField(_("from"), max_length=30, blank=True)
    to_status = models.CharField(_("to"), max_length=30, blank=True)
    reason = models.TextField(_("reason"), blank=True)
    who = models.CharField(_("who"), max_length=150, blank=True)
    at = models.DateTimeField(_("when"), db_index=True)

    words: ClassVar[
        Mapping[str, Promise]
    ] = {}  # how people read ``what``, where its translation is not enough

    class Meta:
        abstract = True

    @staticmethod
    def status_label(word: str) -> str:
        """Events keep the word of a status; people read its label in their language."""
        return gettext(word) if word else ""

    @property
    def shown_what(self) -> str:
        return str(self.words.get(self.what) or gettext(self.what))

    @property
    def shown_from(self) -> str:
        return self.status_label(self.from_status)

    @property
    def shown_to(self) -> str:
        return self.status_label(self.to_status)

    @property
    def shown_reason(self) -> str:
        """Why, in the reader's language where the event keeps a code for it."""
        return self.reason


class Poller(models.Model):
    """A poller as an operator sees it. The table of pollers itself is code: :mod:`broker_project.ops.clock.pollers`."""

    name = models.CharField(_("name"), max_length=30, primary_key=True)
    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True)
    paused_by = models.CharField(_("paused by"), max_length=150, blank=True)

    class Meta:
        verbose_name = _("poller")
        verbose_name_plural = _("pollers")
        ordering = ["name"]
        # Redis has no model of its own; its permissions are kept here.
        permissions = [
            ("view_redis", _("Can look into Redis")),
            ("change_redis", _("Can switch flags and settings in Redis")),
        ]

    def __str__(self) -> str:
        return self.name


class PollerRun(models.Model):
    """One run: it began; how it ended, with its counts."""

    class Outcome(models.TextChoices):
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")
        BUSY = "busy", _("already running")
        PAUSED = "paused", _("paused")
        MAINTENANCE = "maintenance", _("maintenance")

    name = models.CharField(_("poller"), max_length=30)
    by = models.CharField(_("started by"), max_length=150)
    started_at = models.DateTimeField(_("started"))
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    outcome = models.CharField(_("outcome"), max_length=12, choices=Outcome.choices, default=Outcome.RUNNING)
    counts = models.JSONField(_("counts"), default=dict, blank=True)
    progress = models.CharField(_("progress"), max_length=200, blank=True)
    error = models.TextField(_("error"), blank=True)

    class Meta:
        verbose_name = _("poller run")
        verbose_name_plural = _("poller runs")
        indexes = [models.Index(fields=["name", "-started_at"], name="idx_poller_run_name_started")]

    def __str__(self) -> str:
        return f"{self.name} {self.started_at:%Y-%m-%d %H:%M:%S}"


class LogInFailure(AccessAttempt):  # type: ignore[misc]
    """Failed log-ins with one name from one address, as django-axes counts them."""

    class Meta:
        proxy = True
        verbose_name = _("failed log-in")
        verbose_name_plural = _("failed log-ins")

    @property
    def is_locked(self) -> bool:
        since = timezone.now() - timedelta(minutes=settings.BROKER.access.login_lock_minutes)
        is_recent = bool(self.attempt_time >= since)
        return is_recent and int(self.failures_since_start) >= settings.BROKER.access.login_failures


class SecondFactor(TOTPDevice):  # type: ignore[misc]
    """A person's authenticator, as django-otp keeps it."""

    class Meta:
        proxy = True
        verbose_name = _("second factor")
        verbose_name_plural = _("second factors")
