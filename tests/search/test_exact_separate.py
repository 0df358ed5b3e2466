"""The exact search over devices: separate forward and backward devices, and stashes shipped away and back."""

from __future__ import annotations

import math

import pytest
from instances import nothing_better, one_layer_a_stage, uniform

from contraflow.planner import SearchSpace, plan
from contraflow.planner.check import check
from contraflow.planner.graph import Candidate
from contraflow.planner.plan import Kind, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.search.common.fit import excess, host_excess
from contraflow.planner.search.common.two_device_space import pays
from contraflow.planner.search.driver import Result
from contraflow.planner.search.exact.instance import Rules
from contraflow.planner.search.exact.search import Found, Known, solve
from contraflow.planner.search.exact.solver import Effort

EFFORT = Effort(240, 1e9, 2)
MIB = 1 << 20


def candidate(devices: int, batches: int, limit: int, link: Link = Link(1.0), **rest: int) -> Candidate:  # noqa: B008
    """F=1, B=2, one layer a stage, a stash of one byte, `limit` of them a device; shipping one takes a second."""
    cluster = Cluster((NodeGroup(1, devices, DeviceType("toy", limit), link, host_link=Link(2.0)),))
    problem = Problem(uniform(devices, 1, 2, **rest), cluster, Workload(batches))
    route = tuple(range(devices))
    return Candidate(problem, one_layer_a_stage(problem.model), (Pipeline(route, route, tuple(range(batches))),))


def anywhere(policies: str) -> Rules:
    """Open devices, with these stash policies."""
    return Rules(policies=frozenset(policies.split()), open=True)


def proven(found: Found) -> Plan:
    """The plan found, checked, and its step equal to the bound."""
    assert found.closed
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert check(found.plan) == []
    assert not any(excess(found.plan))
    assert found.plan.forecast.step_s == pytest.approx(found.bound_s)
    return found.plan


