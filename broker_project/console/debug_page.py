"""Django's page about an error, shown only while debugging: settings and local variables without secrets."""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.views.debug import ExceptionReporter

from broker_project.lib.redaction import redact_value


class RedactedReport(ExceptionReporter):
    """Django hides what is named like a secret; an address with a password in it is not."""

    def get_traceback_html(self) -> SafeString:
        return SafeString(redact_value(str(super().get_traceback_html())))

    def get_traceback_text(self) -> SafeString:
        return SafeString(redact_value(str(super().get_traceback_text())))
