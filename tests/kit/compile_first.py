"""Compiles what the searches compile, once for all processes of the tests, each part in a process: nobody waits twice.

    python tests/kit/compile_first.py

Does nothing where all of it lies on disk already.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from contraflow.planner.basics import Aside

PARTS = ("orders", "separate", "modulo")


def compile_part(part: str) -> None:
    """In a process, if this part of the search is not on disk."""
    module = f"contraflow.planner.search.{part}.ready"
    if not import_module(module).compiled():
        with Aside(module, "warm") as aside:
            while aside.running:
                time.sleep(0.1)


if __name__ == "__main__":
    with ThreadPoolExecutor(len(PARTS)) as pool:
        list(pool.map(compile_part, PARTS))
