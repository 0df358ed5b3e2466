"""Schedules with split backwards against their authors' own generators: steps and peaks at measured costs.

Peers' figures: zero-bubble's schedulers and torch's generators, replayed by a simulator of their own. A step may be
1 % longer than a peer's, a peak no higher.
"""

from __future__ import annotations

import pytest
from instances import one_layer_a_stage

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build, by_costs
from contraflow.planner.search.named.costed import timing_of

COSTS = {
    "unit": (100, 100, 100, 0, 0.5),
    "skew": (100, 120, 80, 5, 0.5),
    "profile": (18522, 18086, 9337, 601, 0.366),
}
"""F, I, W of a device, latency between neighbours, and the share of a stash that I leaves until W."""
STASH = 12_000
"""Bytes of a device's share of a stash: divisible by chunks."""
INTERLEAVED = [
    # costs, devices, micro-batches, schedule, step, peak in stashes
    ("unit", 4, 8, "interleaved-zb-2", 2550, 4),
    ("unit", 4, 8, "interleaved-zb-4", 2475, 4),
    ("unit", 8, 16, "interleaved-zb-2", 5150, 8),
    ("unit", 8, 16, "interleaved-zb-4", 4975, 8),
    ("skew", 4, 8, "interleaved-zb-2", 2690, 4),
    ("skew", 4, 8, "interleaved-zb-4", 2625, 4),
    ("skew", 8, 16, "interleaved-zb-2", 5470, 8),
    ("skew", 8, 16, "interleaved-zb-4", 5305, 8),
    ("profile", 4, 8, "interleaved-zb-2", 418_082.5, 4),
    ("profile", 4, 8, "interleaved-zb-4", 402_437.25, 4),
    ("profile", 8, 16, "interleaved-zb-2", 852_204.5, 8),
    ("profile", 8, 16, "interleaved-zb-4", 814_096.25, 8),
    ("unit", 4, 8, "interleaved-zb-half-2", 2800, 3),
    ("unit", 4, 8, "interleaved-zb-half-4", 2700, 2.5),
    ("unit", 8, 16, "interleaved-zb-half-2", 5700, 6),
    ("unit", 8, 16, "interleaved-zb-half-4", 5450, 5),
    ("skew", 4, 8, "interleaved-zb-half-2", 2940, 3),
    ("skew", 4, 8, "interleaved-zb-half-4", 2925, 2.5),
    ("skew", 8, 16, "interleaved-zb-half-2", 6000, 6),
    ("skew", 8, 16, "interleaved-zb-half-4", 5915, 5),
    ("profile", 4, 8, "interleaved-zb-half-2", 458_157, 3),
    ("profile", 4, 8, "interleaved-zb-half-4", 453_952.5, 2.5),
    ("profile", 8, 16, "interleaved-zb-half-2", 935_820, 6),
    ("profile", 8, 16, "interleaved-zb-half-4", 918_259, 5),
]
ONE_STAGE = [
    ("unit", 4, 8, "zb-h1", 2700, 4),
    ("skew", 8, 16, "zb-h1", 5920, 8),
    ("profile", 4, 8, "zb-h1", 456_585, 4),
    ("profile", 8, 16, "zb-h1", 942_845, 8),
    ("profile", 4, 8, "zb-h2", 424_968, 7),
    ("profile", 8, 16, "zb-h2", 869_072, 15),
]

