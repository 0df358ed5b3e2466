"""What programs around the planner use: comparisons, frontiers as objects, spaces as data, and two real libraries."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from instances import step_of, uniform

from contraflow.planner import (
    Cluster,
    Compared,
    Frontier,
    InputError,
    Layer,
    ModelFamily,
    ModelGraph,
    SearchSpace,
    Workload,
    check,
    compare,
    frontier,
    plan,
    plan_from_dict,
    plan_to_dict,
    simulate,
)

MODEL, CLUSTER, WORKLOAD = uniform(4, 1.0, 2.0, stash_bytes=4), Cluster.uniform(2, 24), Workload(4)
SPACE = SearchSpace(recompute=False, offload=False, separate_backward=False)
NAMES = ("gpipe", "1f1b", "chimera", "dualpipe")


@pytest.fixture(scope="module")
def compared() -> Compared:
    """Room for two micro-batches a device."""
    return compare(MODEL, CLUSTER, WORKLOAD, SPACE, NAMES, 20, deterministic_limit=0.05)


def test_what_fits_is_told_from_what_does_not(compared: Compared) -> None:
    """GPipe keeps four micro-batches, 1F1B two: one has a plan to look at, the other one to run."""
    rows = {one.schedule: one for one in compared}
    assert [one.schedule for one in compared] == [*NAMES, "search"]
    assert (rows["gpipe"].fits, rows["gpipe"].status) == (False, "infeasible")
    assert rows["1f1b"].fits
    assert rows["1f1b"].plan is not None
    assert not check(rows["1f1b"].plan)
    assert rows["gpipe"].plan is not None
    assert all("memory" in x.code for x in check(rows["gpipe"].plan))
    assert compared.gap(rows["gpipe"]) is None
    assert compared.best is not None
    assert compared.best.step_s == min(one.step_s for one in compared if one.fits and one.step_s)
    assert (compared.gap(compared.best) or 0.0) >= 0.0


def test_a_comparison_without_a_flush_is_refused() -> None:
    with pytest.raises(InputError, match="flush"):
        compare(MODEL, CLUSTER, WORKLOAD, SearchSpace(asynchronous=("stash",)))


def test_the_nearest_plan_of_a_frontier_fits(compared: Compared) -> None:
    """And is the fastest that does; below the leanest there is none."""
    known = [one.plan for one in compared if one.fits and one.plan]
    found = frontier(MODEL, CLUSTER, WORKLOAD, SPACE, 4, known, 20, deterministic_limit=0.05)
    assert isinstance(found, Frontier)
    assert list(found) == list(found.points)
    assert len(found) == len(found.points)
    peaks = [max(made.forecast.peak_bytes) for made in found.plans if made.forecast]
    assert found.nearest(min(peaks) - 1) is None
    for limit in range(min(peaks), 26):
        nearest = found.nearest(limit)
        assert nearest is not None
        assert nearest.forecast is not None
        assert max(nearest.forecast.peak_bytes) <= limit
        fit = [made for made in found.plans if made.forecast and max(made.forecast.peak_bytes) <= limit]
        assert step_of(nearest) == min(map(step_of, fit))
    assert pickle.loads(pickle.dumps(found)) == found


def test_tables_are_those_of_pandas(compared: Compared) -> None:
    """A row a contender, with figures in seconds and bytes."""
    pytest.importorskip("pandas", reason="pip install 'contraflow[frames]'")
    table = compared.to_dataframe()
    assert list(table["schedule"]) == [*NAMES, "search"]
    assert table.set_index("schedule")["step_s"]["1f1b"] == next(x.step_s for x in compared if x.schedule == "1f1b")


@pytest.mark.parametrize(
    "space",
    [SearchSpace(), SPACE, SearchSpace("1f1b", 2), SearchSpace(asynchronous=("stash", "2bw"), quality_within=0.0)],
)
def test_a_space_goes_through_json(space: SearchSpace) -> None:
    assert SearchSpace.from_dict(json.loads(json.dumps(space.to_dict()))) == space


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"offlaod": True}, "offlaod"),
        ({"offload": 1}, "offload"),
        ({"schedule": 3}, "schedule"),
        ({"asynchronous": "stash"}, "asynchronous"),
        ({"pipelines": 0}, "pipelines"),
        ([], "space"),
    ],
)
def test_a_space_that_is_none_is_refused_by_name(content: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        SearchSpace.from_dict(content)


def test_costs_that_drift_are_planned_for_from_the_old_plan() -> None:
    """The answer is never worse than the old plan's orders under the new costs."""
    old = plan(MODEL, CLUSTER, WORKLOAD, SPACE, 20, deterministic_limit=0.05).plan
    assert old is not None
    assert plan_from_dict(json.loads(json.dumps(plan_to_dict(old)))) == old
    layers = [replace(layer, forward_s=(1 + 0.3 * k) * layer.forward_s) for k, layer in enumerate(MODEL.layers)]
    drifted = ModelGraph.chain(layers)
    moved = replace(old, problem=replace(old.problem, model=drifted))
    first: list[float] = []

    def heard(event: object) -> bool:
        first.append(getattr(event, "best_step_s", None) or 0.0)
        return True

    again = plan(drifted, CLUSTER, WORKLOAD, SPACE, 20, hint=old, on_progress=heard)
    assert first == [simulate(moved).step_s]
    assert (again.seconds or 0.0) <= first[0]


