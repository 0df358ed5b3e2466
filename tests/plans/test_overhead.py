"""What ops cost beside their layers: in costs, files, simulation, cuts, and in what the search chooses and says."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from instances import named
from random_plans import Costs, plans_of, random_candidate, random_layers

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Plan, Workload, evaluate, plan, simulate
from contraflow.planner.forecast.jobs import overhead_seconds
from contraflow.planner.graph import Candidate
from contraflow.planner.lower.plans import assemble
from contraflow.planner.partition.chain import Chain
from contraflow.planner.plan import Pipeline, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem import NodeGroup, Overhead, StageCosts
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search import overhead_notes

OVERHEAD = Overhead(0.5, 0.125)
STAGES = (("layer0",), ("layer1", "layer2"), ("layer3",))


def uneven(seed: int, layers: int) -> ModelGraph:
    """A chain of random layers."""
    return ModelGraph.chain(random_layers(random.Random(seed), layers, Costs(halves=1)))


def test_an_op_costs_its_own_overhead_and_that_of_its_stage_s_messages() -> None:
    """The stages between have a tensor on either side, the first and the last one on one; a W sends nothing."""
    model = uneven(0, 4)
    bare, costs = StageCosts.of(model, STAGES), StageCosts.of(model, STAGES, OVERHEAD)
    around = [0.625, 0.75, 0.625]
    assert (costs.forward_s - bare.forward_s).tolist() == pytest.approx(around)
    assert (costs.backward_input_s - bare.backward_input_s).tolist() == pytest.approx(around)
    assert (costs.backward_weight_s - bare.backward_weight_s).tolist() == pytest.approx([0.5] * 3)
    assert (costs.backward_s - bare.backward_s).tolist() == pytest.approx(around)  # one op, where halves are two


@pytest.mark.parametrize("policy", ["offload", "ship>1"])
def test_what_moves_a_stash_costs_as_much_as_a_message(policy: str) -> None:
    """Once in the forward and once in the backward of the device that it leaves and comes back to."""
    (group,) = Cluster.uniform(2).nodes
    group = replace(group, host_link=Link(1e3))
    problem = Problem(uneven(0, 4), Cluster((group,), overhead=OVERHEAD), Workload(2))
    times = []
    for first in ("keep", policy):
        stages = (("layer0", "layer1"), ("layer2", "layer3"))
        candidate = Candidate(problem, stages, (Pipeline((0, 1), (0, 1), (0, 1)),), ((first, "keep"),))
        lists = [[op_from_text(name) for name in text.split()] for text in ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")]
        timeline = simulate(assemble(candidate, lists))
        for device, order in enumerate(timeline.orders):
            said = sum(timeline.beside_layers_s[op] for op in order)
            assert said == pytest.approx(timeline.overhead_s[device])
        times.append([{str(x.op): x.end_s - x.start_s for x in device.ops} for device in timeline.devices])
    for device, kept in enumerate(times[0]):
        for op, seconds in kept.items():
            assert times[1][device][op] - seconds == pytest.approx(0.125 if device == 0 and op[1] in "FB" else 0)


@pytest.mark.parametrize("seed", range(10))
def test_intervals_of_a_chain_cost_what_they_do_as_stages(seed: int) -> None:
    """So that cuts are made for what the simulator counts."""
    model = uneven(seed, 6)
    chain = Chain.of(Problem(model, replace(Cluster.uniform(2), overhead=OVERHEAD), Workload(2)))
    cuts = tuple(sorted(random.Random(seed).sample(range(1, 6), 2)))
    costs, ends = StageCosts.of(model, chain.stages(cuts), OVERHEAD), (0, *cuts, 6)
    found = [chain.seconds[a, b] for a, b in zip(ends, ends[1:], strict=False)]
    assert found == pytest.approx((costs.forward_s + costs.backward_s).tolist())


@pytest.mark.parametrize("seed", range(20))
def test_an_overhead_of_nothing_changes_no_bit(seed: int) -> None:
    """And on a device of one's own every op is as much longer as it is said to be."""
    for apart in (False, True):
        candidate = random_candidate(seed, apart)
        plain = replace(candidate.problem.cluster, overhead=None)
        for found in plans_of(candidate, seed, 2, split=True):
            without, nothing = (
                evaluate(found, cluster=replace(plain, overhead=overhead)) for overhead in (None, Overhead())
            )
            assert (without.step_s, without.devices) == (nothing.step_s, nothing.devices)
            timeline = simulate(found)
            bare = simulate(replace(found, problem=replace(found.problem, cluster=plain)))
            jobs = timeline.jobs
            longer = jobs.duration[: len(jobs.ops)] - bare.jobs.duration[: len(jobs.ops)]
            assert longer == pytest.approx(overhead_seconds(timeline.costs, jobs.ops, jobs.speed), abs=1e-9)
            assert sum(timeline.overhead_s) == pytest.approx(sum(timeline.busy_s) - sum(bare.busy_s))


