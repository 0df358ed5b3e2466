"""The tensors of one rank's run: saved, taken up again, and left at its end."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ..basics import LossScaler
from ..state import Blueprint, StageReplica
from ..wires import Transport
from .job import Job
from .saving import Saver
from .wholes import Wholes


def saver_of(job: Job, transport: Transport, blueprint: Blueprint, replicas: dict[int, StageReplica]) -> Saver | None:
    """What saves the run, if it is saved; collective."""
    if job.checkpoint is None:
        return None
    state = partial(named_state, blueprint, replicas)
    wholes = Wholes.of(transport, blueprint, replicas.values())
    return Saver(job.checkpoint, job.identity, wholes, state, job.first + job.steps)


def resume(job: Job, saver: Saver, replicas: dict[int, StageReplica], scaler: LossScaler, transport: Transport) -> None:
    """Loads the checkpoint that the run goes on from, if it does."""
    if job.checkpoint is None or not job.checkpoint.resume:
        return
    scaler.resume(saver.resume(job.first))
    taken_up(job.first, replicas, scaler, transport)


def taken_up(step: int, replicas: dict[int, StageReplica], scaler: LossScaler, transport: Transport) -> None:
    """What follows from tensors read after so many steps; 16-bit copies of others' masters come from them."""
    for replica in replicas.values():
        replica.weights.set_step(step - scaler.skipped)
        if replica.group is not None:
            for values in replica.gathered:
                transport.all_gather(values, replica.group).wait()


def final_state(transport: Transport, blueprint: Blueprint, replicas: dict[int, StageReplica]) -> dict[str, Tensor]:
    """What the rank leaves of the state: all of a device's on the first lane of its team."""
    wholes = Wholes.of(transport, blueprint, replicas.values())
    state = {wholes.name(key): tensor for key, tensor in named_state(blueprint, replicas, current=True).items()}
    size, mine = transport.seat.size, {transport.rank: None}
    savers = {name: min(wholes.pieces.get(name, mine)) * size for name in sorted(state)}
    made = {name: wholes.made(name, state[name], saver) for name, saver in savers.items()}
    return {name: tensor for name, tensor in made.items() if tensor is not None}


def named_state(blueprint: Blueprint, replicas: dict[int, StageReplica], current: bool = False) -> dict[str, Tensor]:
    """Every tensor of the rank by checkpoint key.

    `current`: without what is up to date on other ranks only: buffers where no forward runs, parameters where no
    backward does.
    """
    state: dict[str, Tensor] = {}
    for replica in replicas.values():
        for key, tensor in replica.weights.named_state(blueprint.layer_names).items():
            if not current or (replica.runs_forward if key.startswith("buffers/") else replica.owner):
                state[key] = tensor
    return state
