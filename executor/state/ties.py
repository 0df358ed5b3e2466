"""Tied parameters: a rank keeps one tensor for all member layers it runs, with one gradient and one optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...models import LayeredModel, Piece, in_pieces
from ...models.lanes import Lane
from ...models.protocol import build_shapes
from ...planner.graph import StageCosts, holders
from ...planner.plan import Plan
from ..basics import RunError


def tied_bytes(
    model: LayeredModel, dtype: torch.dtype, of: Sequence[Piece] | None = None, lane: Lane | None = None
) -> list[tuple[tuple[str, ...], int]]:
    """Member layers (or `of` the pieces that hold them) and bytes of every tie of a model.

    Raises ValueError naming the first member that does not exist or differs from its first in shape, type or training,
    or a tie inside one piece.
    """
    specs = {spec.name: spec for spec in model.layers}
    found: list[tuple[tuple[str, ...], int]] = []
    for tie in model.ties:
        kinds: list[_Kind] = []
        for layer, name in tie.members:
            kinds.append(_kind(build_shapes(specs[layer], lane).to(dtype), layer, name))
            if kinds[-1] != kinds[0]:
                first, what = ".".join(tie.members[0]), _text(kinds[0])
                raise ValueError(f"layer {layer!r}: {name} is {_text(kinds[-1])}, but tied to {first}, which is {what}")
        shape, dtype_of, _ = kinds[0]
        count = torch.empty(shape, dtype=dtype_of, device="meta").nbytes
        members = tuple(layer for layer, _ in tie.members)
        holding = members if of is None else in_pieces(of, members, model)
        if len(holding) < 2:
            raise ValueError(f"{' and '.join(members)} are tied and in one layer, {holding[0]!r}: plan its parts")
        found.append((holding, count))
    return found


_Kind = tuple[tuple[int, ...], torch.dtype, bool]


def _kind(module: nn.Module, layer: str, name: str) -> _Kind:
    try:
        parameter = module.get_parameter(name)
    except AttributeError:
        raise ValueError(f"layer {layer!r} has no parameter {name!r} to tie") from None
    return tuple(parameter.shape), parameter.dtype, parameter.requires_grad


def _text(kind: _Kind) -> str:
    return f"{kind[0]} {kind[1]}{'' if kind[2] else ', not trained'}"


def match_ties(
    plan: Plan, model: LayeredModel, pieces: Sequence[Piece], dtype: torch.dtype, lane: Lane | None = None
) -> None:
    """Raises RunError unless the plan's model ties what this one ties; profiled in float32 or in `dtype`."""
    planned = [(group.layers, group.bytes) for group in plan.problem.model.shared]
    try:
        found = [tied_bytes(model, d, pieces, lane) for d in (dtype, torch.float32)]
    except ValueError as error:
        raise RunError(str(error)) from None
    if planned not in found:
        raise RunError(f"model {model.name!r} ties {_groups(found[0])}, the plan {_groups(planned)}")


def _groups(ties: Sequence[tuple[tuple[str, ...], int]]) -> str:
    return "; ".join(f"{', '.join(layers)} ({count} bytes)" for layers, count in ties) or "nothing"


def tie_modules(model: LayeredModel, layers: Sequence[nn.Module]) -> dict[str, str]:
    """Makes all layers of a model, in one process, share their tied parameters.

    Returns for every "<layer>/<parameter>" that is now another one the name of that other one, the tie's first.
    """
    modules = dict(zip((spec.name for spec in model.layers), layers, strict=True))
    same = {}
    for tie in model.ties:
        (layer, name), *others = tie.members
        value = modules[layer].get_parameter(name)
        for other, path in others:
            owner, _, attribute = path.rpartition(".")
            setattr(modules[other].get_submodule(owner), attribute, value)
            same[f"{other}/{path}"] = f"{layer}/{name}"
    return same


@dataclass(frozen=True)
class Sharing:
    """Where the tied parameters of one stage on a rank live. Parameters are named "<layer id>.<name in the layer>".

    Attributes:
        same: parameters that are another one of the stage.
        lent: parameters whose value and accumulator (None: not trained) another stage of the rank keeps.
        kept: group number -> the parameter that this stage keeps for the whole rank.
        summed: those of the numbers in `kept` whose gradient TIE sums: it has a buffer of its own.
        saved_as: kept parameter -> the tie's first member, under whose name it is saved.
    """

    same: dict[str, str] = field(default_factory=dict)
    lent: dict[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)
    summed: frozenset[int] = frozenset()
    saved_as: dict[str, str] = field(default_factory=dict)


Lender = Mapping[int, tuple[Tensor, Tensor | None]]
"""What stages built before keep for the rank: group number -> value and accumulator."""


def sharing(
    plan: Plan,
    model: LayeredModel,
    modules: Mapping[int, nn.Module],
    masters: Mapping[str, Tensor],
    lender: Lender,
    build: Callable[[int], nn.Module],
) -> Sharing:
    """How a stage made of these layers (by layer id) shares parameters; gives kept ones their first member's value.

    masters: of its 16-bit parameters, by "<layer id>.<name in the layer>". build: any layer, in the masters' type.
    """
    between = {tie.number for tie in StageCosts.of(plan.problem.model, plan.stages).ties}
    ids = {spec.name: index for index, spec in enumerate(model.layers)}
    found = Sharing(summed=frozenset(between))
    for number, tie in enumerate(model.ties):
        names = [(ids[layer], name) for layer, name in tie.members]
        mine = [f"{index}.{name}" for index, name in names if index in modules]
        if mine and number in lender:
            found.lent.update(dict.fromkeys(mine, lender[number]))
        elif mine:
            first, *others = mine
            found.kept[number] = first
            found.same.update(dict.fromkeys(others, first))
            index, name = names[0]
            found.saved_as[first] = f"{index}.{name}"
            if index not in modules:
                source = build(index).get_parameter(name)
                layer_id, _, path = first.partition(".")
                with torch.no_grad():
                    modules[int(layer_id)].get_parameter(path).copy_(source)
                    if first in masters:
                        masters[first].copy_(source)
    return found


def own_copies(plan: Plan, model: LayeredModel, stage: int, rank: int) -> set[str]:
    """Tied parameters of a stage of which a rank steps a copy of its own: it needs no new values from others."""
    owners = holders(plan)
    ids = {spec.name: index for index, spec in enumerate(model.layers)}
    return {
        f"{ids[layer]}.{name}"
        for tie in StageCosts.of(plan.problem.model, plan.stages).ties
        if stage in tie.stages and rank in tie.copies(owners)
        for layer, name in model.ties[tie.number].members
    }


def repeated(model: LayeredModel, names: Collection[str]) -> set[str]:
    """Of the parameters of a stage, those that are an earlier one: all members of a tie there but its first."""
    ids = {spec.name: index for index, spec in enumerate(model.layers)}
    ties = ([f"{ids[layer]}.{name}" for layer, name in tie.members] for tie in model.ties)
    return {name for members in ties for name in [member for member in members if member in names][1:]}


def ties_of(plan: Plan, stage: int) -> tuple[int, ...]:
    """Numbers of the groups that a stage shares with other stages."""
    costs = StageCosts.of(plan.problem.model, plan.stages)
    return tuple(tie.number for tie in costs.ties if stage in tie.stages)
