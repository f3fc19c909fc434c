"""The pages of the second factor: set it up, enter a code, new recovery codes, remove it."""

from __future__ import annotations

from base64 import b32encode
from typing import Any

import segno
from django.conf import settings
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods
from django_otp import login as remember_verified

from broker_project.people.log_in import View, limited
from broker_project.people.second_factor import devices


def own_page(view: View) -> View:
    """A page for people who are logged in by password; 404 while second factors are off."""

    @require_http_methods(["GET", "HEAD", "POST"])
    @never_cache
    @sensitive_post_parameters("code")
    @limited
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if devices.mode() == devices.OFF:
            raise Http404
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        return view(request, *args, **kwargs)

    return guarded


def next_url(request: HttpRequest) -> str:
    """Where the person wanted to go, if that is a page of ours."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    is_ours = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return wanted if is_ours else settings.LOGIN_REDIRECT_URL


@own_page
def check(request: HttpRequest) -> HttpResponse:
    user: User = request.user  # type: ignore[assignment]
    if user.is_verified() or devices.authenticator_of(user) is None:  # type: ignore[attr-defined]
        return HttpResponseRedirect(next_url(request))
    if request.method == "POST":
        device = devices.verify(user, request.POST.get("code", ""))
        if device is not None:
            # Somebody who knew the session key before must not be logged in now.
            request.session.cycle_key()
            remember_verified(request, device)
            return HttpResponseRedirect(next_url(request))
        messages.error(request, wrong_code())
    return page(request, "check", {"next": next_url(request)})


@own_page
def manage(request: HttpRequest) -> HttpResponse:
    user: User = request.user  # type: ignore[assignment]
    if devices.authenticator_of(user) is None:
        return set_up(request, user)
    if not user.is_verified():  # type: ignore[attr-defined]
        return HttpResponseRedirect(f"{reverse('second-factor-check')}?next={reverse('second-factor')}")
    deed = request.POST.get("deed", "")
    if request.method == "POST" and deed in ("codes", "remove"):
        # An unattended screen must not be enough to weaken an account.
        if devices.verify(user, request.POST.get("code", "")) is None:
            messages.error(request, wrong_code())
        elif deed == "codes":
            record(user, "new recovery codes")
            return page(
                request, "codes", {"codes": devices.new_recovery_codes(user), "next": next_url(request)}
            )
        elif devices.must_have_one(user):
            messages.error(request, _("Staff must have a second factor here."))
        else:
            devices.remove(user, user.get_username())
            record(user, "second factor taken away")
            messages.success(request, _("The second factor is gone."))
        return HttpResponseRedirect(reverse("second-factor"))
    context = {
        "codes_left": devices.recovery_codes_left(user),
        "may_remove": not devices.must_have_one(user),
    }
    return page(request, "manage", context)


def set_up(request: HttpRequest, user: User) -> HttpResponse:
    deed = request.POST.get("deed", "")
    if request.method == "POST" and deed == "begin":
        devices.begin(user)
        return HttpResponseRedirect(request.get_full_path())
    if request.method == "POST" and deed == "confirm":
        device = devices.confirm(user, request.POST.get("code", ""))
        if device is not None:
            request.session.cycle_key()
            remember_verified(request, device)
            record(user, "second factor set up")
            return page(
                request, "codes", {"codes": devices.new_recovery_codes(user), "next": next_url(request)}
            )
        messages.error(request, wrong_code())
    draft = devices.draft_of(user)
    context: dict[str, Any] = {
        "next": next_url(request),
        "is_required": devices.must_have_one(user),
        "draft": draft,
    }
    if draft is not None:
        context |= {
            "secret": spaced(draft.bin_key),
            "uri": draft.config_url,
            "picture": picture(draft.config_url),
        }
    return page(request, "set_up", context)


def wrong_code() -> str:
    return _("The code is not right, or it was used before. After several wrong ones wait a minute.")


def spaced(key: bytes) -> str:
    """In groups of four letters, for those who type it."""
    text = b32encode(key).decode()
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))


def picture(text: str) -> SafeString:
    """A QR code as an SVG drawing: no file, no foreign host, no style."""
    drawn = segno.make(text, micro=False).svg_inline(scale=5, border=4, dark="#000", light="#fff")
    return mark_safe(drawn)  # noqa: S308 - only paths and numbers


def record(user: User, what: str) -> None:
    LogEntry.objects.log_actions(user.pk, [user], CHANGE, what)


def page(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    titles = {
        "check": _("The second factor"),
        "set_up": _("Set up a second factor"),
        "manage": _("The second factor"),
        "codes": _("Recovery codes"),
    }
    return render(request, f"account/{name}.html", {"title": titles[name], **context})
