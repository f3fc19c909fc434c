from __future__ import annotations

from django.urls import path

from broker_project.people.second_factor import views

urlpatterns = [
    path("second-factor/", views.manage, name="second-factor"),
    path("second-factor/check/", views.check, name="second-factor-check"),
]
