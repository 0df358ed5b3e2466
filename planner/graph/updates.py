"""Puts STEPs and PREDICTs between the compute ops of a plan that updates weights more than once.

An update takes its size in micro-batches. Its STEP stands right after the last backward of them on its device; where
gradients are summed over devices first, right before the stage's next backward, so that forwards run meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from ..basics import PlanError
from ..plan import Kind, Op, Plan
from ..problem import BATCH, CURRENT, FLUSH, WEIGHT_POLICIES
from .candidate import Candidate
from .homes import parameter_returns
from .replicas import holders
from .structured import costs_of, update_ends, update_size
from .versions import Versions

_ENDS = frozenset({Kind.B, Kind.W})
_BACKWARD = frozenset({Kind.B, Kind.I, Kind.W})
_PREDICTED = frozenset({Kind.F, Kind.B, Kind.I})

OpLists = tuple[tuple[Op, ...], ...]


def with_updates(candidate: Candidate, compute_orders: Sequence[Sequence[Op]]) -> OpLists:
    """The compute orders with STEPs where they have none of a stage, and with all PREDICTs anew.

    Raises PlanError where an update's backwards do not all stand before those of the next, on one stage and device.
    """
    if candidate.weights == FLUSH:
        return tuple(map(tuple, compute_orders))
    stepped = on_lists(candidate, with_steps(candidate, compute_orders))
    require_fresh(stepped)
    return with_predictions(stepped)


def with_steps(candidate: Candidate, compute_orders: Sequence[Sequence[Op]]) -> list[list[Op]]:
    """The compute orders of a candidate without a flush with STEPs where they have none of a stage, and no PREDICT."""
    require_sound(candidate)
    late = _summed(candidate)
    owners = holders(candidate)
    lines = [[op for op in order if op.kind is not Kind.PREDICT] for order in compute_orders]
    places: list[dict[int, list[int]]] = []
    for device, line in enumerate(lines):
        given = {op.stage for op in line if op.kind is Kind.STEP}
        missing = [stage for stage, on in owners.items() if device in on and stage not in given]
        places.append(_places(candidate, device, line, {stage: stage in late for stage in missing}))
    if WEIGHT_POLICIES[candidate.weights].takes != CURRENT and late:
        first = [{0: mine[0]} if 0 in mine else {} for mine in places]
        entry = [_stepped(candidate, line, mine) for line, mine in zip(lines, first, strict=True)]
        _bring_forward(lines, places, Versions.of(on_lists(candidate, entry)).forward)
    return [_stepped(candidate, line, mine) for line, mine in zip(lines, places, strict=True)]


def with_returns(candidate: Candidate, compute_orders: Sequence[Sequence[Op]], ahead: Sequence[int]) -> list[list[Op]]:
    """The compute orders with the RECV_Ps of devices that only run forwards: what keeps these from running away.

    An update's stands before the first forward that is `ahead[stage]` micro-batches behind the update's last one, which
    then waits for its STEP; those that no forward waits for stand at the end. Where all forwards of an update take one
    version, it stands before the first of them: within an update both versions would have to be held. But not where
    two devices have several such stages: their parameters come in the order in which they are sent. `ahead`: at least
    1.
    """
    found, ends = [list(order) for order in compute_orders], update_ends(candidate)
    returns = parameter_returns(candidate, candidate.costs)
    ways = Counter((source, target) for _, source, target in returns)
    size = update_size(candidate) if WEIGHT_POLICIES[candidate.weights].takes == BATCH else 1
    for stage, source, target in returns:
        together = size if ways[source, target] == 1 else 1
        line: list[Op] = []
        waiting = deque(Op(Kind.RECV_P, stage, m, source) for m in ends)
        for op in found[target]:
            takes = op.kind is Kind.F and op.stage == stage
            while takes and waiting and waiting[0][2] <= op[2] // together * together - ahead[stage]:
                line.append(waiting.popleft())
            line.append(op)
        found[target] = [*line, *waiting]
    return found


def on_lists(candidate: Candidate, orders: Sequence[Sequence[Op]]) -> Plan:
    """The candidate's plan with these lists and no forecast."""
    c = candidate
    return Plan(c.problem, c.stages, c.pipelines, tuple(map(tuple, orders)), c.stash, c.weights)


def require_sound(candidate: Candidate) -> None:
    """Raises PlanError where a run of whole updates does not come out for this weight policy."""
    size, count = update_size(candidate), candidate.problem.workload.micro_batches
    if count % size:
        raise PlanError(f"updates of {size} micro-batches do not divide {count} micro-batches")


def require_fresh(plan: Plan) -> None:
    """Raises PlanError where updates are too small for as many micro-batches as stages have in flight."""
    size, stages = update_size(plan), len(plan.stages)
    most = WEIGHT_POLICIES[plan.weights].most_stale(size, stages)
    if most is not None and max(Versions.of(plan).most_stale.values()) > most:
        raise PlanError(
            f"weight policy {plan.weights!r} needs at least {stages} micro-batches an update for {stages} full stages, "
            f"has {size}"
        )


