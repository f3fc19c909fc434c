"""Django's error page while debugging: it shows settings and local variables, and no secret."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import RequestFactory
from django.utils.module_loading import import_string

from broker_project.lib.redaction import configure_redaction
from tests.secrets.planted import leaks, plant


@pytest.fixture
def known() -> Iterator[None]:
    yield
    configure_redaction(settings.BROKER.secret_values())


@pytest.mark.usefixtures("known")
def test_the_error_page_shows_no_secret() -> None:
    planted = plant("secret", "+/&%\"'<")
    configure_redaction([planted.value])
    request = RequestFactory().get(
        "/", {"page": planted.value}, headers={"authorization": f"Bearer {planted.value}"}
    )
    try:
        local = {"address": f"redis://:{planted.value}@127.0.0.1/0", "shown": "an ordinary value"}
        raise ValueError(f"cannot reach {local['address']}")
    except ValueError:
        reporter = import_string(settings.DEFAULT_EXCEPTION_REPORTER)(request, *sys.exc_info())
    for name, page in (("HTML", reporter.get_traceback_html()), ("text", reporter.get_traceback_text())):
        assert "ValueError" in page
        assert "cannot reach" in page
        assert leaks(name, page, [planted]) == []
    assert "an ordinary value" in reporter.get_traceback_html()
