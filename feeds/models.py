"""Seed 004's table ``items``, and what else is known of an item in tables beside it."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator, URLValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from broker_project.lib.redaction import redact
from broker_project.models import StatusEvent
from feeds.fields import LongNameIndex, TimestampField
from feeds.lifecycle import EVENT_WORDS, ItemState, Reason, Status
from feeds.prompt_texts import (
    DEFAULT_CRITERIA,
    DEFAULT_POST_TEMPLATE,
    DEFAULT_SCREENING_PROMPT,
    DEFAULT_SUMMARY_PROMPT,
    check_post_template,
    check_screening_prompt,
    check_summary_prompt,
)


class Feed(models.Model):
    """A feed, with the outcome of its last fetch and the time of the next."""

    class Source(models.TextChoices):
        SETTING = "setting", _("FEED_URLS")
        ADMIN = "admin", _("added here")

    url = models.CharField(
        _("address"), max_length=2000, unique=True, validators=[URLValidator(schemes=["http", "https"])]
    )
    title = models.CharField(_("title"), max_length=300, blank=True)
    is_enabled = models.BooleanField(_("enabled"), default=True)
    is_dry_run = models.BooleanField(
        _("dry run"), default=False, help_text=_("Items are summarised, their posts stay drafts.")
    )
    source = models.CharField(_("given by"), max_length=10, choices=Source.choices, default=Source.ADMIN)
    etag = models.CharField(_("ETag"), max_length=500, blank=True)
    last_modified = models.CharField(_("last modified"), max_length=100, blank=True)
    last_fetch_at = models.DateTimeField(_("last fetch"), null=True, blank=True)
    next_fetch_at = models.DateTimeField(_("next fetch"), null=True, blank=True, db_index=True)
    failures = models.PositiveIntegerField(_("failures in a row"), default=0)
    last_error = models.TextField(_("last error"), blank=True)
    last_added = models.PositiveIntegerField(_("added last time"), default=0)
    last_skipped = models.PositiveIntegerField(_("broken entries last time"), default=0)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("feed")
        verbose_name_plural = _("feeds")
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.title or redact(self.url)


class Item(models.Model):
    """Exactly the nine columns of the seed. Only :mod:`feeds.services` changes a row."""

    id = models.AutoField(primary_key=True)
    url = models.TextField(_("address"))
    title = models.TextField(_("title"))
    published_at = TimestampField(_("published"))
    status = models.IntegerField(_("status"), choices=Status.choices, default=Status.UNPROCESSED)
    reason = models.IntegerField(_("reason"), choices=Reason.choices, null=True, blank=True)
    retry_count = models.IntegerField(_("retries"), default=0)
    created_at = TimestampField(_("created"))
    last_checked_at = TimestampField(_("last checked"))

    class Meta:
        db_table = "items"
        verbose_name = _("item")
        verbose_name_plural = _("items")
        constraints = [
            # By an expression: a constraint on the field itself gets another name on SQLite.
            models.UniqueConstraint(models.F("url"), name="idx_items_url"),
        ]
        indexes = [
            LongNameIndex(fields=["status", "last_checked_at"], name="idx_items_status_last_checked_at"),
            LongNameIndex(fields=["status", "published_at"], name="idx_items_status_published_at"),
        ]

    def __str__(self) -> str:
        return self.title

    @property
    def state(self) -> ItemState:
        reason = None if self.reason is None else Reason(self.reason)
        return ItemState(Status(self.status), reason, self.retry_count, self.last_checked_at)


class ItemDetail(models.Model):
    """An item's page, verdict, summary and cost."""

    class Verdict(models.TextChoices):
        YES = "YES", _("worth a summary")
        NO = "NO", _("not worth a summary")
        WAIT = "WAIT", _("page not ready")

    class SummarySource(models.TextChoices):
        GEMINI = "gemini", _("Gemini")
        OFFLINE = "offline", _("extracted offline")
        EDITED = "edited", _("edited by a person")

    item = models.OneToOneField(Item, models.CASCADE, primary_key=True, related_name="detail")
    feed = models.ForeignKey(
        Feed, models.SET_NULL, null=True, blank=True, related_name="details", verbose_name=_("feed")
    )
    page_excerpt = models.TextField(_("page excerpt"), blank=True)
    documents = models.JSONField(_("documents"), default=list, blank=True)
    verdict = models.CharField(_("verdict"), max_length=4, choices=Verdict.choices, blank=True)
    verdict_reason = models.TextField(_("reason of the verdict"), blank=True)
    screened_at = models.DateTimeField(_("screened"), null=True, blank=True)
    summary = models.TextField(_("summary"), blank=True)
    summary_source = models.CharField(
        _("summary by"), max_length=10, choices=SummarySource.choices, blank=True
    )
    summary_notes = models.JSONField(_("notes"), default=dict, blank=True)
    summarised_at = models.DateTimeField(_("summarised"), null=True, blank=True)
    model = models.CharField(_("model"), max_length=100, blank=True)
    input_tokens = models.PositiveIntegerField(_("tokens read"), default=0)
    output_tokens = models.PositiveIntegerField(_("tokens written"), default=0)
    cost_usd = models.DecimalField(_("cost (USD)"), max_digits=12, decimal_places=6, default=0)

    class Meta:
        verbose_name = _("item detail")
        verbose_name_plural = _("item details")
        indexes = [
            # The usage of a month is read from this index alone.
            models.Index(
                fields=["screened_at", "input_tokens", "output_tokens", "cost_usd"],
                name="idx_feeds_detail_usage",
            )
        ]

    def __str__(self) -> str:
        return f"detail of item {self.item_id}"