V_SHAPED = [
    ("unit", 8, 16, "zb-v", 5150, 8),
    ("skew", 4, 8, "zb-v", 2655, 4),
    ("skew", 8, 16, "zb-v", 5420, 8),
    ("profile", 4, 8, "zb-v", 404_358, 4),
    ("profile", 8, 16, "zb-v", 820_982, 8),
    ("unit", 8, 16, "v-half", 5650, 5),
    ("skew", 4, 8, "v-half", 2880, 3),
    ("skew", 8, 16, "v-half", 6170, 5),
    ("profile", 4, 8, "v-half", 449_831.5, 3),
    ("profile", 8, 16, "v-half", 961_211.5, 5),
    ("unit", 8, 16, "v-min", 6150, 4),
    ("skew", 4, 8, "v-min", 3640, 2),
    ("skew", 8, 16, "v-min", 7680, 4),
    ("profile", 4, 8, "v-min", 562_140.5, 2),
    ("profile", 8, 16, "v-min", 1_190_256.5, 4),
]
V_AUTO = [
    # costs, devices, micro-batches, room, step
    ("unit", 4, 8, 4, 2550),
    ("unit", 4, 8, 3, 2650),
    ("unit", 4, 8, 2, 2950),
    ("unit", 8, 16, 8, 5150),
    ("unit", 8, 16, 6, 5350),
    ("unit", 8, 16, 4, 5950),
    ("skew", 4, 8, 4, 2645),
    ("skew", 4, 8, 3, 2870),
    ("skew", 4, 8, 2, 3510),
    ("skew", 8, 16, 8, 5385),
    ("skew", 8, 16, 6, 5870),
    ("skew", 8, 16, 4, 7100),
    ("profile", 4, 8, 4, 405_279),
    ("profile", 4, 8, 3, 446_773.5),
    ("profile", 4, 8, 2, 551_971.5),
    ("profile", 8, 16, 8, 823_131),
    ("profile", 8, 16, 6, 914_291),
    ("profile", 8, 16, 4, 1_109_813.5),
]


def made(name: str, costs: str, devices: int, micro_batches: int, room: float = 1000) -> Plan:
    """The plan of a schedule with its orders made for these costs and room for so many stashes of a device's share."""
    f, i, w, latency, pending = COSTS[costs]
    layout = build(name, devices, micro_batches)
    chunks = layout.stages // devices
    stash = STASH // chunks
    layers = [
        Layer(
            f"layer{k}", f / chunks, i / chunks, w / chunks, stash_bytes=stash, weight_stash_bytes=int(pending * stash)
        )
        for k in range(layout.stages)
    ]
    model = ModelGraph.chain(layers)
    cluster = Cluster.uniform(devices, int(room * STASH), Link(latency_s=latency))
    problem = Problem(model, cluster, Workload(micro_batches))
    candidate = Candidate(problem, one_layer_a_stage(model), layout.pipelines)
    found = by_costs(layout, timing_of(candidate, ()))
    assert found is not None
    plan = assemble(candidate, found[0].orders, layout.name)
    assert plan.forecast is not None
    assert plan.forecast.step_s == pytest.approx(found[1])
    assert check(plan) == []
    return plan


def figures(plan: Plan) -> tuple[float, float]:
    """Step, and peak in stashes of a device's share."""
    assert plan.forecast is not None
    return plan.forecast.step_s, max(plan.forecast.peak_bytes) / STASH


@pytest.mark.parametrize(("costs", "devices", "n", "name", "step", "peak"), [*INTERLEAVED, *ONE_STAGE, *V_SHAPED])
def test_a_schedule_is_as_good_as_its_authors(
    costs: str, devices: int, n: int, name: str, step: float, peak: float
) -> None:
    """By name, however much room there is: what it holds is part of it."""
    ours, held = figures(made(name, costs, devices, n))
    assert ours <= 1.01 * step
    assert held <= peak


@pytest.mark.parametrize(("costs", "devices", "n", "room", "step"), V_AUTO)
def test_v_auto_is_as_good_as_its_authors_in_the_room_there_is(
    costs: str, devices: int, n: int, room: float, step: float
) -> None:
    """From V-Min's memory to ZB-V's, and never above the room."""
    ours, held = figures(made("v-auto", costs, devices, n, room))
    assert ours <= 1.01 * step
    assert held <= room


@pytest.mark.parametrize("devices", [2, 3, 5, 9])
@pytest.mark.parametrize("room", [0.4, 0.7, 1.3])
def test_v_auto_runs_on_any_number_of_devices(devices: int, room: float) -> None:
    """Odd ones too, few micro-batches and many; shares of 1F1B's memory, the least being room for one micro-batch."""
    for n in (1, devices, 3 * devices + 1):
        _, held = figures(made("v-auto", "skew", devices, n, max(1.5, devices * room)))
        assert held <= max(1.5, devices * room)


def test_weight_halves_wait_less_where_room_is_short() -> None:
    """ZB-H2 in the memory of ZB-H1 places W before the F that would not fit; with less than F and I need it is none."""
    step, held = figures(made("zb-h2", "unit", 4, 8, room=7))
    tight, less = figures(made("zb-h1", "unit", 4, 8, room=4))
    assert held <= 7
    assert less <= 4
    assert step <= tight
    with pytest.raises(AssertionError):
        made("zb-h2", "unit", 4, 8, room=3)
