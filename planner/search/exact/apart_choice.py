"""What one stage chooses in `apart_model`: its devices, and what happens to its stashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

from ...graph import KEEP, OFFLOAD, RECOMPUTE, SHIP

if TYPE_CHECKING:
    from .apart_model import ApartModel

Literal = cp_model.LiteralT


@dataclass(frozen=True)
class Choice:
    """What a stage chooses: devices, and a fate of its stashes.

    Attributes:
        pair: by forward and backward device. `front`, `rear`: by device, that its F, its backward runs there.
        same: one device for both. `fate`: by policy. `away`: by device, that stashes are shipped there and back.
        moved: stashes, or what recompute keeps, go straight from device to device. `arrives`: by message: moved, or
            shipped back. `carried`: the stash itself leaves the device of its F, to be used elsewhere or later.
        stays: it does not, nor is it made again.
    """

    pair: list[list[Literal]]
    front: list[Literal]
    rear: list[Literal]
    same: Literal
    fate: dict[str, Literal]
    away: list[Literal]
    moved: Literal
    arrives: Literal
    carried: Literal
    stays: Literal

    @classmethod
    def of(cls, owner: ApartModel, s: int) -> Choice:
        """The variables of a stage."""
        model, instance, devices = owner.model, owner.instance, range(owner.instance.devices)

        def row() -> list[Literal]:
            return [model.new_bool_var("") for _ in devices]

        pair, front, rear, away = [row() for _ in devices], row(), row(), row()
        same, moved, arrives, carried = (model.new_bool_var("") for _ in range(4))
        model.add_exactly_one(x for line in pair for x in line)
        for d in devices:
            model.add(sum(pair[d]) == front[d])
            model.add(sum(line[d] for line in pair) == rear[d])
            model.add_implication(away[d], ~front[d])
        model.add(sum(pair[d][d] for d in devices) == same)
        fate: dict[str, Literal] = {policy: model.new_bool_var(policy) for policy in (KEEP, RECOMPUTE, OFFLOAD, SHIP)}
        model.add_exactly_one(fate.values())
        for policy in fate.keys() - instance.policies:
            model.add(fate[policy] == 0)
        model.add(sum(away) == fate[SHIP])
        model.add_implication(fate[SHIP], same)
        for a in devices:
            for b in devices:
                if instance.node[a] != instance.node[b]:
                    model.add_implication(fate[OFFLOAD], ~pair[a][b])
        stays = owner.every(fate[KEEP], same)
        again = owner.every(fate[RECOMPUTE], same)
        model.add_exactly_one(stays, again, fate[OFFLOAD], arrives)
        model.add_exactly_one(stays, again, fate[OFFLOAD], fate[SHIP], moved)
        model.add_exactly_one(stays, fate[RECOMPUTE], carried)
        return cls(pair, front, rear, same, fate, away, moved, arrives, carried, stays)
