"""One candidate in whole numbers: what the CP-SAT model reads, without any solver type.

Durations are ticks. Where all durations share a tick it is used and the ticks are exact. Otherwise the tick is
small against the step and every duration is rounded down: rounding the start times of a real schedule down gives
a schedule of the rounded durations (floor(a + b) >= floor(a) + floor(b)), so its optimum is a valid bound. For
memory, demands and capacities divided by the same unit and rounded down allow everything the bytes allow. Plans
are therefore always checked again by the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..bounds import finish_seconds
from ..operations import Candidate, static_bytes
from ..plan import Pipeline

_RATIO = 64
_MOST_TICKS = 200_000
_FINE = 2_000_000
_MOST_UNITS = 1 << 20
_CLOSE = 1e-9


@dataclass(frozen=True)
class Tick:
    """The unit of time of a model: `seconds` long; `exact`: every duration is a whole number of them."""

    seconds: float
    exact: bool

    def down(self, seconds: float) -> int:
        """Whole ticks in a duration, rounded down (but not below a whole number it equals up to round-off)."""
        ticks = seconds / self.seconds
        nearest = round(ticks)
        return nearest if abs(ticks - nearest) <= _CLOSE * max(1.0, ticks) else math.floor(ticks)


def common_tick(durations: Iterable[float], horizon_s: float, path: int) -> Tick:
    """The common divisor of all durations, or 1/_FINE of the horizon's share of each op on a path of `path` ops.

    With the latter, rounding down loses at most `path` ticks, less than 1e-6 of the horizon.
    """
    positive = sorted({value for value in durations if value > 0})
    if not positive:
        return Tick(1.0, True)
    base, divisor = positive[0], 1
    for value in positive:
        ratio = Fraction(value / base).limit_denominator(_RATIO)
        if abs(float(ratio) * base - value) > _CLOSE * value:
            break
        divisor = math.lcm(divisor, ratio.denominator)
    else:
        tick = base / divisor
        if horizon_s / tick <= _MOST_TICKS:
            return Tick(tick, True)
    return Tick(horizon_s / (_FINE * max(1, path)), False)


@dataclass(frozen=True)
class Way:
    """One direction: the device of every stage, and ticks of its ops, messages and tail.

    `activation` and `gradient`: (occupation, latency) for every edge of Instance.edges. `tail`: ticks of the
    reduction and optimizer step after a stage's last B.
    """

    devices: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    activation: tuple[tuple[int, int], ...]
    gradient: tuple[tuple[int, int], ...]
    tail: tuple[int, ...]


@dataclass(frozen=True)
class Instance:
    """The whole numbers of a candidate.

    Attributes:
        ways: one direction, or down and up. `edges`: (producer, consumer) stages.
        stash: memory units per stage. `running`: units besides the stash while F and while B of a stage runs:
            workspace, the output or the gradient it makes, the gradient it takes. `capacity`: units per device,
            static bytes taken off.
        unit_bytes: bytes of a memory unit; `nodes`: node of every device; `mirrored`: swapping the directions
            changes nothing.
    """

    micro_batches: int
    tick: Tick
    ways: tuple[Way, ...]
    edges: tuple[tuple[int, int], ...]
    stash: tuple[int, ...]
    running: tuple[tuple[int, int], ...]
    capacity: tuple[int, ...]
    nodes: tuple[int, ...]
    mirrored: bool

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.stash)


def build_instance(
    candidate: Candidate, limits: Sequence[int], horizon_s: float, lowered: Sequence[int] = ()
) -> Instance:
    """The instance of a candidate with one or two pipelines; `lowered`: bytes taken off every device's limit."""
    costs, problem = candidate.costs, candidate.problem
    durations = [seconds for p in candidate.pipelines for seconds in _durations(candidate, p)]
    path = 2 * problem.workload.micro_batches + 4 * len(candidate.stages) + 2
    tick = common_tick(durations, horizon_s, path)
    static = [sum(parts.values()) for parts in static_bytes(candidate, costs)]
    free = [limit - fixed for limit, fixed in zip(limits, static, strict=True)]
    if lowered:
        free = [room - less for room, less in zip(free, lowered, strict=True)]
    stash, running = costs.stash_bytes.tolist(), _running_bytes(candidate)
    unit = _unit(stash, [size for pair in running for size in pair], free)
    return Instance(
        problem.workload.micro_batches,
        tick,
        tuple(_way(candidate, p, tick) for p in candidate.pipelines),
        tuple((edge.producer, edge.consumer) for edge in costs.edges),
        tuple(value // unit for value in stash),
        tuple((f // unit, b // unit) for f, b in running),
        tuple(room // unit for room in free),
        tuple(device.node for device in problem.cluster.devices),
        _mirrored(candidate),
    )


def _running_bytes(candidate: Candidate) -> list[tuple[int, int]]:
    """Bytes that every F and every B certainly holds besides the stash (see planner.memory)."""
    costs = candidate.costs
    forward, backward = costs.workspace_bytes.tolist(), costs.workspace_bytes.tolist()
    for producer, consumer, size in costs.edges:
        forward[producer] += size
        backward[producer] += size
        backward[consumer] += size
    return list(zip(forward, backward, strict=True))


def _unit(stash: Sequence[int], running: Sequence[int], free: Sequence[int]) -> int:
    """Bytes of a memory unit: the common divisor of all demands, or so that capacities stay below a million."""
    exact = math.gcd(*stash, *running) or 1
    largest = max([*stash, *running, 1])
    rooms = max([min(room, 4096 * largest) for room in free if room > 0], default=1)
    return exact if rooms // exact <= _MOST_UNITS else max(1, rooms // _MOST_UNITS)


def _message(candidate: Candidate, source: int, target: int, size: int) -> tuple[float, float]:
    if source == target:
        return 0.0, 0.0
    link = candidate.problem.cluster.link(source, target)
    return link.occupation_s(size), link.latency_s


def _durations(candidate: Candidate, pipeline: Pipeline) -> list[float]:
    found: list[float] = []
    for stage, device in enumerate(pipeline.forward):
        speed = candidate.problem.cluster.devices[device].kind.speed
        found += [float(candidate.costs.forward_s[stage]) / speed]
        found += [float(candidate.costs.backward_s[stage]) / speed, finish_seconds(candidate, stage, device)]
    for producer, consumer, size in candidate.costs.edges:
        a, b = pipeline.forward[producer], pipeline.forward[consumer]
        found += [*_message(candidate, a, b, size), *_message(candidate, b, a, size)]
    return found


def _way(candidate: Candidate, pipeline: Pipeline, tick: Tick) -> Way:
    devices, costs = pipeline.forward, candidate.costs
    speed = [candidate.problem.cluster.devices[d].kind.speed for d in devices]

    def message(source: int, target: int, size: int) -> tuple[int, int]:
        occupation, latency = _message(candidate, source, target, size)
        return tick.down(occupation), tick.down(latency)

    return Way(
        devices,
        tuple(tick.down(float(s) / v) for s, v in zip(costs.forward_s, speed, strict=True)),
        tuple(tick.down(float(s) / v) for s, v in zip(costs.backward_s, speed, strict=True)),
        tuple(message(devices[e.producer], devices[e.consumer], e.bytes) for e in costs.edges),
        tuple(message(devices[e.consumer], devices[e.producer], e.bytes) for e in costs.edges),
        tuple(tick.down(finish_seconds(candidate, s, d)) for s, d in enumerate(devices)),
    )


def _mirrored(candidate: Candidate) -> bool:
    """Whether the devices look the same from both ends, so that the directions can be swapped."""
    cluster, order = candidate.problem.cluster, candidate.pipelines[0].forward
    back = order[::-1]
    pairs = list(zip(order, back, strict=True))
    return all(
        cluster.devices[a].kind == cluster.devices[b].kind
        and all(cluster.link(a, c) == cluster.link(b, d) for c, d in pairs)
        and all(cluster.same_node(a, c) == cluster.same_node(b, d) for c, d in pairs)
        for a, b in pairs
    )
