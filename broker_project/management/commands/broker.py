"""``manage.py broker``: everything in one process tree."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand

from broker_project.config import LOOPBACK_HOSTS, Config
from broker_project.embedded import point_to
from broker_project.lib.embedded_redis import EmbeddedRedis, RedisUnavailable, check_redis
from broker_project.schedules import sync_schedules
from broker_project.supervisor.console import Console
from broker_project.supervisor.preflight import (
    CannotStart,
    admin_log_in,
    check_database,
    open_listener,
    prepare_database,
    queue_first_round,
)
from broker_project.supervisor.supervisor import Supervisor


class Command(BaseCommand):
    help = (
        "Serve Broker: the web, the pollers and, where needed, Redis and the sandbox. Ctrl-C ends all of it."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        # Until the parts run, SIGTERM is answered the way Ctrl-C is: whatever was begun is undone.
        signal.signal(signal.SIGTERM, interrupt)
        console = Console()
        embedded: EmbeddedRedis | None = None
        config: Config = settings.BROKER
        try:
            console.say("Broker is starting")
            listener = open_listener(config.host, config.port)
            check_database()
            if config.redis_url:
                check_redis(config.redis_url)
            else:
                embedded = EmbeddedRedis(config.var)
                embedded.ensure()
                point_to(embedded.url)
            prepare_database(console)
            sync_schedules()
            queue_first_round()
            settings.STATIC_ROOT.mkdir(exist_ok=True)
            if config.host not in LOOPBACK_HOSTS and not config.is_public:
                console.say("HOST lets other machines connect, but DJANGO_ALLOWED_HOSTS names only this one.")
            Supervisor(config, console, listener, embedded).run(admin_log_in(config.var))
        except (CannotStart, RedisUnavailable) as error:
            sys.exit(f"Broker cannot start: {error}")
        except KeyboardInterrupt:
            console.say("stopped")
            sys.exit(130)
        finally:
            if embedded is not None:
                embedded.stop()


def interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
