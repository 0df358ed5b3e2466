"""One device of a candidate alone: its ops, its memory, and the least delays through the other devices, by CP-SAT."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import gcd, inf
from typing import TYPE_CHECKING

from ...bounds.fixed import candidate as cheap
from ...bounds.fixed import device_fits
from ...bounds.items import AWAY, KEEP, RECOMPUTE, Asked, Item
from ...bounds.times import Lag
from ...graph.operations import Candidate

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from ..solver import Effort
    from .instance import Tick

_MOST_UNITS = 1 << 20
Ops = dict[tuple[str, int, int], "cp_model.IntVar"]


def single_device(
    candidate: Candidate,
    device: int,
    effort: Effort | None = None,
    split: bool = True,
    limits: Sequence[int] | None = None,
) -> float:
    """Valid for every order of a candidate whose pipelines keep their micro-batches, in seconds.

    The best order of one device when every tensor it waits for comes as early as precedences allow, its limit
    holds, and the step ends when what follows its ops is over. At least `candidate`; infinite where that is.
    `effort`: limits of the solver, by default five seconds of one worker.
    """
    from ..solver import Effort, run

    shares = tuple(len(pipeline.micro_batches) for pipeline in candidate.pipelines)
    least = cheap(candidate, shares, split, limits)
    asked = Asked(candidate, split, limits)
    items = [item for item in asked.items[device] if shares[item.pipeline]]
    if least == inf or not items or asked.apart[device]:
        return least
    model = _Alone(asked, device, items, shares, least)
    _, outcome = run(model.model, effort or Effort(5.0, 5.0), 0)
    if outcome.infeasible:
        return inf
    return max(least, outcome.bound * model.tick.seconds)


class _Alone:
    """The model. k-th ops of a stage are those of its k-th micro-batch: sorting starts keeps every constraint."""

    def __init__(self, asked: Asked, device: int, items: list[Item], shares: tuple[int, ...], least: float) -> None:
        from ortools.sat.python import cp_model

        from .instance import common_tick

        assert device_fits(asked, device, items)
        self.asked, self.items, self.shares = asked, items, shares
        self.model = cp_model.CpModel()
        serial = self._serial()
        durations = [value for item in items for value in _durations(item)]
        lags = {p: asked.lag(p, device) for p in {item.pipeline for item in items}}
        durations += [value for lag in lags.values() for value in (*lag.there.values(), *lag.back.values())]
        self.tick: Tick = common_tick(durations, serial, 6 * sum(shares) + 4)
        self.upper = self.tick.down(serial) + 6 * sum(shares) * len(items) + 4
        self.span = self.model.new_int_var(min(self.tick.down(least), self.upper), self.upper, "span")
        self.busy: list[cp_model.IntervalVar] = []
        self.held: list[cp_model.IntervalVar] = []
        self.units: list[int] = []
        self.ops: list[Ops] = []
        for item in items:
            self._add(item, shares[item.pipeline])
        for pipeline, lag in lags.items():
            self._link(pipeline, lag)
        self.model.add_no_overlap(self.busy)
        self._limit(device)
        self.model.minimize(self.span)

    def _serial(self) -> float:
        """Seconds of one micro-batch after another: no best order is longer."""
        total = max(item.first_f for item in self.items)
        for item in self.items:
            total += self.shares[item.pipeline] * (item.work + item.trip)
        return total + max(item.rest + item.closing for item in self.items)

    def _add(self, item: Item, count: int) -> None:
        """Starts of F, R, I and W of every micro-batch, each kind in order; what must follow the last of them."""
        down, model = self.tick.down, self.model
        sizes = {"F": down(item.forward), "I": down(item.inputs)}
        if item.policy == RECOMPUTE:
            sizes["R"] = down(item.remake)
        if item.weights > 0:
            sizes["W"] = down(item.weights)
        ops: Ops = {}
        for name, size in sizes.items():
            for k in range(count):
                ops[name, k, size] = start = model.new_int_var(0, self.upper, f"{name}{k}")
                self.busy.append(model.new_fixed_size_interval_var(start, size, ""))
                if k:
                    model.add(start >= ops[name, k - 1, size] + size)
        self.ops.append(ops)
        for k in range(count):
            f, i = ops["F", k, sizes["F"]], ops["I", k, sizes["I"]]
            model.add(i >= f + sizes["F"] + down(item.trip))
            model.add(self.span >= i + sizes["I"] + down(item.rest))
            made = f
            if "R" in sizes:
                made = ops["R", k, sizes["R"]]
                model.add(made >= f + sizes["F"])
                model.add(i >= made + sizes["R"])
                self._hold(f, made, item.waiting)
            if "W" in sizes:
                w = ops["W", k, sizes["W"]]
                model.add(w >= i + sizes["I"])
                model.add(self.span >= w + sizes["W"] + down(item.closing))
                self._hold(i + sizes["I"], w + sizes["W"], item.after)
            if item.policy == AWAY:
                self._hold(f, f + sizes["F"], item.stash)
                self._hold(i, i + sizes["I"], item.stash)
            else:
                self._hold(made, i + sizes["I"], item.stash)
        model.add(ops["F", 0, sizes["F"]] >= down(item.first_f))
        model.add(ops["I", 0, sizes["I"]] >= down(item.first_i))

    def _hold(self, begin: cp_model.LinearExprT, end: cp_model.LinearExprT, size: int) -> None:
        if size:
            life = self.model.new_int_var(0, self.upper, "")
            self.held.append(self.model.new_interval_var(begin, life, end, ""))
            self.units.append(size)

    def _limit(self, device: int) -> None:
        """The room of the device; peaks are at the start of an F, which needs its own bytes as well."""
        room = self.asked.room[device]
        if all(item.policy == KEEP for item in self.items):
            room -= min(item.running[0] for item in self.items)
        if not self.units:
            return
        unit = gcd(*self.units)
        if room // unit > _MOST_UNITS:
            unit = max(unit, room // _MOST_UNITS)
        self.model.add_cumulative(self.held, [size // unit for size in self.units], max(0, room // unit))

    def _link(self, pipeline: int, lag: Lag) -> None:
        """Delays between the device's own stages of one micro-batch, forward and back."""
        mine = {item.stage: ops for item, ops in zip(self.items, self.ops, strict=True) if item.pipeline == pipeline}
        found: dict[tuple[int, str], dict[int, tuple[cp_model.IntVar, int]]] = defaultdict(dict)
        for stage, ops in mine.items():
            for (name, k, size), start in ops.items():
                found[stage, name][k] = (start, size)
        for name, delays in (("F", lag.there), ("I", lag.back)):
            for (a, b), delay in delays.items():
                for k, (start, size) in found[a, name].items():
                    self.model.add(found[b, name][k][0] >= start + size + self.tick.down(delay))


def _durations(item: Item) -> tuple[float, ...]:
    ends = (item.first_f, item.first_i, item.trip, item.rest, item.closing)
    return (item.forward, item.remake, item.inputs, item.weights, *ends)
