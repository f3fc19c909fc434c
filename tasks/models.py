"""Issues, pull requests, agents and who works on what.

GitHub's labels are what people see; the :class:`Assignment` row is what decides. Redis holds nothing that cannot be
built again from these tables and GitHub.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from broker_project.lib.hidden_text import made_visible
from broker_project.models import StatusEvent
from tasks.lifecycle import LIVE_STATES, AssignmentState, TaskType, process_id
from tasks.reasons import Reason

STATE_CHOICES = [
    (AssignmentState.CLAIMING, _("being assigned")),
    (AssignmentState.LIVE, _("at work")),
    (AssignmentState.COMPLETED, _("completed")),
    (AssignmentState.FAILED, _("failed")),
    (AssignmentState.RELEASED, _("released")),
    (AssignmentState.LOST, _("lost")),
    (AssignmentState.ABORTED, _("not assigned")),
]
TYPE_CHOICES = [
    (TaskType.DEVELOPMENT, _("development")),
    (TaskType.REVIEW, _("review")),
    (TaskType.FIX, _("fix")),
]


def in_readers_language(text: str, coded: Any) -> str:
    """A row's reason from its code; the text as it is where there is none."""
    reason = Reason.from_row(text, coded)
    return reason.sentence if reason else ""


class Repository(models.Model):
    """A repository that issues come from. The configured one has the configured namespace."""

    full_name = models.CharField(_("owner/name"), max_length=140, unique=True)
    namespace = models.CharField(_("Redis namespace"), max_length=63, unique=True)
    is_enabled = models.BooleanField(_("enabled"), default=True)
    default_branch = models.CharField(_("default branch"), max_length=250, blank=True)
    # Everything changed since then is asked for again, with an overlap; NULL asks for all that is open.
    synced_until_at = models.DateTimeField(_("synced until"), null=True, blank=True)
    last_full_sync_at = models.DateTimeField(_("last full sync"), null=True, blank=True)
    issues_etag = models.CharField(max_length=200, blank=True)  # of what changed since then
    open_etag = models.CharField(max_length=200, blank=True)  # of all that is open, where one page lists it
    pulls_etag = models.CharField(max_length=200, blank=True)
    last_error = models.TextField(_("last error"), blank=True)

    class Meta:
        verbose_name = _("repository")
        verbose_name_plural = _("repositories")
        ordering = ["full_name"]

    def __str__(self) -> str:
        return self.full_name


class Issue(models.Model):
    """An issue as GitHub last told us, and what we know beside it."""

    repository = models.ForeignKey(
        Repository, on_delete=models.CASCADE, related_name="issues", verbose_name=_("repository")
    )
    number = models.PositiveIntegerField(_("number"))
    title = models.TextField(_("title"))
    body = models.TextField(_("body"), blank=True)
    is_open = models.BooleanField(_("open"), default=True)
    labels = models.JSONField(_("labels"), default=list)
    html_url = models.TextField(_("address"), blank=True)
    author = models.CharField(_("author"), max_length=100, blank=True)
    author_association = models.CharField(_("author's part"), max_length=30, blank=True)  # GitHub's word
    opened_at = models.DateTimeField(_("opened"))
    updated_at = models.DateTimeField(_("updated"))
    raw = models.JSONField(default=dict)  # GitHub's own JSON
    priority = models.PositiveIntegerField(_("priority"), null=True, blank=True)
    review_detected_at = models.DateTimeField(_("review wanted since"), null=True, blank=True)
    # Head commit and comments at the end of the last review; the same again is not offered again.
    reviewed_fingerprint = models.CharField(max_length=80, blank=True)
    lost_attempts = models.PositiveIntegerField(_("lost or failed attempts"), default=0)
    # Why GitHub would not let us assign it; cleared when the issue changes.
    refused_reason = models.TextField(_("refused because"), blank=True)
    coded_refusal = models.JSONField(
        null=True, editable=False
    )  # see Reason.as_json; NULL: only the text is known

    class Meta:
        verbose_name = _("issue")
        verbose_name_plural = _("issues")
        constraints = [models.UniqueConstraint(fields=["repository", "number"], name="uniq_issue_number")]
        indexes = [
            models.Index(fields=["repository", "is_open", "number"], name="idx_issue_open"),
            models.Index(fields=["is_open", "priority"], name="idx_issue_priority"),
        ]

    def __str__(self) -> str:
        return f"#{self.number} {made_visible(self.title)[:80]}"

    @property
    def refusal(self) -> Reason | None:
        return Reason.from_row(self.refused_reason, self.coded_refusal)


class EditedIssue(models.Model):
    """An issue whose words were changed after its approval: the words as approved. It goes with the approval."""

    issue = models.OneToOneField(Issue, on_delete=models.CASCADE, primary_key=True, related_name="edit")
    title = models.TextField(_("title"))
    body = models.TextField(_("body"), blank=True)
    edited_at = models.DateTimeField(_("edited"))

    class Meta:
        verbose_name = _("edited issue")
        verbose_name_plural = _("edited issues")

    def __str__(self) -> str:
        return f"{self.issue_id}"


