"""Schedules with split backwards: what their papers state, and that every layout is executable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from instances import one_layer_a_stage

from contraflow.planner.basics.errors import ScheduleError
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import COMPUTE, Kind, Op, Plan, Problem
from contraflow.planner.problem.cluster import Cluster
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import SCHEDULES, Layout, Scheme, build, unsplit, variants
from contraflow.planner.simulate import simulate

STASH = 4
"""Bytes of one stage's stash; divides by two for what W needs."""
UNEVEN = [(10, 10, 10), (10, 12, 8), (10, 9, 7), (10, 20, 10)]
"""F, I, W of a device, with W <= F and W <= I."""


def planned(
    layout: Layout,
    costs: tuple[float, float, float] = (1, 1, 1),
    separable: bool = True,
    held_until_w: int = STASH // 2,
) -> Plan:
    """The layout's plan where F, I and W of one stage take `costs` and I releases all but `held_until_w`."""
    f, i, w = costs
    layers = [
        Layer(f"layer{k}", f, i, w, separable=separable, stash_bytes=STASH, weight_stash_bytes=held_until_w)
        for k in range(layout.stages)
    ]
    model = ModelGraph.chain(layers)
    batches = sum(len(p.micro_batches) for p in layout.pipelines)
    problem = Problem(model, Cluster.uniform(len(layout.orders)), Workload(batches))
    return assemble(Candidate(problem, one_layer_a_stage(model), layout.pipelines), layout.orders, layout.name)


def of_a_device(name: str, devices: int, n: int, costs: tuple[float, float, float], **options: int) -> Plan:
    """The plan of a named schedule where F, I and W of all of a device's stages together take `costs`."""
    layout = build(name, devices, n, **options)
    chunks = layout.stages // devices
    f, i, w = costs
    return planned(layout, (f / chunks, i / chunks, w / chunks))


def bubble(plan: Plan) -> float:
    """Step beyond the load of one device, all being equal."""
    assert plan.forecast is not None
    return plan.forecast.step_s - plan.forecast.devices[0].busy_s


def stashes(plan: Plan) -> float:
    """Largest peak of a device, in stashes of a whole device (all of its stages)."""
    assert plan.forecast is not None
    chunks = max(1, len(plan.stages) // len(plan.orders))
    return max(plan.forecast.peak_bytes) / (STASH * chunks)


# ------------------------------------------------------------------ stages in device order


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("costs", UNEVEN)
def test_zb_h1(devices: int, costs: tuple[float, float, float]) -> None:
    """Bubble (D-1)(F + I - W) at 1F1B's memory, D stashes."""
    f, i, w = costs
    for n in (devices, devices + 1, 3 * devices):
        plan = of_a_device("zb-h1", devices, n, costs)
        assert bubble(plan) == pytest.approx((devices - 1) * (f + i - w), abs=1e-9)
        assert stashes(plan) == devices
        assert build("zb-h1", devices, n).in_flight == (devices,) * devices


def spans(plan: Plan) -> Iterator[float]:
    """Seconds from every device's first compute op to its last."""
    jobs, offset = simulate(plan).jobs, 0
    for order in plan.orders:
        compute = [offset + k for k, op in enumerate(order) if op.kind in COMPUTE]
        yield float(jobs.end[compute].max() - jobs.start[compute].min())
        offset += len(order)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("costs", UNEVEN)
def test_zb_h2(devices: int, costs: tuple[float, float, float]) -> None:
    """A device idles (D-1)(F + I - 2W) between its first and last op, at 2D - 1 stashes: 0 for F = I = W."""
    f, i, w = costs
    for n in (2 * devices - 1, 2 * devices, 3 * devices):
        plan = of_a_device("zb-h2", devices, n, costs)
        assert max(spans(plan)) - n * (f + i + w) == pytest.approx((devices - 1) * (f + i - 2 * w), abs=1e-9)
        assert stashes(plan) == 2 * devices - 1


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaved_zb(devices: int, chunks: int) -> None:
    """F = I = W: bubble (D-1)F/v at 1F1B's memory, D stashes, less than that of interleaved 1F1B."""
    for n in (devices, 2 * devices, 3 * devices):
        plan = of_a_device("interleaved-zb", devices, n, (12, 12, 12), chunks=chunks)
        assert bubble(plan) == pytest.approx((devices - 1) * 12 / chunks, abs=1e-9)
        assert stashes(plan) <= devices
        whole = of_a_device("interleaved", devices, n, (12, 12, 12), chunks=chunks)
        assert stashes(plan) <= stashes(whole)


@pytest.mark.parametrize(("devices", "chunks", "share"), [(8, 2, 0.75), (8, 4, 0.625), (16, 4, 0.625), (6, 2, 0.75)])
def test_interleaved_zb_in_groups_of_half_the_devices(devices: int, chunks: int, share: float) -> None:
    """3/4 of 1F1B's memory with two chunks, 5/8 with four; micro-batches need not come in whole groups."""
    for n in (2 * devices, 2 * devices + 1, 4 * devices):
        plan = of_a_device("interleaved-zb-half", devices, n, (12, 12, 12), chunks=chunks)
        assert stashes(plan) == share * devices
        assert check(plan) == []


# ------------------------------------------------------------------ V placements


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5, 6, 8, 9, 16])
def test_zb_v(devices: int) -> None:
    """F = I = W: idle only before a device's first F, (D-1)F/2 in all, at D stashes."""
    for n in (devices, devices + 1, 2 * devices, 3 * devices + 1):
        plan = of_a_device("zb-v", devices, n, (2, 2, 2))
        assert bubble(plan) == devices - 1
        assert stashes(plan) == devices


