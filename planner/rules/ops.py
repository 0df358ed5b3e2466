"""Which ops must every device have? The ops that a plan's routes and stash policies ask for, and every difference.

The columns are the graph's; the rules, `messages` among them, are the checker's own, so that what lowering forgets or
adds is found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..graph import Flags, Homes, Ints, StageCosts
from ..plan import Kind, Op
from .columns import Columns, Listed, Violation


def messages(costs: StageCosts, homes: Homes) -> tuple[Columns, Columns]:
    """Every message of a step: the SEND at its source and, in the same row, the RECV at its target.

    Activations and gradients of every edge whose stages run on different devices; stashes that go to their backward
    device, or are shipped there and back; new parameters for devices that only run a forward.
    """
    sends, receives = [], []

    def add(kinds: tuple[Kind, Kind], source: Columns, target: Columns) -> None:
        sends.append(Columns.of(kinds[0], source.stage, source.micro_batch, source.device, source.peer))
        receives.append(Columns.of(kinds[1], target.stage, target.micro_batch, target.device, target.peer))

    producers, consumers = np.array([edge[:2] for edge in costs.edges], dtype=np.int64).reshape(-1, 2).T
    for kinds, home, forward in (
        ((Kind.SEND_F, Kind.RECV_F), homes.device, True),
        ((Kind.SEND_B, Kind.RECV_B), homes.back, False),
    ):
        edge, m = np.nonzero(home[producers] != home[consumers])
        producer, consumer = producers[edge], consumers[edge]
        up = Columns.of(0, producer, m, home[producer, m], consumer)
        down = Columns.of(0, consumer, m, home[consumer, m], producer)
        add(kinds, *((up, down) if forward else (down, up)))
    stash = (Kind.SEND_S, Kind.RECV_S)
    for where, goal in ((homes.shipped, homes.away), (homes.moved, homes.back)):
        stage, m = np.nonzero(where)
        if not len(stage):
            continue
        home, away = homes.device[stage, m], goal[stage, m]
        here, there = Columns.of(0, stage, m, home, away), Columns.of(0, stage, m, away, home)
        add(stash, here, there)
        if goal is homes.away:
            add(stash, there, here)
    stage, source, target = homes.returned
    some = (costs.trained_bytes[stage] > 0) | bool(homes.update)
    if some.any():
        stage, source, target = stage[some], source[some], target[some]
        m = homes.update_ends[:, None]
        ends = Columns.of(0, stage, m, source, target), Columns.of(0, stage, m, target, source)
        add((Kind.SEND_P, Kind.RECV_P), *ends)
    return Columns.join(sends), Columns.join(receives)


def required_ops(costs: StageCosts, homes: Homes) -> Columns:
    """Every op that must be there exactly once, backwards apart (those may be B, or I and W)."""
    parts = [*messages(costs, homes)]
    chosen = {
        Kind.F: homes.device >= 0,
        Kind.R: homes.remade,
        Kind.OFFLOAD: homes.hosted,
        Kind.FETCH: homes.hosted,
    }
    for kind, where in chosen.items():
        stage, m = np.nonzero(where)
        parts.append(Columns.of(kind, stage, m, homes.of_kind(kind)[stage, m]))
    held = homes.held
    replicated = held & (held.sum(axis=0) > 1)
    gathered = replicated & homes.sharded
    for kind, where in ((Kind.STEP, held), (Kind.REDUCE, replicated), (Kind.GATHER, gathered)):
        device, stage = np.nonzero(where)
        parts.append(Columns.of(kind, stage, homes.update_ends[:, None], device))
    return Columns.join([*parts, tie_ops(costs, homes)])


def tie_ops(costs: StageCosts, homes: Homes) -> Columns:
    """A TIE on every device that holds a copy of tied parameters, where several do."""
    parts, owners = [], homes.owners if costs.ties else {}
    for tie in costs.ties:
        copies = tie.copies(owners)
        if len(copies) > 1:
            device, stage = (np.array(list(x), dtype=np.int64) for x in (copies.keys(), copies.values()))
            parts.append(Columns.of(Kind.TIE, stage, homes.update_ends[:, None], device, tie.number))
    return Columns.join(parts)


def allowed_ops(homes: Homes) -> Columns:
    """Ops that may be there: backwards, whole or in halves, and one FREE for every stash that leaves its device."""
    parts = [Columns.of_tables(kind, homes.back) for kind in (Kind.B, Kind.I, Kind.W)]
    stage, m = np.nonzero(homes.hosted | homes.shipped | homes.moved)
    return Columns.join([*parts, Columns.of(Kind.FREE, stage, m, homes.device[stage, m])])


def op_sets(costs: StageCosts, listed: Listed) -> list[Violation]:
    """Every op that is missing, there more than once, or where it does not belong; device after device.

    PREDICTs apart: which must be there depends on the order of the others.
    """
    homes = listed.homes
    required = required_ops(costs, homes)
    found = [*_repeated(listed), *_unexpected(listed, required), *_missing(listed, required)]
    found += _backwards(costs, listed)
    return [violation for _, violation in sorted(found, key=lambda entry: entry[0])]


def _at(device: int, code: str, message: str) -> tuple[int, Violation]:
    return device, Violation(code, f"device {device}", message)


def _repeated(listed: Listed) -> Iterator[tuple[int, Violation]]:
    runs = np.flatnonzero(np.concatenate([[True], listed.sorted_key[1:] != listed.sorted_key[:-1]])[: len(listed)])
    count = np.diff(runs, append=len(listed))
    first = listed.by_key[runs]
    named = (listed.sorted_key[runs] >= 0) & (listed.columns.kind[first] != Kind.PREDICT)
    for k in np.flatnonzero(named & (count > 1)).tolist():
        device = int(listed.columns.device[first[k]])
        yield _at(device, "repeated-op", f"{listed.op(int(first[k]))} appears {count[k]} times")
    strange: Counter[tuple[int, Op]] = Counter(
        (int(listed.columns.device[k]), listed.op(k))
        for k in np.flatnonzero((listed.key < 0) & (listed.columns.kind != Kind.PREDICT)).tolist()
    )
    for (device, op), times in strange.items():
        if times > 1:
            yield _at(device, "repeated-op", f"{op} appears {times} times")


def _unexpected(listed: Listed, required: Columns) -> Iterator[tuple[int, Violation]]:
    homes = listed.homes
    known = np.sort(np.concatenate([required.keys(homes), allowed_ops(homes).keys(homes)]))
    nearest = known[np.minimum(np.searchsorted(known, listed.sorted_key), len(known) - 1)]
    named: set[tuple[int, Op]] = set()
    strange = listed.by_key[nearest != listed.sorted_key]
    for k in np.sort(strange[listed.columns.kind[strange] != Kind.PREDICT]).tolist():
        device, op = int(listed.columns.device[k]), listed.op(k)
        if (device, op) not in named:
            named.add((device, op))
            yield _at(device, "unexpected-op", f"{op} does not belong here")


def _missing(listed: Listed, required: Columns) -> Iterator[tuple[int, Violation]]:
    for k in np.flatnonzero(listed.find(required) < 0).tolist():
        yield _at(int(required.device[k]), "missing-op", f"{required.op(k)} is missing")


def _backwards(costs: StageCosts, listed: Listed) -> Iterator[tuple[int, Violation]]:
    """Every stage of every micro-batch needs B alone, or both I and W where its backward can be split."""
    home = listed.homes.back
    whole, inputs, weights = (listed.table(kind) >= 0 for kind in (Kind.B, Kind.I, Kind.W))

    def each(where: Flags) -> Iterator[tuple[int, int, int]]:
        stage, m = np.nonzero(where)
        device: Ints = home[stage, m]
        return zip(device.tolist(), stage.tolist(), m.tolist(), strict=True)

    for device, stage, m in each(whole & (inputs | weights)):
        yield _at(device, "repeated-op", f"{Op(Kind.B, stage, m)} stands beside its halves")
    for device, stage, m in each(~whole & ~(inputs & weights)):
        kind = Kind.W if inputs[stage, m] else Kind.I if weights[stage, m] else Kind.B
        yield _at(device, "missing-op", f"{Op(kind, stage, m)} is missing")
    separable = np.array(costs.separable, dtype=np.bool_)[:, None]
    for device, stage, m in each(~whole & inputs & weights & ~separable):
        op = Op(Kind.I, stage, m)
        yield _at(device, "unexpected-op", f"{op}: the backward of stage {stage} cannot be split")