class ItemLease(models.Model):
    """Who works on an item: a table of :mod:`broker_project.lib.claims`."""

    item = models.OneToOneField(Item, models.CASCADE, primary_key=True, related_name="lease")
    token = models.CharField(_("token"), max_length=32)
    claimed_by = models.CharField(_("claimed by"), max_length=150)
    claimed_at = models.DateTimeField(_("claimed"))
    expires_at = models.DateTimeField(_("expires"), db_index=True)

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")

    def __str__(self) -> str:
        return f"{self.claimed_by} until {self.expires_at:%H:%M:%S}"


class Post(models.Model):
    """An item's one post. Text and key are stored before Mastodon is called, and always sent together."""

    class State(models.TextChoices):
        DRAFT = "draft", _("draft")
        INTENT = "intent", _("being posted")
        UNCLEAR = "unclear", _("unclear")
        POSTED = "posted", _("posted")

    item = models.OneToOneField(Item, models.CASCADE, primary_key=True, related_name="post")
    text = models.TextField(_("text"))
    idempotency_key = models.CharField(_("idempotency key"), max_length=64, unique=True)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.DRAFT)
    status_id = models.CharField(_("status id"), max_length=64, blank=True)
    url = models.CharField(_("address"), max_length=2000, blank=True)
    created_at = models.DateTimeField(_("written"))
    intent_at = models.DateTimeField(_("intended"), null=True, blank=True)
    posted_at = models.DateTimeField(_("posted"), null=True, blank=True)

    class Meta:
        verbose_name = _("post")
        verbose_name_plural = _("posts")
        indexes = [models.Index(fields=["state", "posted_at"], name="idx_feeds_post_state_posted")]

    def __str__(self) -> str:
        return f"{self.state}: {self.text[:60]}"


class ItemEvent(StatusEvent):
    """The timeline of an item."""

    item = models.ForeignKey(Item, models.CASCADE, related_name="events")
    words = EVENT_WORDS

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.what}"

    @staticmethod
    def status_label(word: str) -> str:
        name = word.upper()
        return str(Status[name].label) if name in Status.__members__ else word


class FeedSettings(models.Model):
    """Prompts, models and limits: one row, edited in the admin."""

    screening_prompt = models.TextField(
        _("screening prompt"), default=DEFAULT_SCREENING_PROMPT, validators=[check_screening_prompt]
    )
    criteria = models.TextField(_("criteria"), default=DEFAULT_CRITERIA)
    summary_prompt = models.TextField(
        _("summary prompt"), default=DEFAULT_SUMMARY_PROMPT, validators=[check_summary_prompt]
    )
    post_template = models.TextField(
        _("post template"), default=DEFAULT_POST_TEMPLATE, validators=[check_post_template]
    )
    screening_model = models.CharField(
        _("screening model"), max_length=100, blank=True, help_text=_("Empty: GEMINI_SCREENING_MODEL.")
    )
    summary_model = models.CharField(
        _("summary model"), max_length=100, blank=True, help_text=_("Empty: GEMINI_SUMMARY_MODEL.")
    )
    summary_characters = models.PositiveIntegerField(
        _("characters of a summary"), default=200, validators=[MinValueValidator(50), MaxValueValidator(2000)]
    )
    page_characters = models.PositiveIntegerField(
        _("characters read of a page"),
        default=20_000,
        validators=[MinValueValidator(500), MaxValueValidator(500_000)],
    )
    max_documents = models.PositiveIntegerField(
        _("documents read per item"), default=10, validators=[MinValueValidator(1), MaxValueValidator(50)]
    )
    sends_files = models.BooleanField(
        _("send PDFs as files"),
        default=True,
        help_text=_("Off: their text is extracted here, for models without file input."),
    )
    screening_input_price = models.DecimalField(
        _("USD per million tokens read (screening)"), max_digits=8, decimal_places=3, default=0.1
    )
    screening_output_price = models.DecimalField(
        _("USD per million tokens written (screening)"), max_digits=8, decimal_places=3, default=0.4
    )
    summary_input_price = models.DecimalField(
        _("USD per million tokens read (summary)"), max_digits=8, decimal_places=3, default=0.3
    )
    summary_output_price = models.DecimalField(
        _("USD per million tokens written (summary)"), max_digits=8, decimal_places=3, default=2.5
    )
    changed_at = models.DateTimeField(_("changed"), auto_now=True)

    class Meta:
        verbose_name = _("feed settings")
        verbose_name_plural = _("feed settings")

    def __str__(self) -> str:
        return str(_("Prompts, models and limits"))

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.pk = 1  # there is only ever one
        super().save(*args, **kwargs)

    @classmethod
    def current(cls) -> FeedSettings:
        """The stored settings, or the defaults while nobody has changed any."""
        return cls.objects.filter(pk=1).first() or cls()