@pytest.mark.parametrize("devices", [2, 3, 4, 5, 6, 7, 8, 9, 16, 32])
@pytest.mark.parametrize("held_until_w", [STASH // 2, STASH])
def test_v_half(devices: int, held_until_w: int) -> None:
    """F = I = W: bubble (3D-5)F/2 at D/2 + 1 stashes, whether I releases half of a stash or nothing."""
    for n in (devices, 2 * devices + 1):
        layout = build("v-half", devices, n)
        plan = planned(layout, (1, 1, 1), held_until_w=held_until_w)
        assert bubble(plan) == 3 * devices - 5
        assert stashes(plan) <= devices / 2 + 1
        assert max(map(held_at_once, layout.orders)) == devices + 2


@pytest.mark.parametrize(("devices", "share"), [(8, 0.625), (16, 0.5625), (32, 0.53125)])
def test_v_half_of_the_memory_of_1f1b(devices: int, share: float) -> None:
    """The published shares of 1F1B's memory."""
    half = of_a_device("v-half", devices, 2 * devices, (2, 2, 2))
    assert stashes(half) / stashes(of_a_device("1f1b", devices, 2 * devices, (2, 2, 2))) == share


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 30])
def test_v_min(devices: int) -> None:
    """F = I = W: bubble (4D-5)F/2 (none on one device) at (D + 4) // 3 stashes."""
    for n in (devices, 2 * devices + 1):
        layout = build("v-min", devices, n)
        assert bubble(planned(layout)) == max(0, 4 * devices - 5)
        assert max(map(held_at_once, layout.orders)) <= 2 * ((devices + 4) // 3)


def held_at_once(order: tuple[Op, ...]) -> int:
    """Most stashes of a device where each is held whole from F to B or W."""
    held = most = 0
    for op in order:
        held += (op.kind is Kind.F) - (op.kind in (Kind.B, Kind.W))
        most = max(most, held)
    return most


@pytest.mark.parametrize("name", ["zb-v", "v-half", "v-min"])
@pytest.mark.parametrize("devices", [12, 13, 31, 64])
def test_v_memory_at_any_depth(name: str, devices: int) -> None:
    """Peaks as published, in whole stashes of one chunk."""
    limit = {"zb-v": 2 * devices, "v-half": devices + 2, "v-min": 2 * ((devices + 4) // 3)}[name]
    for n in (devices // 2, devices + 5):
        assert max(map(held_at_once, build(name, devices, n).orders)) <= limit


@pytest.mark.parametrize(
    ("name", "steps"),
    [("zb-h1", (310, 550, 1030)), ("zb-v", (275, 515, 995))],
)
def test_eight_devices_with_eight_stashes(name: str, steps: tuple[float, ...]) -> None:
    """F=I=W=10, N=8, 16, 32: known steps at 1F1B's memory."""
    for n, step in zip((8, 16, 32), steps, strict=True):
        plan = of_a_device(name, 8, n, (10, 10, 10))
        assert plan.forecast is not None
        assert plan.forecast.step_s == step
        assert stashes(plan) == 8


# ------------------------------------------------------------------ DualPipe


def overlapped_step(layout: Layout, f: float, i: float, w: float) -> float:
    """Step where an F and the B right after it are one op that takes as long as both: the paper's F&B."""
    duration = {Kind.F: f, Kind.B: i + w, Kind.I: i, Kind.W: w}
    lists: list[list[list[Op]]] = []
    for order in layout.orders:
        groups: list[list[Op]] = []
        for op in order:
            if op.kind is Kind.B and groups and [x.kind for x in groups[-1]] == [Kind.F]:
                groups[-1].append(op)
            else:
                groups.append([op])
        lists.append(groups[::-1])
    end: dict[tuple[bool, int, int], float] = {}
    clock = [0.0] * len(lists)

    def arrival(op: Op) -> float | None:
        if op.kind is Kind.W or (op.kind is Kind.F and op.stage == 0):
            return 0.0
        if op.kind is Kind.F:
            return end.get((True, op.stage - 1, op.micro_batch))
        last = op.stage == layout.stages - 1
        return end.get((True, op.stage, op.micro_batch) if last else (False, op.stage + 1, op.micro_batch))

    while any(lists):
        before = sum(map(len, lists))
        for d, groups in enumerate(lists):
            while groups:
                arrivals = [arrival(op) for op in groups[-1]]
                if None in arrivals:
                    break
                clock[d] = max(clock[d], *(t or 0.0 for t in arrivals)) + sum(duration[op.kind] for op in groups[-1])
                for op in groups.pop():
                    if op.kind is not Kind.W:
                        end[op.kind is Kind.F, op.stage, op.micro_batch] = clock[d]
        assert sum(map(len, lists)) < before, "deadlock"
    return max(clock)


@pytest.mark.parametrize("devices", [2, 4, 6, 8, 16])
@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1.2, 1), (1, 1, 0.9), (1, 1.2, 0.8)])
def test_dualpipe(devices: int, costs: tuple[float, float, float]) -> None:
    """Bubble (D/2-1)(F&B + B - 3W) with F&B = F + B, at D + 1 stashes; less where F is sent on before its B runs."""
    f, i, w = costs
    stated = (devices / 2 - 1) * (f + 2 * (i + w) - 3 * w)
    for n in (2 * devices, 2 * devices + 2, 4 * devices):
        layout = build("dualpipe", devices, n)
        assert overlapped_step(layout, f, i, w) - n * (f + i + w) == pytest.approx(stated, abs=1e-9)
        plan = planned(layout, costs)
        assert bubble(plan) <= stated + 1e-9
        assert stashes(plan) == devices + 1
        assert sorted(plan.pipelines[0].forward) == sorted(plan.pipelines[1].forward) == list(range(devices))
    if f == i == w:
        assert bubble(plan) == devices / 2 - 1


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1.2, 1), (1, 1, 0.9)])
def test_dualpipe_v(devices: int, costs: tuple[float, float, float]) -> None:
    """Half of DualPipe's devices: (D-1)(F&B + B - 3W) of a chunk, at 2D + 1 chunks' stashes, no stage twice."""
    f, i, w = costs
    stated = (devices - 1) * (f + 2 * (i + w) - 3 * w)
    for n in (2 * devices, 2 * devices + 1, 4 * devices):
        layout = build("dualpipe-v", devices, n)
        assert overlapped_step(layout, f, i, w) - 2 * n * (f + i + w) == pytest.approx(stated, abs=1e-9)
        plan = planned(layout, costs)
        assert bubble(plan) <= stated + 1e-9
        assert 2 * stashes(plan) == 2 * devices + 1
        assert len(plan.pipelines) == 1


