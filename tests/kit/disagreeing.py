"""Ranks that are started one by one, as torchrun does, each with options of its own."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kept_ranks import kept

from contraflow.executor.run.launch import execute
from contraflow.planner.plan_file import load_plan


class Outcome(NamedTuple):
    """How a rank ended: the error's type and text ("" if none), and its losses."""

    kind: str
    text: str
    losses: list[float]


def run_ranks(options: Sequence[Mapping[str, Any]], folder: Path) -> list[Outcome]:
    """Runs `execute(**options)` in a process for each rank; "plan" is a file, "path" goes onto the import path.

    Modules "own_*" are forgotten afterwards.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    kept(len(options)).run(_run, port, options, str(folder))
    return [Outcome(*json.loads((folder / f"outcome{rank}").read_text())) for rank in range(len(options))]


def _run(rank: int, port: int, options: Sequence[Mapping[str, Any]], folder: str) -> None:
    mine = dict(options[rank])
    job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(options), "MASTER_PORT": port}
    os.environ.update({**{key: str(value) for key, value in job.items()}, "MASTER_ADDR": "127.0.0.1"})
    sys.path.insert(0, mine.pop("path", folder))
    loaded = set(sys.modules)
    try:
        result = execute(load_plan(mine.pop("plan")), **mine)
        outcome = Outcome("", "", list(result.losses))
    except Exception as error:
        outcome = Outcome(type(error).__name__, str(error), [])
    finally:
        sys.path.pop(0)
        for name in [name for name in sys.modules.keys() - loaded if name.startswith("own_")]:
            del sys.modules[name]
        for key in (*job, "MASTER_ADDR"):
            del os.environ[key]
    (Path(folder) / f"outcome{rank}").write_text(json.dumps(outcome))
