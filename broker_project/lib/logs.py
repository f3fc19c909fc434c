"""Structured logs: one line per event, with the process it comes from and without secrets."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

import structlog

from broker_project.lib.hidden_text import made_visible
from broker_project.lib.redaction import redact_value

PART_VARIABLE = "BROKER_PART"  # web, cluster, sandbox, mirin …: set by the supervisor


def hide_secrets(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {key: redact_value(value) for key, value in event.items()}


def name_part(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event["part"] = os.environ.get(PART_VARIABLE, "command")
    return event


class RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Redacts the finished line as well: tracebacks and messages of libraries pass through here and nowhere else.

    Terminal escapes and text-direction overrides are made visible, so that no terminal obeys them.
    """

    def format(self, record: logging.LogRecord) -> str:
        return made_visible(str(redact_value(super().format(record))))


def logging_settings(*, as_json: bool, level: str) -> dict[str, Any]:
    """Django's ``LOGGING`` setting; also configures structlog itself."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=False),
        name_part,
        hide_secrets,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if as_json
        # Its default prints local variables where `rich` is installed, wrapped in ways that hide a secret from us.
        else structlog.dev.ConsoleRenderer(
            colors=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    )
    finish: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        finish.append(structlog.processors.format_exc_info)
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": RedactingFormatter,
                "foreign_pre_chain": shared,
                "processors": [*finish, renderer],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django.server": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
            # Without uvicorn's own handlers, which would write tracebacks unredacted.
            "uvicorn": {"level": "INFO", "propagate": True},
            "uvicorn.error": {"level": "INFO", "propagate": True},
            "uvicorn.access": {"level": "WARNING"},
            # A line for every task taken, run and saved; the pollers log their own.
            "django-q": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            "httpcore": {"level": "WARNING"},
            "google_genai": {"level": "WARNING"},
            "urllib3": {"level": "WARNING"},
            "asyncio": {"level": "WARNING"},
        },
    }


def redact_uncaught() -> None:
    """Redact uncaught exceptions of commands and threads, which Python writes to stderr."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            text = "".join(traceback.format_exception(kind, error, trace))
            sys.stderr.write(made_visible(str(redact_value(text))))

    def show_in_thread(given: threading.ExceptHookArgs) -> None:
        if given.exc_value is not None and given.exc_type is not SystemExit:
            show(given.exc_type, given.exc_value, given.exc_traceback)

    sys.excepthook = show
    threading.excepthook = show_in_thread


def set_log_level(level: str) -> None:
    """Change what this process logs from now on."""
    root = logging.getLogger()
    wanted = logging.getLevelName(level)
    if root.level != wanted:
        root.setLevel(wanted)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
