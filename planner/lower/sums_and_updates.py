"""Where gradient sums, optimizer steps and new parameters go: after the last backwards of a step or an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..graph import Ints, Versions, holders, on_lists, parameter_bytes, parameter_returns, update_ends, update_size
from ..plan import Kind
from ..problem import FLUSH, steps_sent
from .lowering import BEGIN, HERE, LAST, SEND, Lowering


def add_sums_and_updates(lowering: Lowering) -> None:
    """Adds REDUCEs and TIEs; in a synchronous plan also the STEPs that end it, and what takes new parameters on."""
    if lowering.candidate.weights == FLUSH:
        _add_step_end(lowering)
    else:
        _add_sums(lowering)


def _add_step_end(lowering: Lowering) -> None:
    """REDUCE after each replicated stage's last backward, STEP at the end in the order in which backwards end.

    A TIE follows the last backward of all its stages. A STEP is followed by its GATHER, where the optimizer is sharded,
    and the SEND_Ps of its new parameters, once all that write some of them are there: a tied parameter is updated by
    another stage's. Behind a GATHER they come last in their list, since the rank waits there.
    """
    given = lowering.given
    ended = given.where(Kind.B, Kind.W)
    last = np.full((given.devices, given.stages), -1, dtype=np.int64)
    np.maximum.at(last, (given.device[ended], given.stage[ended]), ended)
    owners = holders(lowering.candidate)
    owned = [(device, stage) for stage, devices in owners.items() for device in devices]
    device, stage = np.array(owned, dtype=np.int64).reshape(-1, 2).T
    after = last[device, stage]
    replicated = (np.bincount(stage, minlength=given.stages)[stage] > 1) & (after >= 0)
    slot = after[replicated] + device[replicated]
    none = np.full(len(stage), -1)
    few = none[replicated]
    lowering.add(Kind.REDUCE, stage[replicated], few, few, device[replicated], slot, LAST)
    _add_ties(lowering, owners, last)
    order = np.lexsort((stage, after, device))
    stage, device = stage[order], device[order]
    returns = parameter_returns(lowering.candidate, lowering.costs) if lowering.homes.separate else []
    gathers = lowering.homes.sharded
    if not returns and not gathers:
        lowering.add(Kind.STEP, stage, none, none, device, lowering.end_slot[device], HERE)
        return
    rows: list[tuple[int, int, int, int]] = []
    waiting = [(steps_sent(lowering.costs.ties, owners, s, by, to), s, by, to) for s, by, to in returns]
    sent_last: list[tuple[int, int, int, int]] = []
    for s, d in zip(stage.tolist(), device.tolist(), strict=True):
        rows.append((Kind.STEP, s, -1, d))
        rows += [(Kind.GATHER, s, -1, d)] if gathers and len(owners[s]) > 1 else []
        for steps, sent_stage, _, to in [item for item in waiting if item[2] == d]:
            steps.discard(s)
            (sent_last if gathers else rows).extend([] if steps else [(Kind.SEND_P, sent_stage, to, d)])
        waiting = [item for item in waiting if item[0]]
    rows += sent_last
    kind, stage, peer, device = np.array(rows, dtype=np.int64).T
    items = lowering.add(kind, stage, np.full(len(kind), -1), peer, device, lowering.end_slot[device], HERE)
    sent = kind == Kind.SEND_P
    if not sent.any():
        return
    size = parameter_bytes(lowering.costs, lowering.ops, items[sent])
    lowering.add_receives(Kind.RECV_P, items[sent], peer[sent], size)


def _add_ties(lowering: Lowering, owners: Mapping[int, Sequence[int]], last: Ints) -> None:
    """A TIE on every device that holds a copy of tied parameters, where several do, after the last backward there.

    last: the last backward of every [device, stage].
    """
    rows = []
    for tie in lowering.costs.ties:
        copies = tie.copies(owners)
        after = {device: int(last[device, list(tie.stages)].max()) for device in copies}
        if len(copies) > 1:
            rows += [(home, tie.number, d, after[d] + d) for d, home in copies.items() if after[d] >= 0]
    if rows:
        stage, number, device, slot = np.array(rows, dtype=np.int64).T
        lowering.add(Kind.TIE, stage, np.full(len(rows), -1), number, device, slot, LAST)


def _add_sums(lowering: Lowering) -> None:
    """REDUCE and TIE of every update right after its last backward on each device that owns the stage.

    Where an update has no backward there, after the STEP before it, whose gradients it must not meet.
    """
    owners, costs = holders(lowering.candidate), lowering.costs
    for stage, devices in owners.items():
        if len(devices) > 1:
            for device in devices:
                _add_sum(lowering, Kind.REDUCE, device, [stage], -1)
    for tie in costs.ties:
        copies = tie.copies(owners)
        if len(copies) > 1:
            for device in copies:
                _add_sum(lowering, Kind.TIE, device, [s for s in tie.stages if device in owners[s]], tie.number)
    if lowering.homes.separate:
        _add_returns(lowering)


def _add_returns(lowering: Lowering) -> None:
    """SEND_P of every update's new parameters right after the STEPs that write them, or after the PREDICT for it."""
    given, candidate, ends = lowering.given, lowering.candidate, update_ends(lowering.candidate)
    owners = holders(candidate)
    ahead = Versions.of(on_lists(candidate, given.lists())).sent_ahead
    made: dict[tuple[int, int, int], list[int]] = {}
    known = {}
    for k in given.where(Kind.STEP, Kind.PREDICT, Kind.RECV_P).tolist():
        key = int(given.device[k]), int(given.stage[k]), int(given.micro_batch[k])
        if given.kind[k] == Kind.RECV_P:
            known[key] = k
        elif given.kind[k] == Kind.STEP or key in made:
            made.setdefault(key, []).append(k)
    for stage, source, target in parameter_returns(candidate, lowering.costs):
        places = []
        for g, m in enumerate(ends):
            step, *predicts = made[source, stage, m]
            places.append(predicts[0] if predicts and (stage, target, g) in ahead else step)
            made[source, stage, m] = [step, *predicts[len(predicts) > 0 and places[-1] != step :]]
            writers = steps_sent(lowering.costs.ties, owners, stage, source, target) - {stage}
            places[-1] = max([places[-1], *(made[source, writer, m][0] for writer in writers)])
        _add_sent(lowering, stage, target, np.array(places), [known.get((target, stage, m), -1) for m in ends])


