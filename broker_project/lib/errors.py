"""What can go wrong with an outside system, and with an action. Clients raise only the former.

    OutsideError
    ├── Temporary            worth another try
    │   ├── Unreachable      no connection, or it broke off
    │   ├── TimedOut         no answer in time
    │   ├── RateLimited      told to come back later
    │   ├── ServerFault      5xx
    │   └── BadAnswer        an answer that makes no sense
    └── Permanent            the same call will fail again
        ├── Unauthorised     401, 403
        ├── Missing          404, 410
        ├── Conflict         409, 412
        ├── Rejected         any other 4xx
        ├── TooLarge         more bytes than we take
        ├── ForbiddenAddress an address that must not be fetched
        └── SwitchedOff      the system has no credentials
    ActionRefused            what was asked for is not possible now; nothing was changed
    ActionFailed             what was asked for was tried and did not work

``may_have_happened`` tells whether a call that changes something may have been carried out all the same: the
connection broke or timed out after the request was sent, or the far side failed in the middle.
"""

from __future__ import annotations

from django.utils.functional import Promise


class OutsideError(Exception):
    is_permanent = False
    may_have_happened = False

    def __init__(
        self,
        system: str,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        may_have_happened: bool | None = None,
    ) -> None:
        super().__init__(f"{system}: {message}")
        self.system = system
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        if may_have_happened is not None:
            self.may_have_happened = may_have_happened


class Temporary(OutsideError):
    pass


class Unreachable(Temporary):
    may_have_happened = True


class TimedOut(Temporary):
    may_have_happened = True


class RateLimited(Temporary):
    pass


class ServerFault(Temporary):
    may_have_happened = True


class BadAnswer(Temporary):
    may_have_happened = True


class Permanent(OutsideError):
    is_permanent = True


class Unauthorised(Permanent):
    pass


class Missing(Permanent):
    pass


class Conflict(Permanent):
    pass


class Rejected(Permanent):
    pass


class TooLarge(Permanent):
    content_type = ""  # of what was not taken, in small letters and without parameters


class ForbiddenAddress(Permanent):
    pass


class SwitchedOff(Permanent):
    pass


def error_for_status(
    system: str, status: int, detail: str = "", retry_after_seconds: float | None = None
) -> OutsideError:
    """The one error that an HTTP status stands for. ``detail`` is what the far side said, cut and without secrets."""
    message = f"HTTP {status}" + (f": {detail}" if detail else "")
    kind: type[OutsideError]
    if status == 429:
        kind = RateLimited
    elif status >= 500:
        kind = ServerFault
    elif status in (401, 403):
        kind = Unauthorised
    elif status in (404, 410):
        kind = Missing
    elif status in (409, 412):
        kind = Conflict
    elif status == 408:
        kind = TimedOut
    elif status == 413:
        kind = TooLarge
    else:
        kind = Rejected
    return kind(system, message, status=status, retry_after_seconds=retry_after_seconds)


class ActionRefused(Exception):
    """Raised by the services that people and programs call; nothing was changed.

    ``sentence`` is for people and may be a lazy translation. ``code`` is for programs. ``is_final`` is false where the
    same request may succeed in a moment.
    """

    def __init__(self, sentence: str | Promise, *, code: str = "", is_final: bool = True) -> None:
        super().__init__(sentence)
        self.sentence, self.code, self.is_final = sentence, code, is_final

    def __str__(self) -> str:
        return str(self.sentence)


class ActionFailed(Exception):
    """The row says what became of it; ``sentence`` is for the report."""

    def __init__(self, sentence: str | Promise) -> None:
        super().__init__(sentence)
        self.sentence = sentence
