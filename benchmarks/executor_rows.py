"""The tables of the executor benchmark, from what every contender did in every round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from executor_contender import Outcome, Rounds
from tables import Origin, Table

from contraflow.planner import Plan
from contraflow.planner.plan import COMPUTE, RECEIVES, Kind

COMPARED = 8
"""Steps whose losses must be the same."""
SAME_LOSS = 1e-3
"""Relative; what adding in another order makes of a loss after some steps of Adam, at first mere signs."""

# ---------------------------------------------------------------- speed


@dataclass
class Speed:
    """One of our plans against one of torch's schedules: median step times, and the median of theirs / ours."""

    plan: str
    peer: str
    ours_s: float
    theirs_s: float
    ratio: float
    faults: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, plan: str, ours: Rounds, peer: str, theirs: Rounds) -> Speed:
        """Compares round by round; a fault where the losses differ."""
        mine, others = steps(ours), steps(theirs)
        ratio = median(b / a for a, b in zip(mine, others, strict=True))
        pairs = zip(losses(ours), losses(theirs), strict=True)
        faults = [
            f"{plan}, round {k}: loss {a:.6g}, {peer} {b:.6g}"
            for k, (a, b) in enumerate(pairs)
            if not math.isclose(a, b, rel_tol=SAME_LOSS)
        ]
        return cls(plan, peer, median(mine), median(others), ratio, faults[:1])


def steps(rounds: Rounds) -> list[float]:
    """Seconds of every round: those of its slowest rank."""
    return [max(outcome.seconds for outcome in ranks) for ranks in rounds]


def losses(rounds: Rounds) -> list[float]:
    """Mean loss of every round."""
    return [mean({m: x for rank in ranks for m, x in rank.losses.items()}.values()) for ranks in rounds]


def speed_table(rows: Sequence[Speed], made: Origin) -> Table:
    """Step time against torch.distributed.pipelining, on the same stages; ratios above 1: ours is faster."""
    lines = [[r.plan, _ms(r.ours_s), r.peer, _ms(r.theirs_s), f"{r.ratio:.3f}"] for r in rows]
    return Table.made(made, ["plan", "ms", "torch's schedule", "ms", "torch's / ours"], lines)


# ---------------------------------------------------------------- overhead


@dataclass(frozen=True)
class Overhead:
    """A step against the ops of the device that computes most; all in seconds, medians over rounds.

    Attributes:
        ops_s: its ops. waited_s: it waited for the other devices' ops. messages_s: what it waited for had been
            computed but was not there yet. own_s: between its ops for no such reason, before the first and after
            the last one.
        over: step_s / ops_s. beyond_plan: the same without the waiting for other devices' ops.
    """

    plan: str
    step_s: float
    ops_s: float
    waited_s: float
    messages_s: float
    own_s: float
    over: float
    beyond_plan: float

    @classmethod
    def of(cls, plan: str, rounds: Rounds) -> Overhead:
        """From all rounds; each number is a median of its own."""
        found = [_busiest(ranks) for ranks in rounds]
        columns = [median(column) for column in zip(*found, strict=True)]
        over = median(step / ops for step, ops, *_ in found)
        beyond = median((step - waited) / ops for step, ops, waited, *_ in found)
        return cls(plan, *columns, over, beyond)


def _busiest(ranks: Sequence[Outcome]) -> tuple[float, float, float, float, float]:
    """(step, ops, waited, messages, own) of the rank that computes most."""
    rank = max(range(len(ranks)), key=lambda r: _busy(ranks[r]))
    step_s, ops_s = max(outcome.seconds for outcome in ranks), _busy(ranks[rank])
    waited_s = messages_s = own_s = 0.0
    before = 0.0
    came = _arrivals(ranks[rank])
    for record in ranks[rank].ops:
        if record.op.kind not in COMPUTE:
            continue
        gap, key = max(0.0, record.start_s - before), (record.op.kind, record.op.stage, record.op.micro_batch)
        ready = _ready_s(ranks, rank, *key)
        waited = min(gap, max(0.0, ready - before))
        waited_s += waited
        if came(*key):
            messages_s += gap - waited
        else:
            own_s += gap - waited
        before = record.end_s
    return step_s, ops_s, waited_s, messages_s, own_s + max(0.0, step_s - before)


def _busy(outcome: Outcome) -> float:
    return sum(r.end_s - r.start_s for r in outcome.ops if r.op.kind in COMPUTE)