def _add_sent(lowering: Lowering, stage: int, target: int, after: Ints, received: list[int]) -> None:
    """SEND_Ps to one device after these given ops, joined with the RECV_Ps that are given (-1: not given)."""
    given, ends = lowering.given, np.array(update_ends(lowering.candidate))
    device, peer = given.device[after], np.full(len(ends), target)
    sent = lowering.add(Kind.SEND_P, np.full(len(ends), stage), ends, peer, device, after + device, SEND)
    size, have = parameter_bytes(lowering.costs, lowering.ops, sent), np.array(received)
    some = have >= 0
    lowering.link(sent[some], have[some], size[some], False, given=True)
    lowering.add_receives(Kind.RECV_P, sent[~some], peer[~some], size[~some])


def _add_sum(lowering: Lowering, kind: Kind, device: int, stages: list[int], peer: int) -> None:
    """A sum of every update of these stages, the lowest first, on one device."""
    given, size = lowering.given, update_size(lowering.candidate)
    mine = np.arange(len(given))[(given.device == device) & np.isin(given.stage, stages)]
    updates = lowering.candidate.problem.workload.micro_batches // size
    last = np.full(updates, -1, dtype=np.int64)
    ended = mine[np.isin(given.kind[mine], (Kind.B.value, Kind.W.value))]
    np.maximum.at(last, given.micro_batch[ended] // size, ended)
    steps = mine[given.kind[mine] == Kind.STEP.value]
    following = given.micro_batch[steps] // size + 1
    inside = following < updates
    np.maximum.at(last, following[inside], steps[inside])
    first = last < 0
    slot = np.where(first, lowering.first_slot[device], last + device)
    micro_batch = size * np.arange(1, updates + 1) - 1
    for where, some in ((BEGIN, first), (LAST, ~first)):
        count = int(some.sum())
        full = [np.full(count, value, dtype=np.int64) for value in (min(stages), peer, device)]
        lowering.add(kind, full[0], micro_batch[some], full[1], full[2], slot[some], where)
