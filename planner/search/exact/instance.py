"""A cut with its routes, or with open devices, in whole numbers: what the CP-SAT model reads; no solver type.

Durations are ticks. Where all durations share a tick it is used and the ticks are exact. Otherwise the tick is
small against the step and every duration is rounded down: rounding the start times of a real schedule down gives
a schedule of the rounded durations (floor(a + b) >= floor(a) + floor(b)), so its optimum is a valid bound. For
memory, demands and capacities divided by the same unit and rounded down allow everything the bytes allow. Plans
are therefore always checked again by the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from ...basics import PlanError
from ...graph import KEEP, POLICIES, StashPolicy
from ...plan import Kind
from ..common import MODEL, TOLERANCE


@dataclass(frozen=True)
class Tick:
    """The unit of time of a model: `seconds` long; `exact`: every duration is a whole number of them."""

    seconds: float
    exact: bool

    def down(self, seconds: float) -> int:
        """Whole ticks in a duration, rounded down (but not below a whole number it equals up to round-off)."""
        ticks = seconds / self.seconds
        nearest = round(ticks)
        return nearest if abs(ticks - nearest) <= TOLERANCE.same * max(1.0, ticks) else math.floor(ticks)


def common_tick(durations: Iterable[float], horizon_s: float, path: int, coarse: bool = False) -> Tick:
    """The common divisor of all durations, or the fine one: a share of the horizon for a path of `path` ops.

    With the latter, rounding down loses at most `path` ticks, less than 1e-6 of the horizon. `coarse`: the
    divisor only where ticks are few, and few otherwise, so that short ops vanish.
    """
    positive = sorted({value for value in durations if value > 0})
    if not positive:
        return Tick(1.0, True)
    base, divisor = positive[0], 1
    for value in positive:
        ratio = Fraction(value / base).limit_denominator(MODEL.ratio)
        if abs(float(ratio) * base - value) > TOLERANCE.same * value:
            break
        divisor = math.lcm(divisor, ratio.denominator)
    else:
        tick = base / divisor
        if horizon_s / tick <= (MODEL.coarse_ticks if coarse else MODEL.exact_ticks):
            return Tick(tick, True)
    return Tick(horizon_s / (MODEL.coarse_ticks if coarse else MODEL.fine_ticks * max(1, path)), False)


class Send(NamedTuple):
    """A message or copy of every micro-batch: ticks on its links and of latency, and the links as resource names."""

    occupation: int
    latency: int
    links: tuple[tuple[str, int, int], ...] = ()

    @property
    def arrives(self) -> int:
        """Ticks from its start to its arrival."""
        return self.occupation + self.latency


NOTHING = Send(0, 0)
Hops = Mapping[tuple[int, int], Send]
"""Messages by the sites that they leave and reach; those on one device take no time."""


@dataclass(frozen=True)
class Site:
    """A device where a stage may run: ticks of its ops there, and its stash's way to (or from) the host."""

    device: int
    ticks: Mapping[Kind, int]
    copy: Send


