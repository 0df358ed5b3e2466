"""Nodes with fewer cores than devices: files, simulated steps, bounds, and what the search makes of them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_plans import Costs, plans_of, random_candidate, random_layers

from contraflow.planner import Cluster, Layer, Link, ModelGraph, Plan, Workload, check, evaluate, plan, simulate
from contraflow.planner.basics import ClusterError
from contraflow.planner.forecast import Jobs, with_seconds
from contraflow.planner.graph import Candidate, Machine, Sharing, costs_of, run_sharing
from contraflow.planner.lower import assemble
from contraflow.planner.plan import COLLECTIVES, COMPUTE, RECEIVES, Kind, Op, Pipeline, Problem
from contraflow.planner.problem import NodeGroup, Overhead
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search import overhead_notes


def with_cores(found: Plan, cores: float | None) -> Plan:
    """The same lists on nodes of so many cores each."""
    nodes = tuple(replace(group, cores=cores) for group in found.problem.cluster.nodes)
    cluster = replace(found.problem.cluster, nodes=nodes)
    return replace(found, problem=replace(found.problem, cluster=cluster))


def test_devices_slow_one_another_down_while_they_compute() -> None:
    """One core, two devices: F of 2 s beside F of 6 s: 4 s at half speed, and the longer's last 4 s at full."""
    layer = Layer("only", forward_s=2.0, backward_input_s=1.0)
    kinds = (DeviceType("fast", 1 << 30, 1.0), DeviceType("slow", 1 << 30, 1 / 3))
    cluster = Cluster((NodeGroup(1, 1, kinds[0]), NodeGroup(1, 1, kinds[1])))
    problem = Problem(ModelGraph.chain([layer]), cluster, Workload(2, "sgd"))
    pipelines = (Pipeline((0,), (0,), (0,)), Pipeline((1,), (1,), (1,)))
    orders = [[Op(Kind.F, 0, m), Op(Kind.B, 0, m)] for m in range(2)]
    jobs = simulate(assemble(Candidate(problem, (("only",),), pipelines), orders)).jobs
    computing = jobs.ops.where(Kind.F)
    node = np.full(len(jobs.alone), -1)
    node[computing] = 0
    first, resource = jobs.occupied
    waits, idle = jobs.precedences, jobs.ops.where(*sorted(RECEIVES | COLLECTIVES))
    edges, occupied = (waits.before, waits.after, waits.lag), (first, resource, int(resource.max(initial=-1)) + 1)
    sharing = Sharing(node, np.ones(len(node)), np.array([1.0]))
    start, took, _, _ = run_sharing(jobs.alone, edges, occupied, idle, sharing)
    assert took[computing].tolist() == pytest.approx([4.0, 8.0])
    assert start[jobs.ops.where(Kind.B)].tolist() == pytest.approx([4.0, 8.0])


@pytest.mark.parametrize("seed", range(12))
def test_shared_cores_lengthen_random_plans_by_what_is_missing(seed: int) -> None:
    """With a core a device nothing changes; with fewer the step is no shorter, and nodes do no more than cores can."""
    for apart in (False, True):
        for found in plans_of(random_candidate(seed, apart), seed, 2, split=True):
            plain = simulate(found)
            most = max(group.devices for group in found.problem.cluster.nodes)
            enough = simulate(with_cores(found, most))
            assert enough.step_s == plain.step_s
            before = plain.step_s
            for cores in (1.5, 1.0, 0.5):
                crowded = with_cores(found, cores)
                timeline = simulate(crowded)
                jobs, computing = timeline.jobs, timeline.jobs.ops.where(*sorted(COMPUTE))
                assert before <= timeline.step_s * (1 + 1e-9)
                assert (jobs.duration >= jobs.alone * (1 - 1e-9)).all()
                nodes = crowded.problem.cluster.node_groups
                home = Machine.of(crowded.problem.cluster).node[jobs.ops.device[computing]]
                done = np.bincount(home, jobs.alone[computing], len(nodes))
                assert all(d <= g.at_once * timeline.step_s * (1 + 1e-9) for d, g in zip(done, nodes, strict=True))
                before = timeline.step_s


def with_busy_links(found: Plan, cores: float, busy: float) -> Plan:
    """The same lists on nodes of so many cores each, of which messages and copies keep so many busy."""
    crowded = with_cores(found, cores)
    nodes = tuple(
        replace(group, link=replace(group.link, cores=busy), host_link=replace(group.host_link, cores=busy))
        for group in crowded.problem.cluster.nodes
    )
    problem = replace(crowded.problem, cluster=replace(crowded.problem.cluster, nodes=nodes))
    return replace(crowded, problem=problem)


