"""What reaches stderr: one line an event, its part in front, and never a secret. Tried in a process of
its own.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.support.warm_python import run_python

pytestmark = pytest.mark.process

SECRET = "s3cret-in-use-123"


# The settings are enough; loading the applications as well would take most of the time.
START = """
import logging, logging.config, sys
from django.conf import settings
logging.config.dictConfig(settings.LOGGING)
from broker_project.lib.logs import get_logger
"""


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", START + code, env={**os.environ, "GEMINI_API_KEY": SECRET, **environ})


LEAKS = {
    "event": f"get_logger('x').warning('it said {SECRET}')",
    "field": f"get_logger('x').warning('event', answer='it said {SECRET}', more=[{{'a': '{SECRET}'}}])",
    "exception": (
        f"try:\n    raise ValueError('key {SECRET}')\n"
        "except ValueError:\n    get_logger('x').exception('failed')"
    ),
    "cause": (
        f"try:\n    try:\n        raise KeyError('{SECRET}')\n    except KeyError as e:\n"
        "        raise ValueError('outer') from e\n"
        "except ValueError:\n    logging.getLogger('y').exception('failed')"
    ),
    "third party": f"logging.getLogger('google').error('url ?key=%s', '{SECRET}')",
    "bytes": f"logging.getLogger('google').error('raw %r', b'{SECRET}')",
    "uvicorn": (
        "from uvicorn import Config\nfrom django.conf import settings\nimport logging.config\n"
        "Config('x:y')\nlogging.config.dictConfig(settings.LOGGING)\n"
        f"try:\n    raise ValueError('{SECRET}')\nexcept ValueError:\n"
        "    logging.getLogger('uvicorn.error').exception('in the application')"
    ),
    "thread": (
        f"import threading\ndef f():\n    raise ValueError('{SECRET}')\n"
        "t = threading.Thread(target=f)\nt.start()\nt.join()"
    ),
    "url": "get_logger('x').error('redis://:hidden-pass-9@host/0 is away')",
    "header": "get_logger('x').error('sent', headers={'Authorization': 'Bearer hidden-pass-9'})",
}


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_reaches_stderr(form: str) -> None:
    parts = [f"print('== {way}', file=sys.stderr, flush=True)\n{code}\n" for way, code in LEAKS.items()]
    uncaught = f"print('== uncaught', file=sys.stderr, flush=True)\nraise ValueError('{SECRET}')"
    done = run("".join(parts) + uncaught, BROKER_LOG_FORMAT=form)
    shown = dict(part.split("\n", 1) for part in done.stderr.split("== ")[1:])
    assert set(shown) == {*LEAKS, "uncaught"}
    for way, text in shown.items():
        assert "[hidden]" in text, (way, text)
        assert SECRET not in text
        assert "hidden-pass-9" not in text
    assert done.returncode == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(form: str) -> None:
    """A value that is cut short or wrapped over two lines is not recognised as a secret any more."""
    code = (
        "def f(key):\n    mark = 'LOCAL' + 'VALUE'\n    raise ValueError('no answer')\n"
        f"try:\n    f('{SECRET}' * 20)\nexcept ValueError:\n    get_logger('x').exception('failed')"
    )
    done = run(code, BROKER_LOG_FORMAT=form)
    assert "ValueError: no answer" in done.stderr
    assert "LOCALVALUE" not in done.stderr
    assert SECRET[:8] not in done.stderr


def test_lines_in_json_have_their_parts() -> None:
    done = run(
        "get_logger('x.y').warning('poller ran', count=3, who='太郎')",
        BROKER_LOG_FORMAT="json",
        BROKER_PART="web",
    )
    line = json.loads(done.stderr)
    assert (line["event"], line["count"], line["who"]) == ("poller ran", 3, "太郎")
    assert (line["level"], line["logger"], line["part"]) == ("warning", "x.y", "web")
    assert line["timestamp"]


def test_text_stays_on_one_line_with_its_fields() -> None:
    done = run("get_logger('x').warning('poller ran', count=3)")
    assert len(done.stderr.splitlines()) == 1
    assert "poller ran" in done.stderr
    assert "count=3" in done.stderr


def test_the_level_can_change_while_running() -> None:
    code = (
        "from broker_project.lib.logs import set_log_level\nlog = get_logger('x')\nlog.debug('one')\n"
        "set_log_level('DEBUG')\nlog.debug('two')\nset_log_level('INFO')\nlog.debug('three')"
    )
    done = run(code)
    assert "two" in done.stderr
    assert "one" not in done.stderr
    assert "three" not in done.stderr