def _arrivals(outcome: Outcome) -> Callable[[Kind, int, int], bool]:
    """Whether an op needs something that arrived: a message, a stash, or the sum of gradients."""
    ops = {
        (r.op.kind, r.op.stage, r.op.micro_batch)
        for r in outcome.ops
        if r.op.kind in {*RECEIVES, Kind.FETCH, Kind.REDUCE}
    }

    def came(kind: Kind, stage: int, m: int) -> bool:
        if kind is Kind.STEP:
            return (Kind.REDUCE, stage, -1) in ops
        wanted = (Kind.RECV_F,) if kind is Kind.F else (Kind.RECV_B, Kind.RECV_S, Kind.FETCH)
        return kind is not Kind.W and any((k, stage, m) in ops for k in wanted)

    return came


def _ready_s(ranks: Sequence[Outcome], rank: int, kind: Kind, stage: int, m: int) -> float:
    """When the other devices had computed what an op needs from them; 0 if it needs nothing."""
    if kind is Kind.F:
        wanted = {(Kind.F, stage - 1, m)}
    elif kind in (Kind.B, Kind.I):
        wanted = {(Kind.B, stage + 1, m), (Kind.I, stage + 1, m)}
    else:
        wanted = set()
    others = [r for k, outcome in enumerate(ranks) if k != rank for r in outcome.ops]
    if kind is Kind.STEP:
        return max((r.end_s for r in others if r.op.stage == stage and r.op.kind in (Kind.B, Kind.W)), default=0.0)
    return max((r.end_s for r in others if (r.op.kind, r.op.stage, r.op.micro_batch) in wanted), default=0.0)


def overhead_table(rows: Sequence[Overhead], made: Origin) -> Table:
    """Step time against the ops of the device that computes most: milliseconds and ratios."""
    waits = ["waits for ops", "for messages", "own", "without waits for ops"]
    lines = [
        [
            r.plan, _ms(r.step_s), _ms(r.ops_s), f"{r.over:.3f}", _ms(r.waited_s), _ms(r.messages_s), _ms(r.own_s),
            f"{r.beyond_plan:.3f}",
        ]
        for r in rows
    ]  # fmt: skip
    return Table.made(made, ["plan", "step ms", "ops ms", "step / ops", *waits], lines)


# ---------------------------------------------------------------- forecast


@dataclass(frozen=True)
class Foretold:
    """A plan's forecast step and its median measured step; `ops`: measured over forecast seconds of all ops."""

    plan: str
    forecast_s: float
    measured_s: float
    ops: float

    @property
    def error(self) -> float:
        """Measured over forecast, less 1."""
        return self.measured_s / self.forecast_s - 1

    @classmethod
    def of(cls, name: str, plan: Plan, rounds: Rounds) -> Foretold:
        """From all rounds."""
        assert plan.forecast is not None
        busy = sum(device.busy_s for device in plan.forecast.devices)
        return cls(
            name, plan.forecast.step_s, median(steps(rounds)), median(sum(map(_busy, ranks)) for ranks in rounds) / busy
        )


def forecast_table(rows: Sequence[Foretold], made: Origin) -> Table:
    """Forecast against measurement, of all plans after one profile; the last row is the median of the errors' sizes."""
    lines = [[r.plan, _ms(r.forecast_s), _ms(r.measured_s), f"{r.error:+.1%}", f"{r.ops:.3f}"] for r in rows]
    lines.append(["median", "", "", f"{median_error(rows):.1%}", ""])
    return Table.made(made, ["plan", "forecast ms", "measured ms", "error", "ops measured / forecast"], lines)


def median_error(rows: Iterable[Foretold]) -> float:
    """Of the magnitudes."""
    return median(abs(r.error) for r in rows)


def wrong_losses(found: Mapping[str, Rounds]) -> list[str]:
    """Plans whose losses are not those of the first contender: all train the same model on the same data.

    Of the first steps that count: after many, BatchNorm and other orders of sums lead far from one another, as they do
    torch's own data parallel and one process of it.
    """
    (first, expected), *others = ((name, losses(rounds[:COMPARED])) for name, rounds in found.items())
    return [
        f"{name} trains to other losses than {first}: {mine[-1]:.6g} and {expected[-1]:.6g}"
        for name, mine in others
        if not all(math.isclose(a, b, rel_tol=SAME_LOSS) for a, b in zip(mine, expected, strict=True))
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"
