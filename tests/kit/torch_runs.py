"""Plans trained by torch's own pipeline runtime, on kept gloo processes."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kept_ranks import kept
from runs import STEPS, Case, planned

from contraflow.executor.run.launch import prepare


def losses_of_torch(cases: Sequence[Case], folder: Path) -> list[list[float]]:
    """The mean loss of every step of every case: its stages, parameters, data and optimizer in torch's runtime."""
    jobs = [prepare(planned(case), STEPS, dtype=case.dtype, self_check=False) for case in cases]
    ranks = jobs[0].ranks
    kept(ranks).run(_rank, ranks, jobs, str(folder), timeout_s=300.0)
    parts = [pickle.loads((folder / f"torch{rank}").read_bytes()) for rank in range(ranks)]
    by_case = zip(*parts, strict=True)
    return [[next(mean for mean in means if mean is not None) for means in zip(*case, strict=True)] for case in by_case]


def _rank(rank: int, ranks: int, jobs: Sequence[Any], folder: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    peers: Any = importlib.import_module("executor_peers")
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/torch-rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    done = []
    for job in jobs:
        schedule = peers.TorchSchedule(peers.OWN, job, rank)
        means: list[float | None] = []
        for step in range(STEPS):
            schedule.prepare(step)
            losses = schedule.step(step).losses
            means.append(sum(losses.values()) / len(losses) if losses else None)
        done.append(means)
    Path(folder, f"torch{rank}").write_bytes(pickle.dumps(done))
    dist.destroy_process_group()
