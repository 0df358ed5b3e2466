"""What is tried one by one: weight policies, groups of devices, orders of devices, numbers of stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, permutations

import numpy as np

from ...basics import WorkloadError
from ...bounds import load
from ...graph import KEEP, OFFLOAD, OFFLOAD_WEIGHTS
from ...partition import QUARTERS
from ...plan import Problem
from ...problem import WEIGHT_POLICIES, SearchSpace
from ..common import HOPE, SIZE, TOLERANCE, priced
from ..named import Order, device_orders, splits
from .bisect import Least, least_period
from .programme import Margin, Programme, Stage
from .rules import Rules
from .tables import Intervals, Split, StageTables, places


@dataclass
class Alternative:
    """One weight policy on one order of devices in equal groups.

    below_s: no plan of it has a shorter period (seconds). least: the programme's solution, once it is known. deadline:
    time.monotonic() at which solving ends. quarters: of a stage's micro-batches that may be recomputed, or copied.
    passing: whether all tensors that cross a cut are taken to be sent over it: no bound then, but nearer to the truth
    for models that are no chains, and solved less closely.
    """

    method: str
    split: Split
    order: Order
    update: int
    stashes: tuple[str, ...]
    below_s: float = 0.0
    least: Least | None = None
    closed: bool = False
    deadline: float = math.inf
    quarters: tuple[int, ...] = (QUARTERS,)
    passing: bool = False

    @property
    def name(self) -> str:
        """In words, for those who ask what was looked at."""
        groups = f"{self.width} groups, " if self.width > 1 else ""
        some = ", some micro-batches recomputed or copied" if len(self.quarters) > 1 else ""
        return f"{self.method}: {groups}{len(self.order)} stages on devices {_short(self.order)}{some}"

    def mixed(self) -> Alternative:
        """The same where quarters of a stage's micro-batches may be recomputed, or copied: nothing is known of it."""
        return replace(self, quarters=tuple(range(1, QUARTERS + 1)), below_s=0.0, least=None, closed=False)

    @property
    def _intervals(self) -> Intervals:
        return self.split.passing if self.passing else self.split.intervals

    @cached_property
    def _places(self) -> list[StageTables]:
        each = self.update // self.width
        policy = WEIGHT_POLICIES[self.method]
        return places(self._intervals, self.order, self.split.whole, self.split.groups, each, policy)

    def programme(self, margin: Margin = Margin(), stashes: tuple[str, ...] | None = None) -> Programme:  # noqa: B008
        """The programme of one group with this margin, by default with all stash policies allowed."""
        width, workload = self.width, self.split.whole.workload
        each = self.update // width
        policy = WEIGHT_POLICIES[self.method]
        limits = workload.staleness_limit, policy.most_stale(self.update, len(self.order))
        limit = min((one for one in limits if one is not None), default=None)
        rules = Rules(policy, each, width > 1, limit)
        most = workload.micro_batches // width - each
        return Programme(self._intervals, self._places, rules, stashes or self.stashes, most, margin, self.quarters)

    @property
    def width(self) -> int:
        """Groups: each of them takes that many periods for a micro-batch of its own."""
        return len(self.split.groups)

    def within(
        self,
        cap_s: float,
        margin: Margin = Margin(),  # noqa: B008 - immutable
        stashes: tuple[str, ...] | None = None,
    ) -> Least | None:
        """The least period of all groups together, if it is at most `cap_s`. Raises OutOfTime."""
        programme = self.programme(margin, stashes)
        below_s = max(self.below_s * self.width, programme.floor_s)
        close = HOPE.passing if self.passing else TOLERANCE.same
        found = least_period(programme, below_s, cap_s * self.width, self.deadline, close)
        if found is None:
            return None
        return replace(found, below_s=found.below_s / self.width, period_s=found.period_s / self.width)

    def allows(self, stages: Sequence[Stage], period_s: float) -> bool:
        """Whether the plan of these stages may have this period, and fit, as far as lower estimates tell."""
        return self._exact.allows(stages, period_s * self.width)

    @cached_property
    def _exact(self) -> Programme:
        return self.programme()

    def solve(self, cap_s: float) -> None:
        """Finds the least period, if it is at most `cap_s`; sets `below_s` and `least`. Raises OutOfTime."""
        found = self.within(cap_s, stashes=(KEEP,)) if len(self.stashes) > 1 else None
        every = self.within(cap_s if found is None else found.below_s)
        self.least = found if every is None else every
        self.below_s = max(self.below_s, cap_s if self.least is None else self.least.below_s)

    def least_staleness(self) -> int | None:
        """The least limit on staleness with which there is a solution; None where there is none at all."""
        free = self.programme()
        free.rules = replace(free.rules, limit=None)
        stages = free.solve(free.serial_s)
        if stages is None:
            return None
        late = self.split.intervals.late
        most = max(int(free.rules.staleness(np.array(float(s.in_flight)), late[s.first, s.end])) for s in stages)
        for limit in range(most):
            free.rules = replace(free.rules, limit=limit)
            if free.solve(free.serial_s) is not None:
                return limit
        return most


