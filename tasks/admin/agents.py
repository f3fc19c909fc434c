"""Agents: who may ask, in which roles, with which token. A token is shown once, where it is made."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from broker_project.console.admin_base import ActionReport, ListPage, confirmed_action, run_each
from broker_project.console.lists import DateRangeFilter, Tab
from broker_project.lib.errors import ActionRefused
from tasks import selectors
from tasks.admin.shown import issue_link, local_time
from tasks.lifecycle import AGENT_ID, agent_id_problem
from tasks.models import Agent
from tasks.services.agents import mark_changed, revoke_token, rotate_token, switch_agent


class AgentForm(forms.ModelForm):  # type: ignore[type-arg]
    roles = forms.MultipleChoiceField(
        label=_("roles"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("None: it may be given a task of any role."),
    )

    class Meta:
        model = Agent
        fields = ["name", "roles", "is_enabled"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A role that left the agents file can still be taken off its agents.
        known = sorted(settings.BROKER.role_names | set(self.instance.roles or []))
        roles = self.fields["roles"]
        assert isinstance(roles, forms.MultipleChoiceField)
        roles.choices = [(role, role) for role in known]

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        if not AGENT_ID.fullmatch(name):
            raise ValidationError(
                gettext("1 to 50 letters, digits, “.”, “_” or “-”, beginning with a letter or digit.")
            )
        if agent_id_problem(name, settings.BROKER.role_names):
            raise ValidationError(gettext("%(name)s has another meaning as a label.") % {"name": name})
        return name

    def clean_roles(self) -> list[str]:
        return sorted(self.cleaned_data["roles"])


@admin.register(Agent)
class AgentAdmin(ListPage[Agent]):
    form = AgentForm
    list_display = [
        "name",
        "shown_roles",
        "is_enabled",
        "current_task",
        "last_heartbeat",
        "last_seen_at",
        "token_hint",
    ]
    list_filter = ["is_enabled", ("last_seen_at", DateRangeFilter)]
    search_fields = ["name"]
    search_help_text = _("Agent id")
    empty_hint = _("Add one here, or with manage.py create_agent NAME; its token is shown once.")
    actions = ["enable", "disable", "revoke"]
    SEEN = ["token_hint", "token_made_at", "created_at", "last_seen_at"]

    def get_fields(self, request: HttpRequest, obj: Agent | None = None) -> list[Any]:
        return ["name", "roles", "is_enabled", *(self.SEEN if obj else [])]

    def get_readonly_fields(self, request: HttpRequest, obj: Agent | None = None) -> list[str]:
        # Its name is a label on issues: another name would be another agent.
        return ["name", *self.SEEN] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: Agent | None = None) -> bool:
        return False  # its history stays; switch it off instead

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        self._live = selectors.LiveByAgent()
        return super().get_queryset(request)

    @admin.display(description=_("roles"))
    def shown_roles(self, agent: Agent) -> str:
        return ", ".join(agent.roles) or gettext("any")

    @admin.display(description=_("current task"))
    def current_task(self, agent: Agent) -> str | SafeString:
        live = self._live.get(agent.pk)
        return issue_link(live.repository_id, live.number) if live else ""

    @admin.display(description=_("last heartbeat"))
    def last_heartbeat(self, agent: Agent) -> str:
        live = self._live.get(agent.pk)
        return local_time(live.last_heartbeat_at) if live else ""

    # Tokens

    def save_model(self, request: HttpRequest, obj: Agent, form: Any, change: bool) -> None:
        if change:
            # Not the whole row: a token that somebody revokes at this moment must not come back.
            mark_changed(obj, timezone.now(), roles=obj.roles, is_enabled=obj.is_enabled)
            return
        super().save_model(request, obj, form, change)
        request.new_token = rotate_token(obj, timezone.now())  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: Agent, post_url_continue: Any = None) -> HttpResponse:
        return self.token_page(request, obj, request.new_token)  # type: ignore[attr-defined]

    def token_page(self, request: HttpRequest, agent: Agent, token: str) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("The token of %(name)s") % {"name": agent.name},
            "opts": self.opts,
            "agent": agent,
            "token": token,
        }
        response = TemplateResponse(request, "admin/tasks/agent/token.html", context)
        response.headers["Cache-Control"] = "no-store"
        return response

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.rotate)
        return [path("<int:agent_id>/rotate/", view, name="tasks_agent_rotate"), *super().get_urls()]

    def rotate(self, request: HttpRequest, agent_id: int) -> HttpResponse:
        """Asks first; then the new token, once."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        agent = Agent.objects.filter(pk=agent_id).first()
        if agent is None:
            raise Http404
        if request.method != "POST":
            context = {
                **self.admin_site.each_context(request),
                "title": gettext("A new token for %(name)s") % {"name": agent.name},
                "opts": self.opts,
                "agent": agent,
            }
            return TemplateResponse(request, "admin/tasks/agent/rotate.html", context)
        token = rotate_token(agent, timezone.now())
        user_id = request.user.pk
        assert user_id is not None
        LogEntry.objects.log_actions(user_id, [agent], CHANGE, "new token")
        return self.token_page(request, agent, token)

    # Actions

    @confirmed_action(description=_("Enable"), permission="change")
    def enable(self, request: HttpRequest, queryset: QuerySet[Agent]) -> ActionReport:
        return self.switch(queryset, True, _("enabled"), _("enabled already"))

    @confirmed_action(
        description=_("Disable: it may not ask any more"),
        warning=_(
            "A task in hand stays with it until its lease ends; release it if somebody else should have it."
        ),
        permission="change",
    )
    def disable(self, request: HttpRequest, queryset: QuerySet[Agent]) -> ActionReport:
        return self.switch(queryset, False, _("disabled"), _("disabled already"))

    def switch(self, queryset: QuerySet[Agent], on: bool, done: Any, otherwise: Any) -> ActionReport:
        def switch(agent: Agent) -> None:
            if not switch_agent(agent, on, timezone.now()):
                raise ActionRefused(otherwise)

        return run_each(queryset, done, switch)

    @confirmed_action(
        description=_("Revoke the token"),
        warning=_("The token is refused within seconds. A new one can be made on the agent's page."),
        permission="change",
    )
    def revoke(self, request: HttpRequest, queryset: QuerySet[Agent]) -> ActionReport:
        def revoke(agent: Agent) -> None:
            if not agent.token_hash:
                raise ActionRefused(_("had none"))
            revoke_token(agent, timezone.now())

        return run_each(queryset, _("without a token now"), revoke)

    # Pages

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        counts = selectors.agent_counts()
        return [
            Tab(_("enabled"), counts[True], (("is_enabled__exact", "1"),)),
            Tab(_("disabled"), counts[False], (("is_enabled__exact", "0"),)),
        ]

    def page_context(self, request: HttpRequest, row: Agent) -> dict[str, Any]:
        return {
            "attempts": selectors.agent_history(row.pk),
            "may_rotate": self.has_change_permission(request),
        }
