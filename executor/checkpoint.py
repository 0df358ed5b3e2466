"""Checkpoints with torch.distributed.checkpoint, keyed by layer name: another plan can go on from them.

A directory holds one folder a checkpoint, "step-00000010": complete as soon as it has that name.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from ..planner.plan import Plan
from .errors import RunError
from .training import INITIAL_SCALE
from .transport import Transport

_META = "contraflow.json"
_NAME = re.compile(r"step-(\d{8})")


def save(
    directory: str,
    state: dict[str, Tensor],
    step: int,
    plan: Plan,
    transport: Transport,
    scaler: Mapping[str, float | int],
) -> None:
    """Saves all ranks' state after `step` steps; collective. Replicas' tensors are stored once.

    `scaler`: see `LossScaler.to_dict`.
    """
    folder = Path(directory)
    target, partial = folder / f"step-{step:08d}", folder / f"step-{step:08d}.part"
    if transport.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
    transport.barrier()
    if dist.is_initialized():
        save_state(state, checkpoint_id=partial)
    else:
        gathered = transport.all_gather_object(state)
        if transport.rank == 0:
            merged = {key: tensor for part in gathered for key, tensor in part.items()}
            with _quiet():
                save_state(merged, checkpoint_id=partial, no_dist=True)
    transport.barrier()
    if transport.rank == 0:
        meta = {
            "step": step,
            "optimizer": plan.problem.workload.optimizer,
            "fingerprint": plan.problem.model.fingerprint,
            "scaler": dict(scaler),
        }
        (partial / _META).write_text(json.dumps(meta) + "\n")
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    transport.barrier()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning that one process is assumed where one process is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def newest(directory: str | Path) -> Path:
    """The folder of the newest complete checkpoint; raises RunError when there is none."""
    folder = Path(directory)
    found = sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name)) if folder.is_dir() else []
    if not found:
        raise RunError(f"there is no checkpoint to resume from in {directory}")
    return found[-1]


def check_resumable(directory: str | Path, plan: Plan) -> int:
    """The step of the newest checkpoint; raises RunError unless it is of this model and optimizer."""
    path = newest(directory)
    try:
        meta = json.loads((path / _META).read_text())
        step, optimizer, fingerprint = int(meta["step"]), meta["optimizer"], meta["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a complete checkpoint ({error})") from None
    if fingerprint != plan.problem.model.fingerprint:
        raise RunError(f"{path} is of another model: fingerprint {fingerprint}, not {plan.problem.model.fingerprint}")
    if optimizer != plan.problem.workload.optimizer:
        raise RunError(f"{path} was trained with {optimizer}, the plan says {plan.problem.workload.optimizer}")
    return step


def kept_scaler(directory: str | Path) -> dict[str, float | int]:
    """The loss scale's state in the newest checkpoint; raises RunError when it is not one."""
    path = newest(directory) / _META
    kept: dict[str, float | int] = {"scale": INITIAL_SCALE, "good": 0, "skipped": 0}  # where none was kept
    kept |= json.loads(path.read_text()).get("scaler", {})
    if not all(isinstance(value, int | float) for value in kept.values()):
        raise RunError(f"{path}: the loss scale is not made of numbers: {kept}")
    return kept


def load(directory: str, state: dict[str, Tensor], plan: Plan) -> int:
    """Loads the newest checkpoint into a rank's tensors, in place; returns the steps taken.

    Raises RunError: no checkpoint, another model, another optimizer, or tensors that do not match.
    """
    step = check_resumable(directory, plan)
    path = newest(directory)
    try:
        with _quiet():
            load_state(state, checkpoint_id=path, no_dist=True)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"cannot resume from {path}: {reason}") from None
    return step
