"""What starts before torch is there."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["watch", "basics", "cli.execute", "cli.profile"])
def test_what_must_start_at_once_loads_no_torch(module: str) -> None:
    """A spawned rank is watched and bound to its parent before it imports anything large; `--help` needs nothing."""
    program = f"import contraflow.executor.{module}, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