class PullRequest(models.Model):
    repository = models.ForeignKey(
        Repository, on_delete=models.CASCADE, related_name="pulls", verbose_name=_("repository")
    )
    number = models.PositiveIntegerField(_("number"))
    title = models.TextField(_("title"))
    body = models.TextField(_("body"), blank=True)
    is_open = models.BooleanField(_("open"), default=True)
    labels = models.JSONField(_("labels"), default=list)
    html_url = models.TextField(_("address"), blank=True)
    head_ref = models.CharField(_("head branch"), max_length=250)
    head_sha = models.CharField(_("head commit"), max_length=64)
    base_ref = models.CharField(_("base branch"), max_length=250)
    closes = models.JSONField(_("closes"), default=list)  # issue numbers
    opened_at = models.DateTimeField(_("opened"))
    updated_at = models.DateTimeField(_("updated"))
    # A digest of the review comments, and the pull request's ``updated_at`` when it was taken.
    comments_digest = models.CharField(max_length=40, blank=True)
    comments_seen_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("pull request")
        verbose_name_plural = _("pull requests")
        constraints = [models.UniqueConstraint(fields=["repository", "number"], name="uniq_pull_number")]

    def __str__(self) -> str:
        return f"#{self.number} {made_visible(self.title)[:80]}"

    @property
    def fingerprint(self) -> str:
        return f"{self.head_sha[:40]}:{self.comments_digest[:39]}"