def test_a_message_takes_cores_from_those_that_compute() -> None:
    """Two cores: F and B of 1 s after one another on either device; the message between them asks for one core.

    Micro-batch 0 goes 1 s to device 1 while device 0 computes the next: three cores are asked for while device 1 still
    computes something of its own, two otherwise.
    """
    layers = [Layer(name, 1.0, 1.0, output_bytes=10**9) for name in "ab"]
    link = Link(bandwidth=1e9, cores=1.0)
    for cores, slower in ((3.0, False), (2.0, False), (1.5, True)):
        cluster = Cluster((NodeGroup(1, 2, DeviceType("cpu", 1 << 40), link, cores=cores),))
        problem = Problem(ModelGraph.chain(layers), cluster, Workload(2, "sgd"))
        candidate = Candidate(problem, (("a",), ("b",)), (Pipeline((0, 1), (0, 1), (0, 1)),))
        orders = [
            [Op(Kind.F, 0, 0), Op(Kind.F, 0, 1), Op(Kind.B, 0, 0), Op(Kind.B, 0, 1)],
            [Op(Kind.F, 1, 0), Op(Kind.B, 1, 0), Op(Kind.F, 1, 1), Op(Kind.B, 1, 1)],
        ]
        jobs = simulate(assemble(candidate, orders)).jobs
        first = int(jobs.message_job[0])
        # F of micro-batch 1 on device 0 beside the message of micro-batch 0: two cores are asked for
        assert jobs.duration[first] == pytest.approx(2 / 1.5 if slower else 1.0)


@pytest.mark.parametrize("seed", range(12))
def test_messages_and_copies_share_cores(seed: int) -> None:
    """On links of their own with nothing asked for as before; else no shorter, and no way is used twice at a time."""
    for apart in (False, True):
        for found in plans_of(random_candidate(seed, apart), seed, 2, split=True):
            most = max(group.devices for group in found.problem.cluster.nodes)
            plain = simulate(found)
            assert simulate(with_busy_links(found, most, 0.0)).step_s == plain.step_s
            for cores, busy in ((1000.0, 1.0), (most, 0.7), (1.0, 0.7), (1.0, 2.0)):
                crowded = with_busy_links(found, cores, busy)
                jobs = simulate(crowded).jobs
                assert jobs.step_s >= plain.step_s * (1 - 1e-9)
                if cores == 1000.0:
                    assert jobs.step_s == pytest.approx(plain.step_s)
                assert jobs.complete
                assert (jobs.duration >= jobs.alone * (1 - 1e-9)).all()
                _require_one_at_a_time(jobs)
                if jobs.sharing is not None:
                    nodes = len(jobs.sharing.cores)
                    asked = jobs.sharing.node >= 0
                    work = (jobs.alone * jobs.sharing.asks)[asked]
                    done = np.bincount(jobs.sharing.node[asked], work, nodes)
                    assert (done <= jobs.sharing.cores * jobs.step_s * (1 + 1e-9)).all()


def _require_one_at_a_time(jobs: Jobs) -> None:
    """Whoever uses a resource has it alone."""
    first, resource = jobs.occupied
    owner = np.repeat(np.arange(len(first) - 1), np.diff(first))
    for k in np.unique(resource):
        mine = owner[resource == k]
        mine = mine[np.argsort(jobs.start[mine], kind="stable")]
        mine = mine[jobs.duration[mine] > 0]
        assert (jobs.end[mine][:-1] <= jobs.start[mine][1:] * (1 + 1e-9) + 1e-12).all()


def test_a_reduction_keeps_cores_busy() -> None:
    """Two devices sum gradients at the end, 1 s on links that keep a core busy at either end: 2 s on one core."""
    layer = Layer("only", 1.0, 1.0, parameter_bytes=10**9)
    pipelines = (Pipeline((0,), (0,), (0,)), Pipeline((1,), (1,), (1,)))
    orders = [[Op(Kind.F, 0, m), Op(Kind.B, 0, m)] for m in range(2)]
    for cores, seconds in ((2.0, 1.0), (1.0, 2.0)):
        link = Link(bandwidth=1e9, cores=1.0)
        cluster = Cluster((NodeGroup(1, 2, DeviceType("cpu", 1 << 40), link, cores=cores),))
        problem = Problem(ModelGraph.chain([layer]), cluster, Workload(2, "sgd"))
        jobs = simulate(assemble(Candidate(problem, (("only",),), pipelines), orders)).jobs
        (job,) = jobs.reduce_job.values()
        assert jobs.duration[job] == pytest.approx(seconds)