@dataclass(frozen=True)
class Stash:
    """Memory units of a stage's stash, and of what runs beside it.

    `bytes`: made by F (or R); `held`: of the weight's half from I to W (all of it where the backward is whole).
    `forward`, `backward`: units that every F (or R) and every B (or
    I) certainly holds besides: workspace, the tensor it makes, the gradient it takes; `weight`: every W.
    """

    bytes: int
    held: int
    forward: int
    backward: int
    weight: int

    @property
    def all(self) -> tuple[int, ...]:
        """All of these."""
        found: tuple[int, ...] = astuple(self)
        return found

    def in_units(self, unit: int) -> Stash:
        """The same in units of so many."""
        return Stash(*(size // unit for size in self.all))

    def running(self, kind: Kind) -> int:
        """Units beside the stashes while an op of this kind runs."""
        if kind in (Kind.F, Kind.R):
            return self.forward
        if kind in (Kind.B, Kind.I):
            return self.backward
        if kind == Kind.W:
            return self.weight
        raise KeyError(f"{kind.name} is no compute op")


@dataclass(frozen=True)
class Stage:
    """What a stage asks of the sites where it may run.

    Attributes:
        sites: in a candidate of routes one a direction, where devices are open one a device.
        finish: by the sites of forward and backward that go together, ticks from the last backward op to the end of
            the step: sums of gradients, optimizer step, and new parameters on their way to the forward.
        kept: by policy that makes the stash again, memory units that it keeps until R.
        hop: the stash from site to site; `kept_hop`: what is kept until R. Both where devices are open.
        owned, lent: memory units of parameters and more on the device of the backward, and on one that only runs the
            forward; 0 where the capacities are less these already.
    """

    sites: tuple[Site, ...]
    split: bool
    finish: Mapping[tuple[int, int], int]
    stash: Stash
    kept: Mapping[str, int]
    hop: Hops
    kept_hop: Mapping[str, Hops]
    owned: int = 0
    lent: int = 0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The compute ops of every micro-batch (R comes with recompute)."""
        return (Kind.F, *self.backwards)

    @property
    def backwards(self) -> tuple[Kind, ...]:
        """The ops of a backward: the first takes and sends gradients."""
        return (Kind.I, Kind.W) if self.split else (Kind.B,)


@dataclass(frozen=True)
class Edge:
    """Tensors between two stages: activations to the consumer, gradients back, by the sites of sender and receiver."""

    producer: int
    consumer: int
    activation: Hops
    gradient: Hops


@dataclass(frozen=True)
class Tied:
    """Parameters that these stages share: one copy a device, in units where a backward runs and where only forwards."""

    stages: tuple[int, ...]
    owned: int
    lent: int


@dataclass(frozen=True)
class Instance:
    """The whole numbers of a cut.

    Attributes:
        open: every stage chooses the devices of its forward and its backward and one stash policy, for all
            micro-batches. Otherwise every micro-batch takes one site of all stages, a direction, and has policies of
            its own.
        capacity: units per device, static bytes of routes taken off. `host`: the host link of every device; `node`:
            its node; `host_room`: units of host memory by node, None: no limit.
        policies: what may happen to a stash. `alike`: exchanging the directions, or two devices, changes nothing.
    """

    micro_batches: int
    tick: Tick
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    capacity: tuple[int, ...]
    host: tuple[int, ...]
    node: tuple[int, ...]
    host_room: tuple[int | None, ...]
    policies: frozenset[str]
    open: bool
    alike: bool
    ties: tuple[Tied, ...] = ()

    @property
    def directions(self) -> int:
        """Sites that a micro-batch chooses from: 1 where devices are open."""
        return 1 if self.open else len(self.stages[0].sites)

    def route(self, direction: int) -> tuple[int, ...]:
        """The devices of a direction, stage by stage."""
        return tuple(stage.sites[direction].device for stage in self.stages)

    @cached_property
    def limited(self) -> frozenset[int]:
        """Devices that may not hold every stash of their stages at once (each micro-batch takes one way)."""
        if self.open:
            return frozenset(range(len(self.capacity)))
        found = set()
        routes = [self.route(way) for way in range(self.directions)]
        for device in {d for route in routes for d in route}:
            here = [[self.stages[s] for s, d in enumerate(route) if d == device] for route in routes]
            most = max(sum(max(x.stash.bytes, x.stash.held) for x in stages) for stages in here)
            beside = max(x.stash.running(kind) for stages in here for x in stages for kind in x.kinds)
            if self.micro_batches * most + beside > self.capacity[device]:
                found.add(device)
        return frozenset(found)

    def choices(self, stage: int, site: int) -> tuple[str, ...]:
        """Policies worth choosing from: where memory does not bind, a stash is kept if it may be."""
        if self.stages[stage].sites[site].device not in self.limited and KEEP in self.policies:
            return (KEEP,)
        return tuple(policy for policy in POLICIES if policy in self.policies)

    @cached_property
    def beside(self) -> tuple[int, ...]:
        """Units per device that whatever runs there holds besides stashes, so that these never have them.

        Only where memory is first taken by an op: a stash that comes back may take it while no op runs.
        """
        found: dict[int, int] = {}
        for stage in () if self.open or any(POLICIES[name].leaves for name in self.policies) else self.stages:
            for site in stage.sites:
                small = min(stage.stash.running(kind) for kind in stage.kinds)
                found[site.device] = min(found.get(site.device, small), small)
        return tuple(found.get(device, 0) for device in range(len(self.capacity)))

    @property
    def possible(self) -> bool:
        """Whether every stage can hold one stash on its sites (where devices are open, on some) while its ops run."""
        enough = any if self.open else all

        def fits(stage: Stage, beside: int) -> bool:
            return enough(stage.stash.bytes + beside <= self.capacity[site.device] for site in stage.sites)

        return all(fits(x, x.stash.forward) and fits(x, x.stash.backward) for x in self.stages)


@dataclass(frozen=True)
class Rules:
    """What a search may decide besides the order: split backwards, what happens to stashes, and the devices.

    `mirror`: of two directions, mirrored schedules are searched first.
    """

    split: bool = False
    policies: frozenset[str] = frozenset({KEEP})
    open: bool = False
    mirror: bool = True

    def __post_init__(self) -> None:
        for policy in self.policies - POLICIES.keys():
            raise PlanError(f"the exact search knows no stash policy {policy!r}")
        if not self.open and any(row.shipped for row in self.rows):
            raise PlanError("the exact search ships stashes only where it chooses the devices")

    @property
    def rows(self) -> list[StashPolicy]:
        """The policies' rows, in the order of the table."""
        return [row for name, row in POLICIES.items() if name in self.policies]


def memory_unit(demands: Sequence[int], free: Sequence[int]) -> int:
    """Bytes of a memory unit: the common divisor of all demands, or so that capacities stay below a million."""
    exact = math.gcd(*demands) or 1
    largest = max([*demands, 1])
    rooms = max([min(room, MODEL.roomy * largest) for room in free if room > 0], default=1)
    return exact if rooms // exact <= MODEL.units else max(1, rooms // MODEL.units)
