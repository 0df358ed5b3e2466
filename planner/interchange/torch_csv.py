"""Plans as the schedules of torch.distributed.pipelining, and back: a CSV with a row of compute ops for every rank.

`_PipelineScheduleRuntime._load_csv` reads it, with sends, receives and gradient scaling placed by torch
("compute_only"); torchtitan loads it as `pipeline_parallel_schedule_csv`. Op texts are the same as ours ("2F0").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..basics import MOST_DEVICES, MOST_MICRO_BATCHES, MOST_OPS, MOST_STAGES, reading, refusing, shown
from ..plan import Kind, Op, Pipeline, Plan
from ..schedules import Layout
from .expressible import InterchangeError, require_flush, require_next

RUNTIME = "torch's schedule"
_COMPUTED = (Kind.F, Kind.B, Kind.I, Kind.W)
_PLACED = frozenset({Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B, Kind.STEP})
"""What torch places itself; STEP is the training loop's optimizer.step()."""
_WHY = {
    Kind.R: "has no recomputation: plan with --no-recompute",
    Kind.OFFLOAD: "copies no stash to the host: plan with --no-offload",
    Kind.SEND_S: "ships no stash: plan with --no-separate-backward",
    Kind.SEND_P: "sends no parameters: plan with --no-separate-backward",
    Kind.REDUCE: "has one rank a stage: plan with --pipelines 1, replicas around it are data parallelism",
    Kind.TIE: "sums no gradients of tied parameters between ranks",
    Kind.PREDICT: "predicts no weights",
}
_SAME = {
    Kind.FETCH: Kind.OFFLOAD, Kind.FREE: Kind.OFFLOAD, Kind.RECV_S: Kind.SEND_S, Kind.RECV_P: Kind.SEND_P,
    Kind.GATHER: Kind.REDUCE,
}  # fmt: skip


def torch_orders(plan: Plan) -> tuple[tuple[Op, ...], ...]:
    """F, B, I and W of every device in order: all that torch's schedule says.

    Raises InterchangeError naming the first op that it cannot express, and why.
    """
    require_flush(plan, RUNTIME)
    for device, order in enumerate(plan.orders):
        for op in order:
            if op.kind not in _COMPUTED and op.kind not in _PLACED:
                why = _WHY[_SAME.get(op.kind, op.kind)]
                raise InterchangeError(f"{op} on device {device} cannot be expressed: {RUNTIME} {why}")
    require_next(plan, RUNTIME)
    orders = tuple(tuple(op for op in order if op.kind in _COMPUTED) for order in plan.orders)
    _ranks_of(orders)
    return orders


def to_torch_csv(plan: Plan) -> str:
    """The CSV, a line a device. Raises InterchangeError as `torch_orders`."""
    return "".join(",".join(map(str, order)) + "\n" for order in torch_orders(plan))


def read_torch_csv(path: str | Path) -> Layout:
    """The schedule in a file of torch's, with communication or without: what torch places, lowering places too.

    `plan_layout` makes a plan of it. Raises InterchangeError naming the row and the cell.
    """
    with refusing(InterchangeError):
        rows = reading.read_text(path).splitlines()
        reading.at_most(len(rows), MOST_DEVICES, "rows")
        orders = tuple(tuple(_row(text, number)) for number, text in enumerate(rows))
        ranks, batches = _ranks_of(orders), _micro_batches(orders)
    return Layout(Path(path).name, len(ranks), (Pipeline(tuple(ranks), tuple(ranks), tuple(range(batches))),), orders)


_ACTION = re.compile(r"(0|[1-9][0-9]{0,8})([A-Z_]+)(0|[1-9][0-9]{0,8})?")
_PLACED_BY_TORCH = {"UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"}


def _row(text: str, number: int) -> Iterator[Op]:
    """A row's compute ops. Of two that overlap, "(0F4;1B0)OVERLAP_F_B", one after the other."""
    reading.at_most(len(text), MOST_OPS, f"row {number}: letters")
    for column, cell in enumerate(text.split(",")):
        inner = re.fullmatch(r"\((.*)\)OVERLAP_F_B", cell.strip())
        for action in inner[1].split(";") if inner else [cell]:
            yield from _ops(action.strip(), f"row {number}, column {column}")


def _ops(action: str, where: str) -> Iterator[Op]:
    if not action:
        return
    match = _ACTION.fullmatch(action)
    known = match is not None and (match[2] in _PLACED_BY_TORCH or (match[2] in "FBIW" and match[3] is not None))
    if match is None or not known:
        raise InterchangeError(f"{where}: {shown(action)} is no action of torch's schedules")
    if match[2] in _PLACED_BY_TORCH:
        return
    stage, batch = int(match[1]), int(match[3])
    reading.at_most(stage + 1, MOST_STAGES, f"{where}: stages")
    reading.at_most(batch + 1, MOST_MICRO_BATCHES, f"{where}: micro-batches")
    yield Op(Kind[match[2]], stage, batch)


def _ranks_of(orders: Sequence[Sequence[Op]]) -> list[int]:
    """The device of every stage. Raises InterchangeError where torch's schedule would refuse them."""
    found: dict[int, int] = {}
    for device, order in enumerate(orders or [()]):
        if not order:
            raise InterchangeError(f"device {device} computes nothing: {RUNTIME} has a stage on every rank")
        for op in order:
            if found.setdefault(op.stage, device) != device:
                where = f"devices {found[op.stage]} and {device}"
                raise InterchangeError(f"{op}: stage {op.stage} is on {where}, {RUNTIME} has one rank a stage")
    if sorted(found) != list(range(len(found))):
        missing = min(set(range(max(found, default=0) + 1)) - set(found), default=0)
        raise InterchangeError(f"stage {missing} is on no device")
    return [found[stage] for stage in range(len(found))]


def _micro_batches(orders: Iterable[Sequence[Op]]) -> int:
    """How many there are. Raises InterchangeError for a pass that is there twice, or not."""
    ops = [op for order in orders for op in order]
    for op, count in Counter(ops).items():
        if count > 1:
            raise InterchangeError(f"{op} is there {count} times")
    known, stages = set(ops), {op.stage for op in ops}
    batches = 1 + max(op.micro_batch for op in ops)
    reading.at_most(len(stages) * batches, MOST_OPS, "forwards")
    for stage in sorted(stages):
        for m in range(batches):
            halves = [Op(kind, stage, m) in known for kind in _COMPUTED]
            if halves not in ([True, True, False, False], [True, False, True, True]):
                have = ", ".join(kind.name for kind, there in zip(_COMPUTED, halves, strict=True) if there) or "nothing"
                raise InterchangeError(
                    f"stage {stage}, micro-batch {m}: must have F with B, or F with I and W, has {have}"
                )
    return batches