# ------------------------------------------------------------------ every layout


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 8, 17])
def test_every_variant_passes_the_checker(devices: int, micro_batches: int) -> None:
    """Whatever the generators make is executable, split or not."""
    seen = set()
    for name, layout in variants(devices, micro_batches, 3 * devices):
        seen.add(name)
        assert check(planned(layout)) == [], name
        whole = unsplit(layout)
        if whole != layout:
            assert check(planned(whole, separable=False)) == [], name
    assert {"gpipe", "1f1b", "gems", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "v-auto", "dualpipe-v"} <= seen
    assert {"looped-bfs-2", "looped-bfs-3", "interleaved-zb-2", "interleaved-zb-3"} <= seen
    assert {"interleaved-zb-half-2", "interleaved-zb-half-3"} <= seen
    assert ("dualpipe" in seen) == ("chimera" in seen) == (devices % 2 == 0)


@pytest.mark.parametrize(("devices", "micro_batches"), [(16, 32), (9, 17), (7, 6), (6, 16)])
def test_larger_variants_pass_the_checker(devices: int, micro_batches: int) -> None:
    """A few larger numbers, with two stages a device."""
    for name, layout in variants(devices, micro_batches, 2 * devices):
        assert check(planned(layout)) == [], name


def test_unsplit_puts_b_in_the_place_of_i() -> None:
    """ZB-H1 without the split is 1F1B; what was whole stays as it is."""
    assert unsplit(build("zb-h1", 4, 9)).orders == build("1f1b", 4, 9).orders
    assert unsplit(build("chimera", 4, 8)) == build("chimera", 4, 8)
    kinds = {op.kind for order in unsplit(build("dualpipe", 4, 8)).orders for op in order}
    assert kinds == {Kind.F, Kind.B}