def _short(order: Order) -> str:
    text = ", ".join(map(str, order[:8]))
    return text if len(order) <= 8 else f"{text}, ..."


def alternatives(problem: Problem, space: SearchSpace) -> list[Alternative]:
    """Everything to try, methods in the user's order. Raises WorkloadError where a method does not apply."""
    one = (tuple(range(len(problem.cluster))),)
    ways = [Split(problem, groups) for groups in (one, *splits(problem, space))]
    for method in space.asynchronous:
        reason = why_not(problem, method)
        if reason is not None:
            raise WorkloadError(reason)
    floor_s = load(problem) / problem.workload.micro_batches
    found = [a for method in space.asynchronous for split in ways for a in _of_split(method, split, space)]
    return [replace(a, below_s=floor_s) for a in found]


def _of_split(method: str, split: Split, space: SearchSpace) -> Iterator[Alternative]:
    workload, width = split.whole.workload, len(split.groups)
    stages = min(len(split.chain), len(split.groups[0]))
    stashes: tuple[str, ...] = (KEEP, *priced(split.whole, space))
    if OFFLOAD in stashes and WEIGHT_POLICIES[method].stashed:
        stashes += (OFFLOAD_WEIGHTS,)
    for count in range(stages, 0, -1) if stages <= SIZE.fewer_stages else (stages,):
        update = workload.update_every or WEIGHT_POLICIES[method].least_update(count)
        if workload.micro_batches % update or update % width:
            continue
        if workload.micro_batches // update >= 2:
            for order in orders(split.small, count):
                yield Alternative(method, split, order, update, stashes)


def why_not(problem: Problem, method: str) -> str | None:
    """Why a weight policy does not apply to so many micro-batches and stages; None where it does."""
    workload = problem.workload
    batches, stages = workload.micro_batches, min(len(problem.model.layers), len(problem.cluster))
    update = workload.update_every or WEIGHT_POLICIES[method].least_update(stages)
    if batches % update:
        return f"{method}: updates of {update} micro-batches do not divide {batches} micro-batches"
    if batches < 2 * update:
        return f"{method}: a run needs at least two updates of {update} micro-batches, got {batches} micro-batches"
    return None


def orders(problem: Problem, count: int) -> list[Order]:
    """Devices for stages 0, 1, ...: those of the synchronous search, and all orders of few blocks of equal devices."""
    found = device_orders(problem, count)
    devices = problem.cluster.devices
    blocks = [tuple(d.index for d in block) for _, block in groupby(devices, key=lambda device: device.kind)]
    if 1 < len(blocks) <= SIZE.ordered_blocks:
        found += [tuple(d for block in blocks for d in block)[:count] for blocks in permutations(blocks)]
    return list(dict.fromkeys(found))
