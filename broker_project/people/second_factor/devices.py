"""A person's second factor: one authenticator (TOTP), and recovery codes in case the phone is lost.

``BROKER_ADMIN_2FA``: ``off`` asks nobody, ``optional`` asks those who have set one up, ``required`` also makes staff
set one up before anything else. Recovery codes are stored as keyed hashes. The authenticator's secret is stored as it
is, since codes are checked with it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import unicodedata
from base64 import b32encode

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django_otp.plugins.otp_static.models import StaticDevice, StaticToken
from django_otp.plugins.otp_totp.models import TOTPDevice

from broker_project.lib.logs import get_logger

log = get_logger(__name__)

OFF, OPTIONAL, REQUIRED = "off", "optional", "required"
RECOVERY_CODES = 10
CODE_CHARACTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # no characters that look alike
CODE_LENGTH = 10  # 49 bits, and wrong ones are throttled


def mode() -> str:
    found: str = settings.BROKER.access.second_factor
    return found


def authenticator_of(user: User | AnonymousUser) -> TOTPDevice | None:
    """The confirmed one; None if there is none."""
    return TOTPDevice.objects.filter(user_id=user.pk, confirmed=True).order_by("pk").first()


def must_have_one(user: User | AnonymousUser) -> bool:
    return mode() == REQUIRED and user.is_staff


def draft_of(user: User) -> TOTPDevice | None:
    return TOTPDevice.objects.filter(user=user, confirmed=False).order_by("-pk").first()


def begin(user: User) -> TOTPDevice:
    """A new secret, which does not count until it is confirmed by a code."""
    with transaction.atomic():
        TOTPDevice.objects.filter(user=user, confirmed=False).delete()
        return TOTPDevice.objects.create(user=user, name="authenticator", confirmed=False)


def confirm(user: User, code: str) -> TOTPDevice | None:
    """Make the draft the authenticator if the code is right. None if it is wrong or there is no draft."""
    with transaction.atomic():
        draft = (
            TOTPDevice.objects.select_for_update().filter(user=user, confirmed=False).order_by("-pk").first()
        )
        if draft is None or authenticator_of(user) is not None or not draft.verify_token(plain(code)):
            return None
        TOTPDevice.objects.filter(pk=draft.pk).update(confirmed=True)
    draft.confirmed = True
    log.info("second factor set up", who=user.get_username())
    return draft


def verify(user: User, code: str) -> TOTPDevice | StaticDevice | None:
    """The device that the code belongs to; each code works once. Wrong codes are throttled more and more."""
    text = plain(code)
    with transaction.atomic():
        if text.isdecimal():
            devices = TOTPDevice.objects.select_for_update().filter(user=user, confirmed=True)
        else:
            devices = StaticDevice.objects.select_for_update().filter(user=user, confirmed=True)
            text = code_hash(user, text)
        for device in devices:
            if device.verify_token(text):
                return device
    log.warning("second factor refused", who=user.get_username())
    return None


def new_recovery_codes(user: User) -> list[str]:
    """Ten codes, shown only this once; the old ones no longer work."""
    codes = [
        "".join(secrets.choice(CODE_CHARACTERS) for _ in range(CODE_LENGTH)) for _ in range(RECOVERY_CODES)
    ]
    with transaction.atomic():
        device, _made = StaticDevice.objects.get_or_create(user=user, name="recovery codes")
        device.token_set.all().delete()
        StaticToken.objects.bulk_create(
            StaticToken(device=device, token=code_hash(user, code)) for code in codes
        )
    return [f"{code[:5]}-{code[5:]}" for code in codes]


def recovery_codes_left(user: User) -> int:
    return int(StaticToken.objects.filter(device__user=user).count())


def remove(user: User, who: str) -> bool:
    """False if there was nothing to remove."""
    with transaction.atomic():
        gone, _rows = TOTPDevice.objects.filter(user=user).delete()
        StaticDevice.objects.filter(user=user).delete()
    if gone:
        log.info("second factor taken away", whose=user.get_username(), who=who)
    return bool(gone)


def plain(code: str) -> str:
    """Normalise what people type: spaces, hyphens, capitals, full-width digits."""
    return "".join(unicodedata.normalize("NFKC", code[:64]).split()).replace("-", "").lower()


def code_hash(user: User, code: str) -> str:
    """Sixteen characters, as many as the table has room for."""
    text = f"recovery:{user.pk}:{code}"
    return b32encode(hmac.digest(settings.SECRET_KEY.encode(), text.encode(), hashlib.sha256))[:16].decode()
