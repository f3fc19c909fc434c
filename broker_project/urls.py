from __future__ import annotations

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from broker_project.console import views
from broker_project.ops import health
from tasks.agents_api.api import api
from tasks.github.webhook import github_webhook

urlpatterns = [
    path("", views.front_door, name="front-door"),
    path("health", health.health, name="health"),
    path("healthz", health.health),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("api/v1/", api.urls),
    path("request-task", views.alias("/api/v1/request-task")),
    path("tasks/fix", views.alias("/api/v1/tasks/fix")),
    path("webhooks/github", github_webhook, name="github-webhook"),
    path("favicon.ico", RedirectView.as_view(url=static("broker/icon.svg"), permanent=True)),
    path("i18n/", include("django.conf.urls.i18n")),
    path("account/", include("broker_project.people.second_factor.urls")),
    path("status/", include("broker_project.console.status.urls")),
    path("admin/", admin.site.urls),
]
