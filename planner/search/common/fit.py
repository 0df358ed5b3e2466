"""Whether a plan fits the memory of its devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...basics import format_bytes
from ...graph import stash_policy
from ...lower import Assembled
from ...plan import Forecast, Plan, Problem
from ...simulate import simulate


@dataclass(frozen=True)
class Shortage:
    """A device that cannot hold the least bad plan: bytes over its limit, and the limit in bytes."""

    device: int
    over_bytes: int
    limit_bytes: int

    def __str__(self) -> str:
        needed = format_bytes(self.limit_bytes + self.over_bytes)
        return (
            f"device {self.device} needs {needed}, {format_bytes(self.over_bytes)} over its limit "
            f"of {format_bytes(self.limit_bytes)}"
        )

    @property
    def missing(self) -> str:
        """What is missing, in bytes to the last one."""
        needed, limit = format_bytes(self.limit_bytes + self.over_bytes), format_bytes(self.limit_bytes)
        return f"device {self.device}: {self.over_bytes} bytes missing (needs {needed}, limit {limit})"


@dataclass(frozen=True)
class Stale:
    """A limit on staleness that no plan searched keeps, and the least one that some plan keeps: updates."""

    limit: int
    needed: int

    def __str__(self) -> str:
        return f"the staleness limit is {self.limit}, the plans searched need at least {self.needed}"

    @property
    def missing(self) -> str:
        """The same."""
        return str(self)


Lack = Shortage | Stale


def limits(problem: Problem) -> list[int]:
    """Memory limit of every device in bytes."""
    return [problem.workload.memory_limit(device.kind.memory_bytes) for device in problem.cluster.devices]


def excess(plan: Plan) -> list[int]:
    """Bytes by which a plan's forecast exceeds every device's limit; 0 where it fits."""
    assert plan.forecast is not None
    return _over(plan.problem, plan.forecast)


def missing(found: Assembled) -> list[int]:
    """As `excess`, of a plan without its lists."""
    return _over(found.candidate.problem, found.forecast)


def lacking(found: Assembled) -> int:
    """The most bytes that a device lacks; 0 where the plan fits its devices."""
    return max(missing(found))


def _over(problem: Problem, forecast: Forecast) -> list[int]:
    return [max(0, peak - limit) for peak, limit in zip(forecast.peak_bytes, limits(problem), strict=True)]


def copies_stashes(plan: Plan) -> bool:
    """Whether some of a plan's stashes are copied to the host."""
    return any(stash_policy(policy).hosted for row in set(plan.stash) for policy in row)


def host_excess(plan: Plan) -> list[int]:
    """Bytes by which offloaded stashes exceed the host memory of every node; 0 where they fit."""
    groups = plan.problem.cluster.node_groups
    if not copies_stashes(plan) or all(group.host_memory_bytes is None for group in groups):
        return [0] * len(groups)
    found = simulate(plan).host_memory
    allowed = [math.inf if group.host_memory_bytes is None else group.host_memory_bytes for group in groups]
    return [int(max(0, host.peak_bytes - limit)) for host, limit in zip(found, allowed, strict=True)]


def fits(plan: Plan) -> bool:
    """Whether a plan exceeds neither its devices' memory nor that of the hosts."""
    return not any(excess(plan)) and not any(host_excess(plan))


def shortages(plan: Plan) -> tuple[Shortage, ...]:
    """The devices that a plan does not fit."""
    allowed = limits(plan.problem)
    return tuple(Shortage(d, over, allowed[d]) for d, over in enumerate(excess(plan)) if over)
