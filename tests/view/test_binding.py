"""What binds: every figure of every sentence is a step that is simulated again here, or a wait that memory ends."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from instances import named, one_faster
from pictures import MIB, chimera, one_way, pictured
from random_plans import plans_of, random_candidate

from contraflow.planner.basics import format_seconds, percent
from contraflow.planner.forecast import Cause, idle_spans
from contraflow.planner.plan import Plan
from contraflow.planner.problem import Cluster, Layer, Link, ModelGraph, NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search import facts
from contraflow.planner.simulate import evaluate, simulate
from contraflow.planner.view.critical import CriticalPath
from contraflow.planner.view.reasons import TOLD, binding, gap_sentence

GAIN = re.compile(
    r"(all links|all host links|all devices|(?:one of )?devices? ([\d, ]+)(?: and \d+ more)? alone) ([\d.]+ %)"
)
WAIT = re.compile(r"([\d.]+ %) of the step on device (\d+)")


def sentence(plan: Plan) -> str:
    return binding(facts(plan), len(plan.orders))


def quicker(link: Link) -> Link:
    return Link(link.bandwidth * 11 / 10, link.latency_s / (11 / 10))


def remade(cluster: Cluster, what: str, device: str) -> Cluster:
    """The cluster of which a sentence speaks, made from the words alone."""
    if device:
        return one_faster(cluster, int(device))
    nodes = cluster.nodes
    if what == "all devices":
        faster = tuple(replace(x, device=replace(x.device, speed=x.device.speed * 11 / 10)) for x in nodes)
        return replace(cluster, nodes=faster)
    if what == "all host links":
        return replace(cluster, nodes=tuple(replace(x, host_link=quicker(x.host_link)) for x in nodes))
    inside = tuple(replace(x, link=quicker(x.link)) for x in nodes)
    return replace(cluster, nodes=inside, network=quicker(cluster.network))


def confirm(plan: Plan) -> int:
    """Simulates again whatever the sentence says of the plan; returns how many figures it has."""
    said, step_s = sentence(plan), simulate(plan).step_s
    gains, cluster = GAIN.findall(said), plan.problem.cluster
    for what, devices, share in gains:
        for device in devices.split(", "):
            again = evaluate(plan, cluster=remade(cluster, what, device)).step_s
            assert percent(1 - again / step_s) == share, said
    alone = [evaluate(plan, cluster=one_faster(cluster, d)).step_s for d in range(len(plan.orders))]
    if "no device alone" in said:
        assert min(alone) > (1 - TOLD) * step_s, said
    if "no faster device or link" in said:
        everything = remade(remade(remade(cluster, "all devices", ""), "all links", ""), "all host links", "")
        assert evaluate(plan, cluster=everything).step_s > (1 - 3 * TOLD) * step_s, said
    waits = WAIT.findall(said)
    for share, device in waits:
        limit = plan.problem.workload.memory_limit(cluster.devices[int(device)].kind.memory_bytes)
        assert percent(waiting(plan, int(device), limit) / step_s) == share, said
        assert waiting(plan, int(device), 1 << 60) == 0, said
    return len(gains) + len(waits)


def waiting(plan: Plan, device: int, limit: int) -> float:
    """Seconds for which a forward waits for memory on a device that may hold so many bytes."""
    spans = idle_spans(plan, simulate(plan), [limit] * len(plan.orders))
    return sum(x.end_s - x.start_s for x in spans if (x.device, x.cause) == (device, Cause.MEMORY))


@pytest.mark.parametrize("name", list(pictured()))
def test_every_figure_of_a_sentence_is_simulated_again(name: str) -> None:
    assert confirm(pictured()[name]) > 0


@pytest.mark.parametrize("seed", range(12))
def test_every_figure_of_a_random_plans_sentence_is_simulated_again(seed: int) -> None:
    for plan in plans_of(random_candidate(seed, apart=seed % 2 == 0), seed, 2, split=seed % 3 == 0):
        confirm(plan)


def test_of_tied_critical_paths_none_is_said_to_bind() -> None:
    """Chimera: the path that is drawn has a third of the step on one device, and a tied one goes round that device."""
    plan = named("chimera", 2, 4)
    timeline = simulate(plan)
    jobs, seconds = timeline.jobs, [0.0, 0.0]
    for job in CriticalPath.of(timeline).jobs:
        seconds[int(jobs.ops.device[job])] += float(jobs.duration[job])
    assert max(seconds) > timeline.step_s / 3
    assert sentence(plan) == ("what 10 % more speed takes off the step: all devices 9.1 %; no device alone shortens it")
    assert confirm(plan) == 1


def test_a_device_that_never_rests_binds_by_its_load() -> None:
    """Alone it is all devices; of two that compute alike in turns each counts for its half."""
    assert sentence(one_way(1, 4)) == "what 10 % more speed takes off the step: all devices 9.1 %"
    assert confirm(one_way(1, 4)) == 1


def test_a_slow_link_binds() -> None:
    """Ten seconds for each of four activations of 10 bytes, and as many back, against three of work a micro-batch."""
    model = ModelGraph.chain([Layer("a", 1, 2, separable=False, output_bytes=10), Layer("b", 1, 2, separable=False)])
    plan = named("gpipe", 2, 4, model=model, cluster=Cluster.uniform(2, link=Link(1.0)))
    assert sentence(plan).startswith("what 10 % more speed takes off the step: all links 8.5 %")
    assert confirm(plan) > 1


def test_a_chain_across_all_devices_names_each_by_its_part() -> None:
    """One micro-batch visits four devices and returns: each computes for a quarter of the step."""
    assert sentence(one_way(4, 1)) == (
        "what 10 % more speed takes off the step: all devices 9.1 %, one of devices 0, 1, 2, 3 alone 2.3 %"
    )


def test_memory_binds_where_a_ready_forward_does_not_fit() -> None:
    """1F1B on four devices: with room for four stashes device 0 waits for memory, with more for its turn."""
    assert "waits for memory for" in sentence(one_way(4, 8, memory_bytes=6 * MIB))
    assert "waits for memory" not in sentence(one_way(4, 8))
    assert confirm(one_way(4, 8, memory_bytes=6 * MIB)) > 2
    assert confirm(chimera()) > 0


def test_of_several_sorts_of_nodes_the_parts_are_named_without_what_a_terminal_acts_upon() -> None:
    """A device's name of 200 letters is cut off, and control characters are replaced."""
    link, name = Link(1e9), "\x1b[2J<script>" + "x" * 200
    groups = tuple(NodeGroup(1, 1, DeviceType(kind, 1 << 40), link) for kind in (name, "b"))
    said = sentence(named("1f1b", 2, 4, cluster=Cluster(groups)))
    assert "\x1b" not in said
    assert "…" in said
    assert max(map(len, said.split(", "))) < 160


def test_the_gap_is_spoken_of_where_there_is_one() -> None:
    """Not where the step is the bound, nor where there is no bound."""
    plan = chimera()
    assert plan.forecast is not None
    step_s = plan.forecast.step_s
    said = [
        gap_sentence(facts(replace(plan, forecast=replace(plan.forecast, bound_s=bound_s)), faster=False))
        for bound_s in (0.7 * step_s, step_s, None)
    ]
    assert said[0].startswith(f"{format_seconds(0.3 * step_s)} above the bound, on device ")
    assert said[1:] == ["", ""]