class Agent(models.Model):
    name = models.CharField(_("agent id"), max_length=50, unique=True)
    roles = models.JSONField(_("roles"), default=list, blank=True)
    is_enabled = models.BooleanField(_("enabled"), default=True)
    token_hash = models.CharField(max_length=64, blank=True, db_index=True)
    token_hint = models.CharField(_("token ends in"), max_length=8, blank=True)
    token_made_at = models.DateTimeField(_("token made"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    # Moves with every change that decides who may ask for what; every process looks for newer rows.
    changed_at = models.DateTimeField(auto_now=True, db_index=True)
    last_seen_at = models.DateTimeField(_("last seen"), null=True, blank=True)

    class Meta:
        verbose_name = _("agent")
        verbose_name_plural = _("agents")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class FixTask(models.Model):
    """Review comments that somebody wants mended on a pull request's own branch."""

    class State(models.TextChoices):
        OPEN = "open", _("on offer")
        ASSIGNED = "assigned", _("at work")
        DONE = "done", _("done")
        EXPIRED = "expired", _("expired")

    repository = models.ForeignKey(
        Repository, on_delete=models.CASCADE, related_name="fix_tasks", verbose_name=_("repository")
    )
    pull_number = models.PositiveIntegerField(_("pull request"))
    comments = models.JSONField(_("review comments"), default=list)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.OPEN)
    created_at = models.DateTimeField(_("created"))
    expires_at = models.DateTimeField(_("expires"))
    lost_attempts = models.PositiveIntegerField(_("lost or failed attempts"), default=0)

    class Meta:
        verbose_name = _("fix task")
        verbose_name_plural = _("fix tasks")
        constraints = [
            models.UniqueConstraint(
                fields=["repository", "pull_number"],
                condition=Q(state__in=["open", "assigned"]),
                name="uniq_fix_pending",
            )
        ]

    def __str__(self) -> str:
        return f"fix #{self.pull_number}"

    @classmethod
    def pending(cls, repository: Repository) -> models.QuerySet[FixTask]:
        return cls.objects.filter(repository=repository, state__in=[cls.State.OPEN, cls.State.ASSIGNED])


class Assignment(models.Model):
    """One attempt of one agent at one issue. ``number`` is the issue's, or the pull request's for a fix task."""

    agent = models.ForeignKey(
        Agent, on_delete=models.PROTECT, related_name="assignments", verbose_name=_("agent")
    )
    repository = models.ForeignKey(
        Repository, on_delete=models.PROTECT, related_name="assignments", verbose_name=_("repository")
    )
    number = models.PositiveIntegerField(_("issue"))
    pull_number = models.PositiveIntegerField(_("pull request"), null=True, blank=True)
    task_type = models.CharField(_("type"), max_length=12, choices=TYPE_CHOICES)
    role = models.CharField(_("role"), max_length=50, blank=True)
    branch = models.CharField(_("branch"), max_length=250, blank=True)
    base_branch = models.CharField(_("base branch"), max_length=250, blank=True)
    state = models.CharField(
        _("state"), max_length=10, choices=STATE_CHOICES, default=AssignmentState.CLAIMING
    )
    attempt = models.PositiveIntegerField(_("attempt"), default=1)
    created_at = models.DateTimeField(_("claimed"))
    started_at = models.DateTimeField(_("handed out"), null=True, blank=True)
    last_heartbeat_at = models.DateTimeField(_("last heartbeat"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    request_id = models.CharField(_("request id"), max_length=100, null=True, blank=True)  # noqa: DJ001 - NULLs may repeat
    progress = models.TextField(_("progress"), blank=True)
    result = models.JSONField(_("result"), null=True, blank=True)
    reason = models.TextField(_("reason"), blank=True)  # in English, or as the agent wrote it
    coded_reason = models.JSONField(
        null=True, editable=False
    )  # see Reason.as_json; NULL: only the text is known
    is_cancelled = models.BooleanField(_("cancelled"), default=False)
    answer = models.JSONField(default=dict)  # the task as the agent got it, for replay
    # Label changes that GitHub has not taken yet: {"add": […], "remove": […], "comment": "…"}; NULL: all done.
    labels_due = models.JSONField(null=True, blank=True)

    class Meta:
        verbose_name = _("assignment")
        verbose_name_plural = _("assignments")
        constraints = [
            models.UniqueConstraint(
                fields=["repository", "number"],
                condition=Q(state__in=LIVE_STATES),
                name="uniq_live_per_issue",
            ),
            models.UniqueConstraint(
                fields=["agent"], condition=Q(state__in=LIVE_STATES), name="uniq_live_per_agent"
            ),
            models.UniqueConstraint(fields=["agent", "request_id"], name="uniq_request_per_agent"),
        ]
        indexes = [
            models.Index(fields=["state", "last_heartbeat_at"], name="idx_assignment_state_beat"),
            models.Index(fields=["repository", "number", "-id"], name="idx_assignment_issue"),
            models.Index(fields=["-created_at"], name="idx_assignment_created"),
            models.Index(
                fields=["id"], condition=Q(labels_due__isnull=False), name="idx_assignment_labels_due"
            ),
        ]

    def __str__(self) -> str:
        return f"#{self.number} → {self.agent_id and self.agent.name}"

    @property
    def process_id(self) -> str:
        return process_id(self.number, self.agent.name)

    @property
    def shown_reason(self) -> str:
        return in_readers_language(self.reason, self.coded_reason)


# What events are called, for the filter of their list and for translation.
EVENT_KINDS = (
    gettext_noop("opened"),
    gettext_noop("reopened"),
    gettext_noop("closed"),
    gettext_noop("parked"),
    gettext_noop("unparked"),
    gettext_noop("offered again"),
    gettext_noop("review wanted"),
    gettext_noop("review-done"),
    gettext_noop("assigned"),
    gettext_noop("completed"),
    gettext_noop("failed"),
    gettext_noop("released"),
    gettext_noop("lost"),
    gettext_noop("aborted"),
    gettext_noop("cancelled"),
    gettext_noop("fix wanted"),
    gettext_noop("refused"),
    gettext_noop("labels given up"),
    gettext_noop("edited"),
    gettext_noop("edit taken back"),
    gettext_noop("approved"),
    gettext_noop("pull request opened"),
    gettext_noop("pull request reopened"),
)
# What their columns "from" and "to" may hold beside these.
STATUS_WORDS = (
    gettext_noop("open"),
    gettext_noop("processing"),
    gettext_noop("needs-review"),
    gettext_noop("error"),
)


class Event(StatusEvent):
    """The timeline of an issue: of its assignments, its parking, its labels."""

    repository = models.ForeignKey(
        Repository, on_delete=models.CASCADE, related_name="events", verbose_name=_("repository")
    )
    number = models.PositiveIntegerField(_("issue"))
    assignment = models.ForeignKey(
        Assignment,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="events",
        verbose_name=_("assignment"),
    )
    coded_reason = models.JSONField(
        null=True, editable=False
    )  # see Reason.as_json; NULL: only the text is known

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        indexes = [models.Index(fields=["repository", "number", "-id"], name="idx_task_event_issue")]

    def __str__(self) -> str:
        return f"#{self.number} {self.what}"

    @property
    def shown_reason(self) -> str:
        return in_readers_language(self.reason, self.coded_reason)


class PromptTemplate(models.Model):
    """The words an agent gets. One of a type and language is in use; without a row the built-in one is."""

    task_type = models.CharField(_("type"), max_length=12, choices=TYPE_CHOICES)
    language = models.CharField(
        _("language"), max_length=2, choices=[("ja", _("Japanese")), ("en", _("English"))]
    )
    body = models.TextField(_("text"))
    is_enabled = models.BooleanField(_("in use"), default=True)
    changed_at = models.DateTimeField(_("changed"), auto_now=True)
    changed_by = models.CharField(_("changed by"), max_length=150, blank=True)

    class Meta:
        verbose_name = _("prompt")
        verbose_name_plural = _("prompts")
        constraints = [models.UniqueConstraint(fields=["task_type", "language"], name="uniq_prompt")]

    def __str__(self) -> str:
        return f"{self.task_type} ({self.language})"


class WebhookDelivery(models.Model):
    """Deliveries that were applied, so that a repeated one is ignored."""

    delivery_id = models.CharField(_("delivery"), max_length=100, primary_key=True)
    event = models.CharField(_("event"), max_length=50)
    received_at = models.DateTimeField(_("received"), db_index=True)

    class Meta:
        verbose_name = _("webhook delivery")
        verbose_name_plural = _("webhook deliveries")

    def __str__(self) -> str:
        return f"{self.event} {self.delivery_id}"