def test_a_family_is_rescaled_between_what_was_measured() -> None:
    """On the line through two sizes; a size beyond them is refused with those that are known."""

    def member(size: int) -> ModelGraph:
        layers = [Layer(f"l{k}", 1.0 + size, 2.0 * size, separable=False, stash_bytes=10 * size) for k in range(3)]
        return ModelGraph.chain(layers, micro_batch_size=size)

    family = ModelFamily((member(2), member(8)))
    middle = family.rescale(4)
    assert middle.micro_batch_size == 4
    assert [layer.forward_s for layer in middle.layers] == [5.0] * 3
    assert [layer.stash_bytes for layer in middle.layers] == [40] * 3
    assert family.rescale(8) == member(8)
    with pytest.raises(InputError, match="of 2, 8, and 16"):
        family.rescale(16)


def test_optuna_finds_what_fits() -> None:
    """The best trial lacks no byte, and some trial did."""
    pytest.importorskip("optuna", reason="pip install 'contraflow[examples]'")
    import tune_optuna

    study = tune_optuna.study(12)
    assert study.best_trial.value
    assert tune_optuna.missing(study.best_trial) == [0.0]
    assert any(tune_optuna.missing(trial) != [0.0] for trial in study.trials)


def test_joblib_gives_the_plans_of_one_process() -> None:
    """Processes of loky, and none."""
    pytest.importorskip("joblib", reason="pip install 'contraflow[examples]'")
    import sweep_joblib

    alone = sweep_joblib.sweep((2, 4), (2**28, 2**30), 1)
    many = sweep_joblib.sweep((2, 4), (2**28, 2**30), 2)
    orders = [{key: x.plan and x.plan.orders for key, x in found.items()} for found in (alone, many)]
    assert orders[0] == orders[1]
    assert any(orders[0].values())


@pytest.mark.slow
def test_ray_gives_the_plans_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of a cluster on this machine."""
    ray = pytest.importorskip("ray", reason="pip install ray")
    examples = str(Path(__file__).parents[2] / "examples")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([examples, *filter(None, sys.path)]))
    import sweep_problem
    import sweep_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        many = sweep_ray.sweep((2, 4), (2**28, 2**30))
    finally:
        ray.shutdown()
    alone = {one: sweep_problem.planned(sweep_problem.MODEL, *one) for one in many}
    orders = [{key: x.plan and x.plan.orders for key, x in found.items()} for found in (alone, many)]
    assert orders[0] == orders[1]
    assert any(orders[0].values())


def test_what_a_call_does_goes_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    """An answer is INFO, better plans are DEBUG; nothing reaches who asks for neither."""
    with caplog.at_level(logging.DEBUG, "contraflow"):
        found = plan(MODEL, CLUSTER, WORKLOAD, SearchSpace("1f1b"), 5)
        plan(MODEL, CLUSTER, replace(WORKLOAD, memory_limit_bytes=1), SearchSpace("1f1b"), 5)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert f"1f1b, {found.status}, {found.seconds:.6g} s, bound {found.bound_s:.6g} s" in told[0]
    assert "bytes missing" in told[1]
    assert any(record.levelno == logging.DEBUG for record in caplog.records)
    assert all(record.name.startswith("contraflow.planner") for record in caplog.records)
