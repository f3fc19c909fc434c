"""``POST /webhooks/github``: who sends it, how much, and what it says; then one service call."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qs

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from broker_project.lib.config.access import Rate
from broker_project.lib.errors import BadAnswer
from broker_project.lib.rate_limits import TooManyRequests, address_of, limits
from broker_project.ops.body_limit import WEBHOOK_BYTES
from tasks.github.answers import Json, as_object, parse_json
from tasks.services.webhooks import receive_webhook

SIGNATURE = "sha256="


@csrf_exempt
def github_webhook(request: HttpRequest) -> JsonResponse:
    """202 with what became of it; 400, 401, 405, 413 or 429 with a code and a sentence."""
    if request.method != "POST":
        return refuse(405, "method_not_allowed", "Webhooks are sent by POST.")
    secret: str = settings.BROKER.github.webhook_secret
    address = address_of(request)
    unsigned = f"webhook:{address.key}"
    try:
        limits().count(Rate.WEBHOOK, address)
        # Before anything is read: who signs nothing shall not send us 25 MB again and again.
        limits().check(Rate.REFUSED, address, unsigned)
    except TooManyRequests as error:
        return too_many(error)
    if not secret:
        return refuse(401, "webhooks_off", "No webhook secret is set, so webhooks are refused.")
    if declared_length(request) > WEBHOOK_BYTES:
        return refuse(413, "too_large", "A delivery has at most 25 MB.")
    # Not request.body: that has the smaller limit of the other pages.
    body = request.read(WEBHOOK_BYTES + 1)
    if len(body) > WEBHOOK_BYTES:
        return refuse(413, "too_large", "A delivery has at most 25 MB.")
    if not is_signed(body, secret, request.headers.get("X-Hub-Signature-256", "")):
        try:
            limits().count(Rate.REFUSED, address, unsigned)
        except TooManyRequests as error:
            return too_many(error)
        return refuse(401, "bad_signature", "The signature does not belong to this delivery.")
    event = request.headers.get("X-GitHub-Event", "")
    delivery_id = request.headers.get("X-GitHub-Delivery", "")
    if not event or not delivery_id.isprintable() or not 0 < len(delivery_id) <= 100:
        return refuse(400, "bad_headers", "X-GitHub-Event and X-GitHub-Delivery are needed.")
    try:
        payload = read_payload(request.content_type or "", body)
        outcome = receive_webhook(delivery_id, event[:50], payload, timezone.now())
    except BadAnswer as error:
        return refuse(400, "bad_payload", f"The payload makes no sense: {error.message}.")
    return JsonResponse({"status": outcome}, status=202)


def declared_length(request: HttpRequest) -> int:
    length = request.META.get("CONTENT_LENGTH") or "0"
    return int(length) if length.isdecimal() else 0


def is_signed(body: bytes, secret: str, signature: str) -> bool:
    wanted = SIGNATURE + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace"))


def read_payload(content_type: str, body: bytes) -> Json:
    """JSON, or a form with the JSON in its field ``payload``. Raises BadAnswer."""
    try:
        text = body.decode()
        if content_type == "application/x-www-form-urlencoded":
            text = parse_qs(text, strict_parsing=True, max_num_fields=10)["payload"][0]
    except (ValueError, KeyError):
        raise BadAnswer("GitHub", "neither JSON nor a form with the field payload") from None
    return as_object(parse_json(text))


def too_many(error: TooManyRequests) -> JsonResponse:
    seconds = error.retry_after_seconds
    answer = refuse(429, "too_many_requests", f"Too many deliveries; the next one may come in {seconds} s.")
    answer["Retry-After"] = str(seconds)
    return answer


def refuse(status: int, code: str, sentence: str) -> JsonResponse:
    answer = JsonResponse({"error": code, "message": sentence}, status=status)
    if status == 405:
        answer["Allow"] = "POST"
    return answer