def test_stashes_in_flight_leave_with_w() -> None:
    """1F1B holds D - s stashes of stage s; with W delayed every stage is held D times."""
    assert build("1f1b", 4, 8).in_flight == (4, 3, 2, 1)
    assert build("zb-h1", 4, 8).in_flight == (4, 4, 4, 4)
    assert build("looped-bfs", 2, 5).in_flight == (5, 5, 5, 5)
    assert max(build("chimera-doubling", 4, 16).in_flight) <= 8


def test_layouts_are_built_by_their_names() -> None:
    """Every variant's name builds it again; one schedule's variants are those of its name."""
    for name, layout in variants(4, 8, 16):
        assert build(name, 4, 8) == layout

    def names(*of: str) -> list[str]:
        return [name for name, _ in variants(4, 8, 16, *of)]

    assert names("interleaved") == ["interleaved-2", "interleaved-3", "interleaved-4"]
    assert names("chimera") == ["chimera", "chimera-4"]
    assert names("chimera-halving") == ["chimera-halving"]
    assert [name for name, _ in variants(4, 8, 4)] == [
        *("1f1b", "gpipe", "gems", "chimera", "chimera-doubling", "zb-h1", "zb-h2", "dualpipe", "chimera-4")
    ]


def test_a_layout_is_built_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first variant does not wait for the others."""
    made: list[str] = []

    def recorded(name: str) -> Scheme:
        make = SCHEDULES[name].make

        def build_it(*numbers: int) -> Layout:
            made.append(name)
            return make(*numbers)

        return replace(SCHEDULES[name], make=build_it)

    monkeypatch.setattr("contraflow.planner.schedules.SCHEDULES", {name: recorded(name) for name in SCHEDULES})
    assert next(variants(4, 8, 16))[0] == "1f1b"
    assert made == ["1f1b"]


@pytest.mark.long
def test_orders_for_many_devices_and_micro_batches() -> None:
    """64 devices, 512 micro-batches: F, I and W of everything, once."""
    for name in ("zb-h1", "v-min", "dualpipe-v"):
        layout = build(name, 64, 512)
        ops = [op for order in layout.orders for op in order]
        assert len(set(ops)) == len(ops)
        assert sum(1 + (op.kind is Kind.B) for op in ops) == 3 * layout.stages * 512


def test_schedules_say_when_they_do_not_exist() -> None:
    """An odd number of devices has no Chimera, f must divide D/2, interleaving needs multiples of D."""
    for name, devices, n, options, reason in (
        ("chimera", 3, 6, {}, "even number of devices, got 3"),
        ("dualpipe", 3, 6, {}, "even number of devices, got 3"),
        ("chimera-doubling", 5, 20, {}, "even number of devices, got 5"),
        ("chimera-doubling", 4, 4, {}, "more than the 4 micro-batches of a unit, got 4"),
        ("chimera", 8, 8, {"pipelines": 6}, "do not divide half of the 8 devices"),
        ("interleaved", 4, 6, {}, "multiples of the 4 devices, got 6"),
        ("interleaved-zb", 4, 6, {"chunks": 1}, "at least 2 chunks a device, got 1"),
        ("looped-bfs-1", 4, 6, {}, "at least 2 chunks a device, got 1"),
        ("gpip", 4, 6, {}, "unknown schedule 'gpip'"),
        ("zb-3", 4, 6, {}, "unknown schedule 'zb-3'"),
    ):
        with pytest.raises(ScheduleError, match=reason):
            build(name, devices, n, **options)
