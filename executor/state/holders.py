"""What several ranks hold is the same on all of them: made so before training, compared afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ...planner.problem import WEIGHT_POLICIES
from ..basics import ExecutionError, RunError
from ..wires import Handle, Transport
from .digests import digest
from .replica import Blueprint, StageReplica
from .weights import public_name


class Held(NamedTuple):
    """A tensor of a rank's replica of a stage. `given`: what it is compared with is another rank's to give."""

    stage: int
    tensor: Tensor
    given: bool


Table = Mapping[str, tuple[int, bool, str]]
"""What one rank holds, by name: stage, `Held.given`, hash."""


def held(blueprint: Blueprint, replicas: Mapping[int, StageReplica], trained: bool) -> dict[str, Held]:
    """Every tensor of a rank by a name that all its holders have; tied parameters by their first member's.

    trained: without what a rank need not have any more: buffers that only other ranks' forwards change, and
    parameters that are sent as predictions.
    """
    first = _first_members(blueprint)
    predicted = trained and WEIGHT_POLICIES[blueprint.plan.weights].predicts
    found: dict[str, Held] = {}
    for stage, replica in replicas.items():
        weights = replica.weights
        groups: dict[str, Mapping[str, Tensor]] = {"buffers": weights.buffers, "parameters": weights.parameters}
        pieces = () if weights.shares is None else weights.shares.pieces  # only this rank has them
        groups |= {
            f"optimizer/{key}": {name: state for name, state in states.items() if name not in pieces}
            for key, states in weights.states.items()
        }
        masters = {k: v for k, v in weights.trained.items() if v is not weights.parameters[k]}
        groups["masters"] = {name: master for name, master in masters.items() if name not in pieces}
        if trained and not replica.runs_forward:
            del groups["buffers"]
        if predicted and not replica.owner:
            del groups["parameters"]
        for group, named in groups.items():
            for name, tensor in named.items():
                key = f"{group}/{public_name(first.get(name, name), blueprint.layer_names)}"
                if key not in found or replica.owner:
                    found[key] = Held(stage, tensor, not replica.owner)
    return found


def _first_members(blueprint: Blueprint) -> dict[str, str]:
    ids = {name: index for index, name in enumerate(blueprint.layer_names)}
    ties = ([f"{ids[layer]}.{name}" for layer, name in tie.members] for tie in blueprint.model.ties)
    return {name: members[0] for members in ties for name in members}


def _tables(transport: Transport, mine: Mapping[str, Held]) -> list[Table]:
    """Hashes of what more than one rank holds, of all ranks; collective."""
    names: list[set[str]] = transport.all_gather_object(set(mine))
    others = set().union(*(theirs for rank, theirs in enumerate(names) if rank != transport.rank))
    table = {k: (v.stage, v.given, digest(v.tensor)) for k, v in mine.items() if k in others}
    tables: list[Table] = transport.all_gather_object(table)
    return tables


def _unlike(tables: list[Table]) -> Iterator[tuple[str, int, list[int]]]:
    """Of every tensor whose holders differ: name, the rank whose copy counts, the holders that have another."""
    for name in sorted(set().union(*tables)):
        entries = {rank: table[name] for rank, table in enumerate(tables) if name in table}
        source = min(entries, key=lambda rank: (entries[rank][1], rank))
        others = [rank for rank, entry in entries.items() if entry[2] != entries[source][2]]
        if others:
            yield name, source, others


def equalise(
    transport: Transport,
    blueprint: Blueprint,
    replicas: Mapping[int, StageReplica],
    tell: Callable[[int, str], None],
) -> None:
    """Gives all holders of a tensor one copy of it, that of the lowest rank that trains it; collective.

    Nothing travels where all have the same already, as they do unless a layer's values follow from something else
    than the seed: the clock, a generator of its own, a file.

    Args:
        tell: called with a stage and what was different there.

    Raises:
        RunError: a layer keeps different tensors that are neither parameters nor buffers, so that they cannot be sent.
    """
    _require_like(transport, replicas, blueprint.layer_names)
    mine = held(blueprint, replicas, trained=False)
    handles: list[Handle] = []
    arriving: list[tuple[Tensor, Tensor]] = []
    told: set[int] = set()
    for tag, (name, source, others) in enumerate(_unlike(tables := _tables(transport, mine))):
        stage = tables[source][name][0]
        if stage not in told:
            told.add(stage)
            tell(
                stage,
                f"stage {stage}: the initial {name} of ranks {source} and {others[0]} differ: they do not follow from "
                f"the seed. All copies are now rank {source}'s",
            )
        if transport.rank == source:
            sent = _as_bytes(mine[name].tensor)
            handles += [transport.post_send(sent, other, tag) for other in others]
        elif transport.rank in others:
            buffer = torch.empty_like(_as_bytes(mine[name].tensor))
            arriving.append((mine[name].tensor, buffer))
            handles.append(transport.post_receive(buffer, source, tag))
    for handle in handles:
        handle.wait()
    with torch.no_grad():
        for tensor, values in arriving:
            tensor.copy_(values.view(tensor.dtype).view(tensor.shape))
    for replica in replicas.values():
        if replica.weights.shares is not None:
            replica.weights.shares.follow()


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _require_like(transport: Transport, replicas: Mapping[int, StageReplica], layer_names: tuple[str, ...]) -> None:
    """Tensors that a layer keeps by itself are part of its code: ranks that hold the layer have the same."""
    mine = {name: found for replica in replicas.values() for name, found in replica.unregistered.items()}
    first: dict[str, tuple[int, str]] = {}
    for rank, theirs in enumerate(transport.all_gather_object(mine)):
        for name, found in theirs.items():
            other, known = first.setdefault(name, (rank, found))
            if known != found:
                layer_id, _, path = name.partition(".")
                raise RunError(
                    f"layer {layer_names[int(layer_id)]!r}: ranks {other} and {rank} have other values in {path}, "
                    "which is neither a parameter nor a buffer: register it as one"
                )


def compare_holders(
    transport: Transport, blueprint: Blueprint, replicas: Mapping[int, StageReplica], step: int
) -> None:
    """After `step` steps, at the end of a run: all holders of a tensor still have the same; collective.

    Raises ExecutionError, on all ranks, naming the first tensor that differs, two ranks and the step.
    """
    for name, source, others in _unlike(_tables(transport, held(blueprint, replicas, trained=True))):
        raise ExecutionError(
            f"ranks {source} and {others[0]} have different {name} after step {step}: they hold copies of one tensor"
        )
