"""Numbers that may be chosen: of micro-batches, of directions, of devices that are alike."""

from __future__ import annotations

from ...plan import Kind
from .timetable import Literal
from .variables import Variables


def directions_are_numbered(v: Variables) -> None:
    """Micro-batches that go down come first, at least one each way; where directions are alike no fewer go down."""
    if not v.up:
        return
    for a, b in zip(v.up, v.up[1:], strict=False):
        v.model.add_implication(a, b)
    v.model.add(v.up[0] == 0)
    v.model.add(v.up[-1] == 1)
    if v.instance.alike:
        v.model.add(sum(v.up) <= v.instance.micro_batches // 2)


def devices_are_numbered(v: Variables) -> None:
    """Devices that are alike: those of backwards are numbered as they come."""
    if not (v.instance.open and v.instance.alike):
        return
    for s in range(len(v.instance.stages)):
        for d, here in enumerate(v.choices[s, 0].rear):
            if d:
                v.model.add_bool_or([~here, *(v.choices[t, 0].rear[d - 1] for t in range(s))])


def first_in_first_out(v: Variables) -> None:
    """Ops of one kind, stage and direction, and the times of its stashes, in the order of micro-batches."""
    for k in range(v.instance.micro_batches - 1):
        same = _same_direction(v, k)
        for s, stage in enumerate(v.instance.stages):
            for kind in (*stage.kinds, *([Kind.R] if v.instance.open else [])):
                if (kind, s, k) in v.start:
                    v.after(v.start[kind, s, k + 1], kind, s, k, same)
            if not v.instance.open and (Kind.R, s, k) in v.start:  # some are not made again: no time between
                v.when(same, v.start[Kind.R, s, k + 1] >= v.start[Kind.R, s, k])
            if (s, k) in v.moves:
                for earlier, later in zip(v.moves[s, k].own, v.moves[s, k + 1].own, strict=True):
                    v.when(same, later >= earlier)


def _same_direction(v: Variables, k: int) -> Literal:
    """When a micro-batch and the next take the same direction."""
    if not v.up:
        return True
    same = v.model.new_bool_var(f"same{k}")
    v.model.add(v.up[k] == v.up[k + 1]).only_enforce_if(same)
    v.model.add(v.up[k] + v.up[k + 1] == 1).only_enforce_if(~same)
    return same