@pytest.mark.parametrize("seed", range(4))
def test_many_costs_share_cores_as_one_does(seed: int) -> None:
    """Rows of seconds, each as its own simulation says."""
    for found in plans_of(random_candidate(seed, False), seed, 1, split=True):
        crowded = with_cores(found, 1.0)
        costs, jobs = costs_of(crowded), simulate(crowded).jobs
        model = crowded.problem.model
        longer = replace(model, layers=tuple(replace(x, forward_s=2 * x.forward_s) for x in model.layers))
        bare = replace(costs, overhead=replace(costs.overhead, op_s=0.0))
        around = costs.around_s
        rows = np.stack([2 * (costs.forward_s - around), bare.backward_input_s, bare.backward_weight_s], axis=1)[None]
        if crowded.problem.cluster.overhead is not None:
            rows[0, :, 1] -= around
            rows[0, :, 2] -= costs.overhead.op_s
        ((_, many),) = with_seconds(crowded, costs, jobs, rows)
        assert many.step_s == pytest.approx(evaluate(crowded, longer).step_s)


def test_files_say_cores(tmp_path: Path) -> None:
    """Any number above 0; parts of a node and teams take their share."""
    text = '[[nodes]]\ndevices = 4\ndevice = "cpu"\n'
    (tmp_path / "cluster.toml").write_text(text + "cores = 2\n")
    cluster = Cluster.load(tmp_path / "cluster.toml")
    assert cluster.nodes[0].cores == 2
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    assert (cluster.part([0, 1]).nodes[0].cores, cluster.teams(2).nodes[0].cores) == (1, 1)
    assert (cluster.whole_speed, cluster.crowded) == (2, True)
    (tmp_path / "cluster.toml").write_text(text)
    assert (Cluster.load(tmp_path / "cluster.toml").nodes[0].cores, cluster.part([0]).crowded) == (None, True)
    busy = text + 'cores = 2\nlink = {bandwidth = "1GB/s", cores = 0.5}\nhost_link = {cores = 1}\n'
    (tmp_path / "cluster.toml").write_text(busy)
    cluster = Cluster.load(tmp_path / "cluster.toml")
    assert (cluster.nodes[0].link.cores, cluster.nodes[0].host_link.cores) == (0.5, 1)
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    for wrong in ("-1", '"two"', "inf"):
        (tmp_path / "cluster.toml").write_text(text + f"link = {{cores = {wrong}}}\n")
        with pytest.raises(ClusterError, match=r"nodes\[0\].link.*cores"):
            Cluster.load(tmp_path / "cluster.toml")
    (tmp_path / "cluster.toml").write_text(text + "[network]\ncores = 1\n")
    with pytest.raises(ClusterError, match=r"network.*cores"):
        Cluster.load(tmp_path / "cluster.toml")
    for wrong in ("0", "-1", '"two"', "inf"):
        (tmp_path / "cluster.toml").write_text(text + f"cores = {wrong}\n")
        with pytest.raises(ClusterError, match=r"nodes\[0\].*cores"):
            Cluster.load(tmp_path / "cluster.toml")


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_no_plan_beats_the_cores(seed: int) -> None:
    """A bound that counts cores, below a plan that is no longer than one device alone and passes the checker."""
    rng = random.Random(seed)
    model = ModelGraph.chain(random_layers(rng, 6, Costs(halves=1)))
    nodes = (NodeGroup(1, 4, DeviceType("cpu", 1 << 40), Link(1e12, 1e-4), cores=rng.choice([1, 2, 3])),)
    cluster, workload = Cluster(nodes), Workload(8, "sgd")
    result = plan(model, cluster, workload, time_limit=60, deterministic_limit=0.5, workers=1)
    assert result.plan is not None
    assert result.plan.forecast is not None
    assert not check(result.plan)
    work = 8 * sum(layer.forward_s + layer.backward_s for layer in model.layers)
    step_s = result.plan.forecast.step_s
    assert work / cluster.whole_speed * (1 - 1e-9) <= result.bound_s <= step_s * (1 + 1e-9)
    assert step_s <= work * (1 + 1e-5)
    assert step_s == pytest.approx(evaluate(result.plan).step_s)


def test_devices_without_cores_are_left_out() -> None:
    """Where messages and ops cost something, two cores are better used by two devices than by four, and it is said."""
    model = ModelGraph.chain([Layer(f"l{k}", 1.0, 2.0, parameter_bytes=10**8) for k in range(4)])
    nodes = (NodeGroup(1, 4, DeviceType("cpu", 1 << 40), Link(1e9, 0.1), cores=2),)
    crowded = Cluster(nodes, overhead=Overhead(0.1, 0.1))
    two = replace(crowded, nodes=(replace(nodes[0], devices=2, cores=None),))
    found = [
        plan(model, cluster, Workload(8, "sgd"), time_limit=60, deterministic_limit=0.2, workers=1).plan
        for cluster in (crowded, two)
    ]
    steps = [made.forecast.step_s for made in found if made is not None and made.forecast is not None]
    assert steps[0] == pytest.approx(steps[1])
    assert found[0] is not None
    assert sum(map(bool, found[0].orders)) == 2
    assert any("2 of the 4 devices are used" in line for line in overhead_notes(found[0]))
