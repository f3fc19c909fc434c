from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.tasks.conftest import world as world  # the fixture, for this folder, too


@pytest.fixture
def boss(transactional_db: None) -> Client:
    """An admin who may do everything, in English."""
    client = Client(headers={"accept-language": "en"})
    client.force_login(User.objects.create_superuser("boss"))
    return client
