"""Which of several weight policies is taken: the order of preference, and what it may cost."""

from dataclasses import replace

import pytest

from contraflow.planner import Cluster, Layer, ModelGraph, SearchSpace, Workload, plan
from contraflow.planner.basics import WorkloadError
from contraflow.planner.check import check
from contraflow.planner.plan import Plan
from contraflow.planner.problem import FLUSH, WEIGHT_POLICIES, DeviceType, NodeGroup
from contraflow.planner.search.methods import choose, quality

EVERY = tuple(name for name in WEIGHT_POLICIES if name != FLUSH)


def found(methods: tuple[str, ...], devices: int = 4, bandwidth: float | None = None, **space: float) -> Plan:
    """The plan of these methods; predictions take time where the devices' memory has a bandwidth."""
    layers = [Layer(f"l{k}", 1.0, 1.0, 0.0, parameter_bytes=100) for k in range(devices)]
    kind = DeviceType("toy", 10**6, 1.0, bandwidth)
    asked = (ModelGraph.chain(layers), Cluster((NodeGroup(1, devices, kind),)), Workload(micro_batches=16))
    result = plan(*asked, SearchSpace(asynchronous=methods, pipelines=1, **space), time_limit=5, workers=1)
    assert result.plan is not None
    assert not check(result.plan)
    assert result.bound_s <= result.seconds
    return result.plan


def test_the_order_of_preference() -> None:
    """Predicted first, the shorter predictions before; then one update everywhere, and the rest by staleness."""
    plans = [found((method,)) for method in EVERY]
    ranked = [one.weights for one in sorted(plans, key=quality)]
    assert ranked[0] == "pipeoptim"
    assert set(ranked[1:3]) == {"spectrain", "pipeoptim-lookahead"}
    assert ranked[3:] == ["2bw", "stash", "vertical", "naive"]


def test_on_one_stage_all_are_the_same() -> None:
    plans = [found((method,), devices=1) for method in EVERY if not WEIGHT_POLICIES[method].extra]
    assert len({quality(one) for one in plans}) == 1


@pytest.mark.long
def test_a_better_method_may_be_slower_by_so_much() -> None:
    """Predictions of 100 bytes at 2 kB/s take a tenth of a second or more a micro-batch of two."""
    fast, slow = found(("stash",), bandwidth=2000.0), found(("pipeoptim",), bandwidth=2000.0)
    assert fast.forecast is not None
    assert slow.forecast is not None
    costs = slow.forecast.objective_s / fast.forecast.objective_s - 1
    assert costs > 0.01
    both = ("stash", "pipeoptim")
    assert found(both, bandwidth=2000.0, quality_within=costs * 1.01).weights == "pipeoptim"
    assert found(both, bandwidth=2000.0, quality_within=costs * 0.99).weights == "stash"


def test_any_takes_pipeoptim_where_it_costs_nothing() -> None:
    assert found(EVERY).weights == "pipeoptim"
    assert found(EVERY, quality_within=0.0).weights == "pipeoptim"


def test_of_equals_the_faster() -> None:
    one = found(("stash",))
    assert one.forecast is not None
    other = replace(one, forecast=replace(one.forecast, period_s=one.forecast.objective_s * 1.01))
    assert choose([other, one], 0.05) is one


def test_what_was_found_of_each() -> None:
    """Also where nothing fits: then the reason is told."""
    layers = [Layer(f"l{k}", 1.0, 1.0, parameter_bytes=8) for k in range(2)]
    asked = (ModelGraph.chain(layers), Cluster.uniform(2, memory_bytes=1), Workload(micro_batches=8))
    result = plan(*asked, SearchSpace(asynchronous=("stash", "naive")), time_limit=10, workers=1)
    assert result.status == "infeasible"
    assert result.violations
    assert [(row.weights, row.status, row.chosen) for row in result.methods] == [
        ("stash", "infeasible", False),
        ("naive", "infeasible", False),
    ]


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf"), "5"])
def test_shares_that_are_none(share: object) -> None:
    with pytest.raises(WorkloadError):
        SearchSpace(asynchronous=EVERY, quality_within=share)  # type: ignore[arg-type]


def test_a_text_is_no_tuple_of_methods() -> None:
    """It would be read letter by letter."""
    with pytest.raises(WorkloadError, match="must be a tuple of methods"):
        SearchSpace(asynchronous="stash")  # type: ignore[arg-type]
