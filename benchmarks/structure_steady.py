"""PipeDream and PipeDream-2BW on many nodes, each at its own best width: rows of case 6 of benchmarks/structure.py.

Groups of devices are alike and wait for each other only in reductions, so two of them are simulated, and a reduction
between these takes as long as one between all: the network's `reduce_bandwidth` is lowered until it does for a device's
average share of the parameters. Everything else is the search's: the cut, and how many micro-batches are in flight.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from search_cases import Case
from search_rows import Effort, Row, faults

from contraflow.planner import Cluster, Plan, SearchSpace
from contraflow.planner.graph.reductions import reduce_seconds
from contraflow.planner.plan import Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.steady.search import Steady

METHODS = {"pipedream": "stash", "pipedream-2bw": "2bw"}
"""Schemes and their weight policies."""
PUBLISHED = {"pipedream": 2.01, "pipedream-2bw": 1.16}
"""How much longer than Chimera's their mini-batches take at 2,048 nodes (published)."""


def at_best_width(case: Case, scheme: str, effort: Effort, row: Row) -> tuple[float, Plan, int] | None:
    """Seconds a mini-batch of the case, the plan of two groups, and how many groups there are; None where none fits.

    All widths get their bound, then the plans of the most promising are simulated while they may be better.
    """
    nodes, layers = len(case.cluster), len(case.model.layers)
    best: tuple[float, Plan, int] | None = None
    began = time.perf_counter()
    found = [_width(case, scheme, d, effort) for d in range(2, min(nodes // 2, layers) + 1) if nodes % d == 0]
    for width in sorted((one for one in found if one is not None), key=lambda one: one.bound_s):
        if best is None or width.bound_s < best[0]:
            made = width.simulated(effort)
            if made is not None and (best is None or made[0] < best[0]):
                best = made
    row.seconds += time.perf_counter() - began
    if best is not None:
        row.faults += faults(best[1])
    return best


@dataclass(frozen=True)
class _Width:
    """The search on two of so many groups; `share`: periods a mini-batch takes."""

    search: Steady
    groups: int
    share: float

    @property
    def bound_s(self) -> float:
        """No mini-batch takes less with this width."""
        return self.search.bound_s * self.share

    def simulated(self, effort: Effort) -> tuple[float, Plan, int] | None:
        """Seconds a mini-batch of the best plan, the plan, and the groups."""
        self.search.explore()
        plan = self.search.answer().plan
        if plan is None or plan.forecast is None:
            return None
        return plan.forecast.objective_s * self.share, plan, self.groups


def _width(case: Case, scheme: str, devices: int, effort: Effort) -> _Width | None:
    """Groups of so many devices; None where they do not fit or share the mini-batch evenly."""
    width, batches = len(case.cluster) // devices, case.workload.micro_batches
    if batches % width:
        return None
    method, each = METHODS[scheme], batches // width if scheme == "pipedream-2bw" else 1
    if method == "2bw" and 2 * each < devices:
        return None
    # a run that is long enough for more in flight than stages
    run = each * (1 + -(-(devices + 8) // each))
    workload = replace(case.workload, micro_batches=2 * run, update_every=2 * each)
    problem = Problem(case.model, _two_groups(case, devices), workload)
    space = SearchSpace(asynchronous=(method,), offload=False, recompute=False)
    began = time.monotonic()
    search = Steady(Session(problem, space, Clock(began + effort.seconds, None, began), effort.seed))
    search.every = [a for a in search.every if a.width == 2 and len(a.order) == devices]
    for a in search.every:
        a.solve(math.inf)
    if not search.every or math.isinf(search.bound_s):
        return None
    return _Width(search, width, batches * 2 / width)


def _two_groups(case: Case, devices: int) -> Cluster:
    """Two groups' worth of nodes; adding up an average stage's gradients between two takes as long as between all."""
    whole, nodes = case.cluster, len(case.cluster)
    gradient = case.workload.gradient_bytes(sum(x.parameter_bytes for x in case.model.layers)) // devices
    seconds = sum(reduce_seconds(whole, tuple(range(0, nodes, devices)), gradient))
    network = replace(whole.network, reduce_bandwidth=gradient / seconds)
    group: NodeGroup = replace(whole.nodes[0], count=2 * devices)
    return Cluster((group,), network)