def _summed(candidate: Candidate) -> set[int]:
    """Stages whose gradients are summed over several devices before a STEP."""
    owners = holders(candidate)
    found = {stage for stage, devices in owners.items() if len(devices) > 1}
    for tie in candidate.costs.ties:
        if len(tie.copies(owners)) > 1:
            found |= set(tie.stages)
    return found


def _places(candidate: Candidate, device: int, order: list[Op], late: Mapping[int, bool]) -> dict[int, list[int]]:
    """Places in one device's list before which the STEPs of these stages go; `late`: before the next backward."""
    size = update_size(candidate)
    updates = candidate.problem.workload.micro_batches // size
    stashed = WEIGHT_POLICIES[candidate.weights].stashed
    opening = _BACKWARD if stashed else _BACKWARD | {Kind.R}
    ends = _last_backwards(order, size)
    heads: dict[tuple[int, int], int] = {}
    for place, op in enumerate(order):
        if op.kind in opening:
            heads.setdefault((op.stage, op.micro_batch // size), place)
    count = len(order)
    return {stage: _step_places(device, stage, count, updates, ends, heads, waits) for stage, waits in late.items()}


def _last_backwards(order: Sequence[Op], size: int) -> dict[tuple[int, int], int]:
    """Place of the last backward by stage and update."""
    return {(op.stage, op.micro_batch // size): place for place, op in enumerate(order) if op.kind in _ENDS}


def _bring_forward(
    lines: Sequence[Sequence[Op]], places: Sequence[dict[int, list[int]]], entered: Mapping[tuple[int, int], int]
) -> None:
    """Moves STEPs before the first forward that takes what they make: that of the first stage's version.

    That one was made after every backward of its update, on every stage.
    """
    for line, mine in zip(lines, places, strict=True):
        for place, op in reversed(list(enumerate(line))):
            if op.kind is Kind.F and op.stage in mine:
                steps = mine[op.stage]
                for g in reversed(range(entered[op.stage, op.micro_batch])):
                    if steps[g] <= place:
                        break
                    steps[g] = place


def _stepped(candidate: Candidate, order: list[Op], places: Mapping[int, list[int]]) -> list[Op]:
    """One device's list with STEPs before these places; of one place, by update, then as their backwards end."""
    size = update_size(candidate)
    ends = _last_backwards(order, size)
    before: dict[int, list[tuple[int, int, Op]]] = {}
    for stage, found in places.items():
        for g, place in enumerate(found):
            step = Op(Kind.STEP, stage, (g + 1) * size - 1)
            before.setdefault(place, []).append((g, ends.get((stage, g), -1), step))
    made: list[Op] = []
    for place in range(len(order) + 1):
        made += [step for _, _, step in sorted(before.get(place, ()))]
        made += order[place : place + 1]
    return made


def _step_places(
    device: int,
    stage: int,
    length: int,
    updates: int,
    ends: Mapping[tuple[int, int], int],
    heads: Mapping[tuple[int, int], int],
    waits: bool,
) -> list[int]:
    """Place in the list before which each update's STEP goes."""
    following = [length] * (updates + 1)
    for g in reversed(range(updates)):
        following[g] = min(following[g + 1], heads.get((stage, g), length))
    found, last = [], -1
    for g in range(updates):
        last = max(last, ends.get((stage, g), -1))
        if last >= following[g + 1]:
            raise PlanError(
                f"stage {stage} on device {device}: a backward of update {g + 1} stands before the last of update {g}"
            )
        found.append(following[g + 1] if waits or (stage, g) not in ends else last + 1)
    return found


def with_predictions(plan: Plan) -> OpLists:
    """The plan's lists with a PREDICT directly before every pass and every SEND_P that takes predicted weights.

    The lists have neither PREDICTs nor SEND_Ps yet: a SEND_P's PREDICT follows the STEP, those for several devices in
    their order.
    """
    if not WEIGHT_POLICIES[plan.weights].predicts:
        return plan.orders
    versions = Versions.of(plan)
    sent: dict[tuple[int, int, int], list[int]] = {}
    for stage, source, target in parameter_returns(plan, costs_of(plan)):
        for g, m in enumerate(update_ends(plan)):
            if (stage, target, g) in versions.sent_ahead:
                sent.setdefault((source, stage, m), []).append(versions.sent_ahead[stage, target, g])
    found = []
    for device, order in enumerate(plan.orders):
        line: list[Op] = []
        for op in order:
            key = op.stage, op.micro_batch
            ahead = versions.forward_ahead if op.kind is Kind.F else versions.backward_ahead
            if op.kind in _PREDICTED and ahead[key]:
                line.append(Op(Kind.PREDICT, *key, ahead[key]))
            line.append(op)
            if op.kind is Kind.STEP:
                line += [Op(Kind.PREDICT, *key, count) for count in sent.get((device, *key), ())]
        found.append(tuple(line))
    return tuple(found)
