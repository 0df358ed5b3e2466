"""A plan of orders that somebody gives: no search, its best cut where that is not given too."""

from __future__ import annotations

from collections.abc import Iterator

from ... import __version__
from .. import bounds
from ..basics import ScheduleError, WorkloadError
from ..graph import KEEP, Candidate
from ..lower import Assembled, assembled
from ..partition import Chain, Cuts, cut, lightest
from ..plan import Problem, Provenance
from ..problem import Cluster, ModelGraph, SearchSpace, Workload
from ..schedules import Layout
from .common import Proven, Result, lacking, shortages, told, unanswered
from .named import not_split, place, whole_backwards

Stages = tuple[tuple[str, ...], ...]
SPACE = "every order of these stages on these devices, stashes kept"


def plan_layout(
    model: ModelGraph, cluster: Cluster, workload: Workload, layout: Layout, stages: Stages | None = None
) -> Result:
    """The plan of a layout, such as `read_torch_csv` reads, with its orders as they are.

    `stages`: layer names of every stage; None: of the cuts that suit the layout, the one with the shortest step that
    fits. Layers whose backward cannot be split have B in the place of I. The bound holds for every order of its stages.
    Raises ScheduleError where the layout is for more devices or other micro-batches, PlanError where orders wait for
    each other.
    """
    problem = Problem(model, cluster, workload)
    _require_fitting(problem, layout)
    placed = place(layout, tuple(range(len(layout.orders))), len(cluster))
    chain = Chain.of(problem)
    cuts = [stages] if stages is not None else [chain.stages(found) for found in _cuts(chain, placed)]
    best = min((_assembled(problem, placed, found) for found in cuts), key=lambda x: (lacking(x), x.forecast.step_s))
    if lacking(best):
        return unanswered(bounds.any_plan(problem), shortages(best.plan), False, ())
    shares = tuple(len(route.micro_batches) for route in placed.pipelines)
    least_s = bounds.candidate(best.candidate, shares)
    return told(best.plan, Proven(SPACE, least_s), (), Provenance(version=__version__, source=layout.name))


def _require_fitting(problem: Problem, layout: Layout) -> None:
    devices, batches = len(problem.cluster), problem.workload.micro_batches
    if len(layout.orders) > devices:
        raise ScheduleError(f"{layout.name} is for {len(layout.orders)} devices, the cluster has {devices}")
    mine = sum(len(route.micro_batches) for route in layout.pipelines)
    if mine != batches:
        raise WorkloadError(f"{layout.name} has {mine} micro-batches, asked for are {batches}")
    if layout.stages > len(problem.model.layers):
        raise ScheduleError(f"{layout.name} has {layout.stages} stages, the model {len(problem.model.layers)} layers")


def _cuts(chain: Chain, layout: Layout) -> Iterator[Cuts]:
    """Cuts for what a layout has in flight, on as much of a device's memory as its stages may share."""
    route, flights = layout.pipelines[0].forward, layout.in_flight
    most = max(route.count(device) for device in set(route))
    found = [cut(chain, route, flights, buffers=buffers, share=1 / most) for buffers in (2, 0)]
    light = lightest(chain, route, flights)
    found += [None if light is None else light[0], cut(chain, route, [0] * layout.stages, buffers=0)]
    some = [one for one in dict.fromkeys(found) if one is not None]
    yield from some or [tuple(range(1, layout.stages))]


def _assembled(problem: Problem, layout: Layout, stages: Stages) -> Assembled:
    rows = tuple((KEEP,) * layout.stages for _ in layout.pipelines)
    candidate = Candidate(problem, stages, layout.pipelines, rows)
    whole = not_split(SearchSpace(), candidate)
    return assembled(candidate, [whole_backwards(order, whole) for order in layout.orders], layout.name)
