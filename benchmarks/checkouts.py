"""A benchmark's figures of a checkout, measured in a process of its own: for comparisons of two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

Figures = dict[str, float]
"""By what they are of."""


def measured_in(tree: Path, script: str, *arguments: str) -> Figures:
    """What a script prints as JSON in its last line where `contraflow` is this checkout; ends with its error."""
    with tempfile.TemporaryDirectory(prefix="contraflow-") as folder:
        (Path(folder) / "contraflow").symlink_to(tree.resolve())
        path = os.pathsep.join((folder, str(Path(__file__).parent)))
        made = subprocess.run(
            [sys.executable, script, *arguments], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if made.returncode:
        sys.exit(f"{tree}: {made.stderr.strip().splitlines()[-1]}")
    found: Figures = json.loads(made.stdout.splitlines()[-1])
    return found
