from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _

from broker_project.people.log_in import limited

# The clock's own forms would let whoever may use them name any function to be run, and show what was pickled by
# unpickling it. Pollers have their pages.
NOT_SHOWN = frozenset({"django_q"})
ORDER = ("tasks", "feeds", "fixtures", "broker")  # the work first, people and the rest after it


class BrokerAdminSite(AdminSite):
    site_header = "Broker"
    site_title = "Broker"
    index_title = _("Overview")
    site_url = "/status/"
    # Viewers without admin rights log in here, too; what they may open is decided page by page.
    login_form = AuthenticationForm

    @method_decorator(limited)
    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().login(request, extra_context)

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """The dashboard, then Django's own list. Those who only log in see what the status pages show."""
        from broker_project.console.status.views import overview_context

        return super().index(request, {**overview_context(), "may_admin": True, **(extra_context or {})})

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        models: list[Any] = (
            [model_or_iterable] if isinstance(model_or_iterable, type) else list(model_or_iterable)
        )
        ours = [model for model in models if model._meta.app_label not in NOT_SHOWN]
        super().register(ours, admin_class, **options)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from broker_project.ops.redis_console import page as redis_page

        return [*redis_page.urls(self), *super().get_urls()]

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Django's list, and Redis for those who may look into it."""
        from broker_project.ops.redis_console import page as redis_page

        found = list(super().get_app_list(request, app_label))
        found.sort(key=lambda app: ORDER.index(app["app_label"]) if app["app_label"] in ORDER else len(ORDER))
        if app_label is None and redis_page.may_view(request):
            address = reverse("admin:redis_overview")
            entry = {"name": _("Keys, flags and settings"), "object_name": "Redis", "admin_url": address}
            entry |= {"view_only": True, "add_url": None, "perms": {}}
            found.append({"name": "Redis", "app_label": "redis", "app_url": address, "models": [entry]})
        return found
