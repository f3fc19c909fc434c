from __future__ import annotations

from django.urls import include, path

from broker_project.console.status import views

urlpatterns = [
    path("", views.overview, name="status"),
    path("tasks/", views.tasks, name="status-tasks"),
    path("feeds/", views.feeds, name="status-feeds"),
    path("fixtures/", views.fixtures, name="status-fixtures"),
    path("fixtures/", include("fixtures.urls")),
]
