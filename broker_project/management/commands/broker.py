"""``manage.py broker``: everything in one process tree."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Any, NoReturn

from django import db
from django.conf import settings
from django.core.management.base import BaseCommand
from redis.exceptions import RedisError

from broker_project.lib.config.loader import LOOPBACK_HOSTS, Config
from broker_project.lib.redis.embedded_server import EmbeddedRedis, RedisUnavailable
from broker_project.lib.redis.startup import check_redis, point_to
from broker_project.lib.var_folder_lock import hold_var_folder
from broker_project.ops.clock.schedules import sync_schedules
from broker_project.ops.supervisor.preflight import (
    CannotStart,
    admin_log_in,
    check_database,
    first_line,
    open_listener,
    prepare_database,
    queue_first_round,
)
from broker_project.ops.supervisor.supervisor import Supervisor
from broker_project.ops.supervisor.terminal import Terminal


class Command(BaseCommand):
    help = (
        "Serve Broker: the web, the pollers and, where needed, Redis and the sandbox. Ctrl-C ends all of it."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        # Until the parts run, SIGTERM acts like Ctrl-C: what was begun is undone.
        signal.signal(signal.SIGTERM, interrupt)
        config: Config = settings.BROKER
        hold_var_folder(config.var)
        terminal = Terminal()
        embedded = None if config.redis_url else EmbeddedRedis(config.var)
        try:
            listener, log_in = prepare(config, terminal, embedded)
            Supervisor(config, terminal, listener, embedded).run(log_in)
        except CannotStart as error:
            sys.exit(f"Broker cannot start: {error}")
        except KeyboardInterrupt:
            terminal.say("stopped")
            sys.exit(130)
        finally:
            if embedded is not None:
                embedded.stop()


def prepare(config: Config, terminal: Terminal, embedded: EmbeddedRedis | None) -> tuple[socket.socket, str]:
    """Prepare what the parts rely on; the listening socket and a sentence about logging in. Raises CannotStart."""
    terminal.say("Broker is starting")
    listener = open_listener(config.host, config.port)
    try:
        check_database()
        if embedded is None:
            check_redis(config.redis_url)
        else:
            embedded.ensure()
            point_to(embedded.url)
        prepare_database(terminal)
        sync_schedules()
        queue_first_round()
        log_in = admin_log_in(config.var)
    except RedisUnavailable as error:
        raise CannotStart(str(error)) from None
    except db.Error as error:
        raise CannotStart(f"DATABASE_URL: the database cannot be used: {first_line(error)}.") from None
    except RedisError as error:
        raise CannotStart(f"REDIS_URL: Redis went away: {first_line(error)}.") from None
    except OSError as error:
        raise CannotStart(f"{error.filename or config.var}: {error.strerror or error}.") from None
    if config.host not in LOOPBACK_HOSTS and not config.is_public:
        terminal.say("HOST lets other machines connect, but DJANGO_ALLOWED_HOSTS names only this one.")
    return listener, log_in


def interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
