"""Facts about a plan: waiting adds up to bubbles, the gap's parts to the gap, and what-ifs are forecasts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import named, one_faster
from random_plans import plans_of, random_candidate

from contraflow.planner.check import check
from contraflow.planner.cli.commands import plan as command
from contraflow.planner.forecast import Cause, IdleSpan, Timeline, idle_spans
from contraflow.planner.graph import Candidate, regroup
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import COMPUTE, Pipeline, Plan, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, NodeGroup, SearchSpace, Workload
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search import Explanation, explain
from contraflow.planner.search import plan as search
from contraflow.planner.search.explanation import memory_step, with_one_less, with_one_more
from contraflow.planner.search.named import own_orders
from contraflow.planner.search.what_ifs import faster_clusters
from contraflow.planner.simulate import evaluate, simulate
from contraflow.planner.view import explained

EXAMPLES = Path(__file__).parents[2] / "examples"


def waits(plan: Plan) -> tuple[Timeline, tuple[IdleSpan, ...]]:
    problem = plan.problem
    limits = [problem.workload.memory_limit(device.kind.memory_bytes) for device in problem.cluster.devices]
    timeline = simulate(plan)
    return timeline, idle_spans(plan, timeline, limits)


@pytest.mark.long
@settings(max_examples=100)
@given(st.integers(0, 100_000), st.booleans(), st.booleans())
def test_causes_add_up_to_the_bubble_and_what_ifs_to_forecasts(seed: int, apart: bool, split: bool) -> None:
    """Of every device of 200 random plans: spans lie between what it computes, and fill the step with it."""
    for plan in plans_of(random_candidate(seed, apart), seed, 2, split):
        timeline, spans = waits(plan)
        close = 1e-9 * max(timeline.step_s, 1e-300)
        for device, (found, busy_s) in enumerate(zip(timeline.devices, timeline.busy_s, strict=True)):
            mine = [span for span in spans if span.device == device]
            assert sum(span.end_s - span.start_s for span in mine) == pytest.approx(timeline.step_s - busy_s, abs=close)
            assert all(span.end_s > span.start_s for span in mine)
            assert all(a.end_s <= b.start_s for a, b in pairwise(mine))
            for op in (op for op in found.ops if op.op.kind in COMPUTE and op.end_s > op.start_s):
                assert all(span.end_s <= op.start_s + close or span.start_s >= op.end_s - close for span in mine)
        told = explain(plan)
        clusters, count = dict(faster_clusters(plan.problem.cluster)), len(plan.orders)
        assert {one.what for one in told.what_ifs if one.device is None} == set(clusters)
        assert sorted(one.device for one in told.what_ifs if one.device is not None) == list(range(count))[count == 1 :]
        for one in told.what_ifs:
            cluster = clusters[one.what] if one.device is None else one_faster(plan.problem.cluster, one.device)
            assert one.step_s == evaluate(plan, cluster=cluster).step_s
            assert one.change == pytest.approx(one.step_s / told.step_s - 1 if told.step_s else 0.0)


def test_what_is_all_of_a_sort_is_said_to_be_all_and_its_parts_are_named() -> None:
    """Two sorts of nodes: everything together, the network, and each sort; what takes no time is left out."""
    link, kinds = Link(1e9), [DeviceType("a", 1), DeviceType("b", 1)]
    groups = tuple(NodeGroup(k + 1, 2, kind, link) for k, kind in enumerate(kinds))
    found = [what.removesuffix(" 10 % faster") for what, _ in faster_clusters(Cluster(groups, link))]
    parts = ["of nodes[0] (1 x 2 a)", "of nodes[1] (2 x 2 b)"]
    links = ["network", *(f"links {part}" for part in parts)]
    assert found == ["all links", *links, "all devices", *(f"devices {part}" for part in parts)]
    everything = dict(faster_clusters(Cluster(groups, link)))["all links 10 % faster"]
    assert {everything.network.bandwidth, *(g.link.bandwidth for g in everything.nodes)} == {1e9 * 11 / 10}
    assert [what for what, _ in faster_clusters(Cluster.uniform(2))] == ["all devices 10 % faster"]


def test_of_many_devices_those_that_compute_longest_are_made_faster_alone() -> None:
    """Layers that grow from device to device: the last 16 of 20."""
    layers = [Layer(f"l{k}", 1.0 + k, 1.0) for k in range(20)]
    told = explain(named("gpipe", 20, 2, model=ModelGraph.chain(layers)))
    assert {one.device for one in told.what_ifs} - {None} == set(range(4, 20))


FREE = Link()


def planned(orders: list[str], link: Link = FREE, memory: int = 1000, policy: str = "keep", **layer: int) -> Plan:
    """Two stages of one second forward and two back, on two devices; ops as text."""
    layers = [Layer(f"l{k}", 1.0, 2.0, separable=False, **layer) for k in range(2)]
    kind = DeviceType("d", memory)
    cluster = Cluster((NodeGroup(1, 2, kind, link, host_link=Link(1.0)),))
    count = max(int(text.split()[-1][2:]) for text in orders) + 1
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(count))
    route = Pipeline((0, 1), (0, 1), tuple(range(count)))
    rows = dict.fromkeys(range(count), (policy, "keep"))
    candidate: Candidate = regroup(problem, (("l0",), ("l1",)), (route,), rows, "flush")
    return assemble(candidate, [[op_from_text(word) for word in text.split()] for text in orders], "by hand")


def causes(plan: Plan, device: int) -> list[tuple[float, float, Cause]]:
    return [(span.start_s, span.end_s, span.cause) for span in waits(plan)[1] if span.device == device]


ONE = ["0F0 0B0", "1F0 1B0"]


def test_a_lone_micro_batch_fills_waits_and_drains() -> None:
    assert causes(planned(ONE), 0) == [(1, 4, Cause.NOTHING)]
    assert causes(planned(ONE), 1) == [(0, 1, Cause.FILLING), (4, 6, Cause.DRAINING)]


def test_a_message_on_its_way_is_told_from_what_makes_it() -> None:
    """Gradients of one byte take half a second and arrive a quarter later."""
    plan = planned(ONE, Link(2.0, 0.25), output_bytes=1)
    assert causes(plan, 0) == [(1, 4.75, Cause.NOTHING), (4.75, 5.5, Cause.MESSAGE)]


def test_a_forward_that_does_not_fit_waits_for_memory_and_one_that_does_for_its_turn() -> None:
    """1F1B with one in flight on device 0: with room for one stash memory keeps it, with more its list does."""
    orders = ["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"]
    assert causes(planned(orders, memory=15, stash_bytes=10), 0)[0] == (1, 4, Cause.MEMORY)
    assert causes(planned(orders, memory=100, stash_bytes=10), 0)[0] == (1, 4, Cause.ORDER)


def test_a_copy_from_the_host_is_waited_for() -> None:
    """The stash of 10 bytes comes back at a byte a second, asked for when the gradient is there at the latest."""
    plan = planned(ONE, policy="offload", stash_bytes=10)
    found = causes(plan, 0)
    assert {cause for *_, cause in found} >= {Cause.COPY}
    assert found[-1][2] is Cause.COPY


def test_a_device_without_work_is_unused() -> None:
    plan = planned(ONE)
    cluster = Cluster.uniform(3, 1000)
    wider = replace(plan, problem=replace(plan.problem, cluster=cluster), orders=(*plan.orders, ()))
    assert causes(wider, 2) == [(0, 6, Cause.UNUSED)]


def searched(time_limit: float = 0.0) -> tuple[Plan, Explanation]:
    model, cluster = ModelGraph.load(EXAMPLES / "toy-model.json"), Cluster.load(EXAMPLES / "cluster-toy.toml")
    found = search(
        model, cluster, Workload(8, memory_limit_bytes=4), time_limit=20, workers=1, deterministic_limit=0.2
    ).plan
    assert found is not None
    return found, explain(found, None, time_limit, workers=1, deterministic_limit=0.2)


def test_the_gaps_parts_add_up_to_the_gap() -> None:
    """On a plan whose bound is far."""
    found, _ = searched()
    assert found.forecast is not None
    loose = replace(found, forecast=replace(found.forecast, bound_s=0.7 * found.forecast.step_s))
    gap = explain(loose).gap
    assert gap is not None
    parts = (gap.load_s, gap.filling_s, gap.draining_s, gap.memory_s, gap.waiting_s)
    assert sum(parts) == pytest.approx(0.3 * found.forecast.step_s)


@pytest.mark.slow
def test_what_is_planned_again_is_the_forecast_of_a_plan_that_passes_the_check() -> None:
    """Memory, a micro-batch more and less, a device: marked so, and no worse than what they begin with."""
    found, told = searched(5.0)
    again = {one.what: one for one in told.what_ifs if one.searched_s is not None}
    more, less = "9 micro-batches, by the micro-batch", "7 micro-batches, by the micro-batch"
    assert set(again) == {"1 B more on every device", more, less, "one more device"}
    for what, one in again.items():
        assert one.plan is not None
        assert check(one.plan) == []
        assert evaluate(one.plan).step_s == one.step_s
        count = one.plan.problem.workload.micro_batches
        assert one.change == pytest.approx(one.step_s * 8 / count / told.step_s - 1)
        assert count == (9 if what == more else 7 if what == less else 8)
    assert all(again[what].step_s <= told.step_s * (1 + 1e-9) for what in again if what != more)
    roomier = again["1 B more on every device"].plan
    assert roomier is not None
    assert roomier.problem.workload.memory_limit_bytes == 5
    assert len(again["one more device"].plan.orders) == 5  # type: ignore[union-attr]
    text = explained(told, len(found.orders))
    assert text.count("planned again, at most 5 s") == 4


@pytest.mark.parametrize("seed", range(8))
def test_one_micro_batch_more_or_less_begins_with_a_plan_of_that_many(seed: int) -> None:
    """The hints are plans: their orders complete to op lists that the checker accepts, memory apart."""
    for made in plans_of(random_candidate(seed, apart=seed % 2 == 0), seed, 1, split=seed % 3 == 0):
        for what, hint in (with_one_more(made), with_one_less(made)):
            if not hint.problem.workload.micro_batches:
                continue
            candidate = Candidate(hint.problem, hint.stages, hint.pipelines, hint.stash)
            again = assemble(candidate, own_orders(hint), "hint")
            assert [x for x in check(again) if x.code != "memory"] == [], what


@pytest.mark.parametrize(("limit", "step"), [(80 << 30, 8 << 30), (24 << 30, 2 << 30), (4, 1), (1 << 60, None)])
def test_a_memory_step_is_a_power_of_two_near_an_eighth_of_the_limit(limit: int, step: int | None) -> None:
    cluster = Cluster.uniform(2, 1 << 60)
    assert (
        memory_step(Problem(ModelGraph.chain([Layer("a", 1, 1)]), cluster, Workload(1, memory_limit_bytes=limit)))
        == step
    )


def test_the_command_says_why_and_gives_the_facts_to_machines(tmp_path: Path) -> None:
    """The plan is a row; with --json its causes by device, the gap's parts and the what-ifs."""
    given_ = [str(EXAMPLES / "toy-model.json"), "--cluster", str(EXAMPLES / "cluster-toy.toml"), "--micro-batches", "4"]
    options = ["--schedule", "1f1b", "--explain", "--time-limit", "4", "--workers", "1", "-o", str(tmp_path / "p.json")]
    said = CliRunner().invoke(command, [*given_, *options])
    assert said.exit_code == 0, said.output
    assert "1f1b, 4 stages: chosen" in said.stdout
    assert "what devices wait for" in said.stdout
    told = json.loads(CliRunner().invoke(command, [*given_, *options, "--json"]).stdout)
    assert len(told["idle_s"]) == 4
    idle = [sum(causes.values()) for causes in told["idle_s"]]
    plan = json.loads((tmp_path / "p.json").read_text())
    bubbles = [device["bubble"] * told["step_s"] for device in plan["forecast"]["devices"]]
    assert idle == pytest.approx(bubbles, abs=1e-9 * told["step_s"])
    assert sum(value for key, value in told["gap_parts"].items() if key != "device") == pytest.approx(
        told["step_s"] - told["bound_s"]
    )
    assert {one["searched_s"] for one in told["what_if"]} == {None, 1.0}


def test_what_of_a_gap_is_the_orders_is_said() -> None:
    """ZB-H1 on its stages cannot be shortened; 1F1B, whose backwards are whole, can where they may be split."""
    layers = [Layer(f"l{k}", 10, 10, 10, separable=True, stash_bytes=2, weight_stash_bytes=1) for k in range(4)]
    model, cluster, workload = ModelGraph.chain(layers), Cluster.uniform(4, 1 << 60), Workload(8, memory_limit_bytes=8)
    told = {}
    for name in ("zb-h1", "1f1b"):
        made = search(model, cluster, workload, SearchSpace(schedule=name), 20, deterministic_limit=0.1).plan
        assert made is not None
        found = explain(made, SearchSpace(), 0.4)
        assert found.orders_s is not None
        assert found.orders_s <= found.step_s
        told[name] = found
    assert told["zb-h1"].orders_s == pytest.approx(270, rel=2e-3)
    assert told["zb-h1"].step_s == 270
    assert told["1f1b"].orders_s == pytest.approx(270, rel=2e-3)
    assert told["1f1b"].step_s == 330
