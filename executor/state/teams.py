"""What all ranks of a team have alike stays alike: whatever it does not divide between them."""

from __future__ import annotations

from collections.abc import Mapping

from ..basics import ExecutionError, RunError
from ..wires import Transport
from .digests import digest
from .holders import held
from .replica import Blueprint, StageReplica


def compare_lanes(transport: Transport, blueprint: Blueprint, replicas: Mapping[int, StageReplica], steps: int) -> None:
    """What a team divides between its lanes aside, all of them have the same; collective among every team.

    Raises RunError before training (`steps` 0): it does not follow from the seed; ExecutionError later.
    """
    if transport.seat.size == 1:
        return
    divided = {key for replica in replicas.values() for key in replica.weights.named_shards(blueprint.layer_names)}
    mine = {
        name: digest(found.tensor)
        for name, found in held(blueprint, replicas, trained=steps > 0).items()
        if name.replace("masters/", "parameters/") not in divided
    }
    first, *others = transport.gather_team(mine)
    for lane, other in enumerate(others, 1):
        name = next((name for name in first if first[name] != other.get(name)), None)
        if name is not None:
            ranks = f"ranks {transport.seat.mates[0]} and {transport.seat.mates[lane]}"
            if steps == 0:
                raise RunError(f"{ranks}, of one team, start with different {name}: it does not follow from the seed")
            raise ExecutionError(f"{ranks}, of one team, have different {name} after step {steps}")