FIGURES = [
    (4, 33, 32),
    pytest.param(3, 39, 36, marks=pytest.mark.slow),
    pytest.param(2, 51, 43, marks=pytest.mark.slow),
    pytest.param(1, 96, 75, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("limit", "together", "separate"), FIGURES)
def test_separate_devices_pay_where_memory_is_tight(limit: int, together: float, separate: float) -> None:
    """Four devices, four stages, eight micro-batches: one device a stage, and any two, both proven."""
    given = candidate(4, 8, limit)
    kept = proven(solve(given, EFFORT))
    assert kept.forecast is not None
    assert kept.forecast.step_s == pytest.approx(together)
    found = proven(solve(given, EFFORT, anywhere("keep"), Known(together)))
    assert found.forecast is not None
    assert found.forecast.step_s == pytest.approx(separate)
    assert any(a != b for p in found.pipelines for a, b in zip(p.forward, p.backward, strict=True))


@pytest.mark.slow
def test_shipping_away_and_back_competes() -> None:
    """At three stashes a device (36 with separate devices) it reaches 33: the last device has room for others'."""
    found = solve(candidate(4, 8, 3), EFFORT, anywhere("keep ship"), Known(34))
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert check(found.plan) == []
    assert found.plan.forecast.step_s == pytest.approx(33)
    assert any(policy.startswith("ship>") for policy in found.plan.stash[0])


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("policies", ["keep", "keep ship", "keep recompute", "keep ship recompute offload"])
def test_two_devices(limit: int, policies: str) -> None:
    """Whatever is allowed: proven, checked, and no worse than with one device a stage."""
    given = candidate(2, 4, limit, Link(4.0), output_bytes=0)
    found = solve(given, EFFORT, anywhere(policies))
    best = proven(found)
    assert best.forecast is not None
    kept = proven(solve(given, EFFORT))
    assert kept.forecast is not None
    assert best.forecast.step_s <= kept.forecast.step_s + 1e-9


def test_recompute_on_the_backward_device() -> None:
    """Where nothing else is allowed every backward has its R on its own device."""
    found = proven(solve(candidate(2, 3, 2), EFFORT, anywhere("recompute")))
    assert found.stash == (("recompute", "recompute"),)
    (route,) = found.pipelines
    for device, order in enumerate(found.orders):
        assert all(route.backward[op.stage] == device for op in order if op.kind is Kind.R)


def test_a_stash_that_moves_in_no_time_is_sent_before_its_memory_is_free() -> None:
    """Links without a bandwidth, one stash a device: the FREE stands behind the SEND_S of the same instant."""
    assert proven(solve(candidate(2, 4, 1, Link()), EFFORT, anywhere("keep"))).forecast is not None


def test_nothing_fits() -> None:
    """A stash of two bytes has no place on any device of one."""
    found = solve(candidate(2, 3, 1, stash_bytes=2), EFFORT, anywhere("keep ship"))
    assert found.closed
    assert math.isinf(found.bound_s)


def test_what_exceeds_host_memory_is_searched_again_with_less_of_it() -> None:
    """Four bytes of host memory: the first answer takes four more, the next one fits and is as short as the bound."""
    layers = [
        Layer("layer0", 3, 1, 2, stash_bytes=4, weight_stash_bytes=4, output_bytes=1),
        Layer("layer1", 3, 7, 3, parameter_bytes=2, stash_bytes=1, weight_stash_bytes=0),
    ]
    nodes = NodeGroup(1, 2, DeviceType("toy", 20), Link(1.0), host_link=Link(1.0), host_memory_bytes=4)
    problem = Problem(ModelGraph.chain(layers), Cluster((nodes,)), Workload(3))
    pipeline = Pipeline((0, 1), (0, 1), (0, 1, 2))
    found = proven(solve(Candidate(problem, (("layer0",), ("layer1",)), (pipeline,)), EFFORT, anywhere("keep offload")))
    assert found.forecast is not None
    assert found.forecast.step_s == 41
    assert not any(host_excess(found))


# ------------------------------------------------------------------ plan()


def blocks(gib_a_second: float, space: SearchSpace = SearchSpace(pipelines=1, recompute=False)) -> Result:  # noqa: B008
    """Two transformer blocks of 10 and 20 ms, a stash 70 times the tensor between them, room for one of these."""
    costs = {"stash_bytes": 70 * MIB, "weight_stash_bytes": 70 * MIB, "output_bytes": MIB}
    model = ModelGraph.chain([Layer(f"block{k}", 0.010, 0.020, separable=False, **costs) for k in range(2)])
    cluster = Cluster.uniform(2, 74 * MIB, Link(gib_a_second * 1024 * MIB))
    return plan(model, cluster, Workload(6), space, time_limit=30)


def test_a_fast_link_makes_separate_devices_optimal() -> None:
    """2.5 ms a stash: the first forward on a device of its own, proven optimal, and 10 % below one device a stage."""
    result = blocks(28)
    assert result.plan is not None
    assert check(result.plan) == []
    assert nothing_better(result)
    devices = {(p.forward, p.backward) for p in result.plan.pipelines}
    assert devices in ({((1, 0), (0, 0))}, {((0, 1), (1, 1))})  # the same, the devices being alike
    alone = blocks(28, SearchSpace(pipelines=1, recompute=False, separate_backward=False))
    assert nothing_better(alone)
    assert alone.plan is not None
    assert alone.plan.forecast is not None
    assert result.plan.forecast is not None
    assert result.plan.forecast.step_s < 0.91 * alone.plan.forecast.step_s


def test_a_slow_link_does_not() -> None:
    """70 ms a stash: one device a stage is optimal among all."""
    result = blocks(1)
    assert result.plan is not None
    assert nothing_better(result)
    assert all(p.forward == p.backward for p in result.plan.pipelines)
    assert "two devices or one" in result.plan.provenance.space


def test_what_has_no_price_is_not_assumed_free() -> None:
    """Links without a bandwidth, memory that holds everything, and the switch: then stages have one device each."""

    def asked(link: Link, limit: int, space: SearchSpace) -> bool:
        return pays(candidate(2, 4, limit, link).problem, space)

    assert asked(Link(1.0), 2, SearchSpace())
    assert not asked(Link(), 2, SearchSpace())
    assert not asked(Link(1.0), 100, SearchSpace())
    assert not asked(Link(1.0), 2, SearchSpace(separate_backward=False))
