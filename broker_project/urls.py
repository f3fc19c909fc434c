from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from broker_project import health, views

urlpatterns = [
    path("", views.front_door, name="front-door"),
    path("health", health.health, name="health"),
    path("healthz", health.health),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
]