def test_cluster_files_with_and_without_overheads(tmp_path: Path) -> None:
    """Text with units or seconds; what a file leaves out of the table is nothing, without the table nobody has said."""
    text = '[[nodes]]\ndevices = 2\ndevice = "cpu"\n'
    for table, expected in (
        ("", None),
        ("[overhead]\n", Overhead()),
        ('[overhead]\nop = "250ms"\n', Overhead(0.25)),
        ('[overhead]\nop = 0.5\nmessage = "1ms"\n', Overhead(0.5, 1e-3)),
    ):
        (tmp_path / "cluster.toml").write_text(text + table)
        cluster = Cluster.load(tmp_path / "cluster.toml")
        assert cluster.overhead == expected
        assert Cluster.from_dict(cluster.to_dict()) == cluster
        assert cluster.teams(2).overhead == cluster.part([1]).overhead == expected


# ---------------------------------------------------------------- what the search makes of it


def tiny(seed: int, latency_s: float = 2e-4) -> tuple[ModelGraph, Cluster, Workload]:
    """Layers of fractions of a millisecond whose ops cost about as much again."""
    rng = random.Random(seed)

    def seconds() -> float:
        return rng.uniform(1e-4, 6e-4)

    layers = [
        Layer(
            f"l{k}", seconds(), seconds(), seconds(), separable=True, parameter_bytes=4 * rng.randint(1000, 100000),
            stash_bytes=rng.randint(1000, 100000), weight_stash_bytes=1000, output_bytes=rng.randint(1000, 100000),
        )
        for k in range(rng.randint(4, 10))
    ]  # fmt: skip
    kind, overhead = DeviceType("cpu", 1 << 30, 1.0, 4e9), Overhead(rng.uniform(2e-4, 1e-3), rng.uniform(1e-4, 6e-4))
    nodes = (NodeGroup(1, rng.randint(2, 4), kind, Link(1e9, latency_s)),)
    return ModelGraph.chain(layers), Cluster(nodes, overhead=overhead), Workload(rng.randint(2, 8), "sgd")


def searched(model: ModelGraph, cluster: Cluster, workload: Workload) -> Plan:
    """The best plan of a short search."""
    result = plan(model, cluster, workload, time_limit=60, deterministic_limit=0.5, workers=1)
    assert result.plan is not None
    assert result.plan.forecast is not None
    assert result.bound_s <= result.plan.forecast.step_s * (1 + 1e-9)
    return result.plan


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2))])
def test_small_ops_make_few_stages(seed: int) -> None:
    """Fewer than the same problem has without overheads, and what comes out is shorter than that plan with them."""
    model, cluster, workload = tiny(seed)
    unaware = searched(model, replace(cluster, overhead=None), workload)
    aware = searched(model, cluster, workload)
    assert aware.forecast is not None
    assert aware.forecast.step_s <= evaluate(unaware, cluster=cluster).step_s * (1 + 1e-9)
    assert len(aware.stages) <= len(unaware.stages)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_the_search_says_when_one_device_is_faster_than_several(seed: int) -> None:
    """Messages that take longer than all the work: nothing is sent, and no more than one device is told to work."""
    model, cluster, workload = tiny(seed, latency_s=1.0)
    found = searched(model, cluster, workload)
    assert sum(any(order) for order in found.orders) == 1
    assert [note.split(" than ")[0] for note in overhead_notes(found)] == ["one device is faster"]


def test_what_nobody_measured_is_told_where_it_matters() -> None:
    """Not of ops that take seconds, nor where the cluster says that there is none."""
    long = named("1f1b", 2, 4)
    assert overhead_notes(long) == []
    model, cluster, workload = tiny(0)
    candidate = Candidate(
        Problem(model, replace(cluster, overhead=None), workload), *_two_stages(model, workload.micro_batches)
    )
    (found,) = plans_of(candidate, 0, 1, split=False)
    (note,) = overhead_notes(found)
    assert "says nothing of overheads" in note
    said = replace(found, problem=replace(found.problem, cluster=replace(cluster, overhead=Overhead())))
    assert overhead_notes(said) == []


def _two_stages(model: ModelGraph, batches: int) -> tuple[tuple[tuple[str, ...], ...], tuple[Pipeline, ...]]:
    names = tuple(layer.name for layer in model.layers)
    return (names[:2], names[2:]), (Pipeline((0, 1), (0, 1), tuple(range(batches))),)
