"""``manage.py mirin``: answer what is asked on the channel ``mirin:requests``, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand

from broker_project.lib.redis.startup import ensure_redis
from tasks.mirin.listener import Listener


class Command(BaseCommand):
    help = "Answer requests on the Redis channel mirin:requests. Several may run."

    def handle(self, *args: Any, **options: Any) -> None:
        listener = Listener()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, frame: listener.stop())
        with ensure_redis():
            listener.run()
