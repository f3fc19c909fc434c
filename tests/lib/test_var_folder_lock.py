from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker_project.lib.config.loader import BASE_DIR
from broker_project.lib.var_folder_lock import is_var_folder_held
from tests.support.broker_process import wait_for

pytestmark = pytest.mark.process

HOLD = """
import sys; from pathlib import Path; from broker_project.lib.var_folder_lock import hold_var_folder
hold_var_folder(Path(sys.argv[1])); hold_var_folder(Path(sys.argv[1])); print("held", flush=True); sys.stdin.read()
"""


def test_a_folder_is_var_folder_held_until_the_last_process_has_ended(tmp_path: Path) -> None:
    assert not is_var_folder_held(tmp_path)
    holders = []
    for _ in range(2):
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        holder = subprocess.Popen(
            command, cwd=BASE_DIR, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holders.append(holder)
    for holder in holders:
        assert is_var_folder_held(tmp_path)
        holder.kill()
        holder.communicate()
    wait_for(lambda: not is_var_folder_held(tmp_path), "nobody is left")
