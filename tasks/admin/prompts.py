"""The words that agents get: edited here, checked on saving, tried with sample data."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from broker_project.console.admin_base import ListPage
from broker_project.console.lists import DateRangeFilter, Tab
from tasks import selectors
from tasks.models import PromptTemplate
from tasks.prompt_texts import DEFAULTS
from tasks.prompts import PLACEHOLDERS, UnknownPlaceholder, check_template, comment_line, material

SAMPLE = {
    "persona": "…",
    "role": "BACKENDCODER",
    "repository": "owner/name",
    "number": "123",
    "title": material("title", "CSV を書き出す / Export as CSV"),
    "body": material(
        "issue", "## 成果物\n- `/export.csv`\n\n- **作業ブランチ (Feature Branch):** feature/issue-123"
    ),
    "issue_url": "https://github.com/owner/name/issues/123",
    "branch": "feature/issue-123",
    "base_branch": "main",
    "pull_request_url": "https://github.com/owner/name/pull/124",
    "comments": material(
        "comments",
        comment_line({"user": {"login": "reviewer"}, "path": "export.py", "line": 12, "body": "Quote it."}),
    ),
}


def problem_with(body: str) -> str:
    """Why a template cannot be used, in a sentence; empty if it can."""
    try:
        check_template(body)
    except UnknownPlaceholder as error:
        return gettext("There is no placeholder {%(name)s}.") % {"name": error.name}
    except ValueError as error:
        return gettext("This cannot be filled in: %(why)s.") % {"why": error}
    return ""


class PromptForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = PromptTemplate
        fields = ["task_type", "language", "body", "is_enabled"]
        widgets = {"body": forms.Textarea(attrs={"rows": 24, "class": "vLargeTextField"})}
        help_texts = {
            "body": _("Placeholders: %(names)s. Double the braces to write one.")
            % {"names": ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))}
        }

    def clean_body(self) -> str:
        body = str(self.cleaned_data["body"])
        if problem := problem_with(body):
            raise ValidationError(problem)
        return body


@admin.register(PromptTemplate)
class PromptTemplateAdmin(ListPage[PromptTemplate]):
    form = PromptForm
    list_display = ["task_type", "language", "is_enabled", "changed_at", "changed_by"]
    list_display_links = ["task_type", "language"]
    list_filter = ["task_type", "language", "is_enabled", ("changed_at", DateRangeFilter)]
    search_fields = ["body"]
    search_help_text = _("Words of the text")
    empty_hint = _("The built-in texts are in use. Add one to change what agents read.")
    fields = ["task_type", "language", "body", "is_enabled", "changed_at", "changed_by"]
    readonly_fields = ["changed_at", "changed_by"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A new one begins with the built-in text."""
        given = super().get_changeform_initial_data(request)
        task_type, language = str(given.get("task_type", "development")), str(given.get("language", "ja"))
        default = {(str(key[0]), key[1]): text for key, text in DEFAULTS.items()}.get((task_type, language))
        if default is not None:
            given |= {"task_type": task_type, "language": language, "body": default}
        return given

    def state_tabs(self, request: HttpRequest) -> list[Tab]:
        counts = selectors.prompt_counts()
        return [
            Tab(_("in use"), counts[True], (("is_enabled__exact", "1"),)),
            Tab(_("not in use"), counts[False], (("is_enabled__exact", "0"),)),
        ]

    def save_model(self, request: HttpRequest, obj: PromptTemplate, form: Any, change: bool) -> None:
        obj.changed_by = request.user.get_username()
        super().save_model(request, obj, form, change)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.preview))
        return [path("preview/", view, name="tasks_prompttemplate_preview"), *super().get_urls()]

    def preview(self, request: HttpRequest) -> HttpResponse:
        """What an agent would read, made from the text in the form; nothing is saved."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        body = request.POST.get("body", "")
        problem = problem_with(body)
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Preview with sample data"),
            "opts": self.opts,
            "problem": problem,
            "text": "" if problem else body.format_map(SAMPLE),
        }
        return TemplateResponse(
            request, "admin/tasks/prompttemplate/preview.html", context, status=422 if problem else 200
        )
