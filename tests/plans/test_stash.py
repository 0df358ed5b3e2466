"""Stashes that leave their device: times and memory of offload, ship and recompute, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree

import pytest
from instances import one_layer_a_stage
from timelines import device_curve, host_curve, spans

from contraflow.planner.forecast.timeline import Timeline
from contraflow.planner.graph import Candidate, messages, regroup, ship_target
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Problem
from contraflow.planner.plan_file import op_from_text
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.simulate import simulate
from contraflow.planner.view import draw_timeline, text
from contraflow.planner.view.text import WIDTH

HOST = Link(5.0, 1.0)  # 10 bytes in 2 s, a second of latency


def problem(devices: int, micro_batches: int, host: Link = HOST, shared_by: int = 1, **costs: int) -> Problem:
    """One node; one layer a device: F and B of 2 s, a stash of 10 bytes, boundary tensors of 0 bytes at no cost."""
    sizes = {"stash_bytes": 10, "weight_stash_bytes": 10} | costs
    model = ModelGraph.chain([Layer(f"l{k}", 2, 2, separable=False, **sizes) for k in range(devices)])
    kind = DeviceType("toy", 10**6)
    group = NodeGroup(1, devices, kind, Link(5.0, 1.0), host_link=host, host_link_shared_by=shared_by)
    return Problem(model, Cluster((group,)), Workload(micro_batches))


def solo(text: str, policies: list[str], **options: object) -> Timeline:
    """One device with one stage and this list of compute ops; the policy of each micro-batch."""
    asked = problem(1, len(policies), **options)  # type: ignore[arg-type]
    route = Pipeline((0,), (0,), tuple(range(len(policies))))
    rows = {m: (policy,) for m, policy in enumerate(policies)}
    candidate = regroup(asked, one_layer_a_stage(asked.model), [route], rows)
    return simulate(assemble(candidate, [ops(text)]))


def ops(text: str) -> list[Op]:
    """Ops from words like F0, OFFLOAD0 or SEND_S0>1, all of stage 0."""
    return [op_from_text(f"0{word}") for word in text.split()]


# ------------------------------------------------------------------ offload


def test_one_offloaded_stash_by_hand() -> None:
    """The copy leaves 2-4 and is at the host at 5, so it is back at 7, a latency later B0 can run."""
    timeline = solo("F0 OFFLOAD0 FETCH0 F1 B1 B0", ["offload", "keep"])
    assert spans(timeline) == {
        "F0": (0, 2), "OFFLOAD0": (2, 4), "F1": (2, 4), "B1": (4, 6), "FETCH0": (5, 7), "B0": (8, 10),
    }  # fmt: skip
    assert timeline.step_s == 10
    # F0, F1 | the copy has left | FETCH0 begins | B1 | B0
    assert device_curve(timeline) == [(0, 10), (2, 20), (4, 10), (5, 20), (6, 10), (10, 0)]
    assert host_curve(timeline) == [(0, 0), (2, 10), (7, 0)]
    assert timeline.host_memory[0].peak_bytes == 10
    assert timeline.devices[0].memory.peak_parts == (("stashes", 20),)
    assert [t.op.kind for t in timeline.devices[0].ops] == [Kind.F, Kind.F, Kind.B, Kind.B, Kind.STEP]


def test_a_fetch_is_posted_as_late_as_its_backward_allows() -> None:
    """B0 starts at 12: the fetch takes 2 s and a latency, so 9 is late enough, and it is posted when B3 has ended."""
    timeline = solo("F0 F1 F2 B2 B1 B0", ["offload", "keep", "keep"])
    order = [str(op)[1:] for op in timeline.orders[0]]
    assert order == ["F0", "OFFLOAD0", "F1", "F2", "FETCH0", "B2", "B1", "B0", "STEP"]
    assert spans(timeline)["FETCH0"] == (6, 8)
    assert timeline.step_s == 12


def test_fetch_waits_for_the_offloads_listed_before_it_and_no_others() -> None:
    """OFFLOAD1 occupies 4-6 (posted when F1 ended). Listed behind it, FETCH0 waits; before it, it need not."""
    both = ["offload", "offload"]
    behind = solo("F0 OFFLOAD0 F1 OFFLOAD1 FETCH0 B0 FETCH1 B1", both, host=Link(2.5, 0.0))
    assert spans(behind)["OFFLOAD0"] == (2, 6)
    assert spans(behind)["OFFLOAD1"] == (6, 10)
    assert spans(behind)["FETCH0"] == (10, 14)
    before = solo("F0 OFFLOAD0 F1 FETCH0 OFFLOAD1 B0 FETCH1 B1", both, host=Link(2.5, 0.0))
    assert spans(before)["FETCH0"] == (6, 10)
    assert spans(before)["OFFLOAD1"] == (6, 10)  # the two directions do not compete


def test_what_leaves_at_once_behind_a_fetch_makes_no_room_for_it() -> None:
    """Copies that cost nothing: OFFLOAD1 leaves when FETCH0 arrives, and only what is listed behind it may use that."""
    both, at_once = ["offload", "offload"], Link()
    before = solo("F0 OFFLOAD0 F1 FETCH0 OFFLOAD1 B0 FETCH1 B1", both, host=at_once)
    behind = solo("F0 OFFLOAD0 F1 OFFLOAD1 FETCH0 B0 FETCH1 B1", both, host=at_once)
    peaks = [timeline.devices[0].memory.peak_bytes for timeline in (before, behind)]
    assert spans(before)["FETCH0"] == spans(before)["OFFLOAD1"] == (4, 4)
    assert peaks == [20, 10]


def test_free_makes_a_forward_wait_for_the_memory() -> None:
    """With FREE0, F1 starts when OFFLOAD0 has ended, and one stash is the peak of the forwards."""
    timeline = solo("F0 OFFLOAD0 FREE0 F1 B1 FETCH0 B0", ["offload", "keep"])
    assert spans(timeline) == {
        "F0": (0, 2), "OFFLOAD0": (2, 4), "F1": (4, 6), "B1": (6, 8), "FETCH0": (8, 10), "B0": (11, 13),
    }  # fmt: skip
    # at 4 OFFLOAD0 makes room for F1, at 8 B1 makes room for FETCH0
    assert device_curve(timeline) == [(0, 10), (13, 0)]
    assert timeline.devices[0].memory.peak_bytes == 10
    assert Kind.FREE not in {t.op.kind for t in timeline.devices[0].ops}


def test_what_is_posted_after_a_free_waits_too() -> None:
    timeline = solo("F0 OFFLOAD0 F1 FREE0 OFFLOAD1 FETCH1 B1 FETCH0 B0", ["offload"] * 2, host=Link(1.0, 0.0))
    assert spans(timeline)["OFFLOAD0"] == (2, 12)
    assert spans(timeline)["OFFLOAD1"] == (12, 22)


def two(rows: Mapping[int, tuple[str, ...]], orders: list[str], **options: object) -> Timeline:
    """Two devices, two stages; words name stage, kind and micro-batch."""
    asked = problem(2, len(rows), **options)  # type: ignore[arg-type]
    route = Pipeline((0, 1), (0, 1), tuple(range(len(rows))))
    candidate = regroup(asked, one_layer_a_stage(asked.model), [route], rows)
    return simulate(assemble(candidate, [[op_from_text(word) for word in text.split()] for text in orders]))


def test_devices_on_one_host_link_take_turns() -> None:
    """Device 0's copy takes 2-12; device 1's stash is there at 4 and waits for the link where it is shared."""
    orders = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    rows = {0: ("offload", "offload"), 1: ("keep", "keep")}
    for shared_by, start in ((2, 12), (1, 5)):
        timeline = two(rows, orders, shared_by=shared_by, host=Link(1.0, 0.0))
        copied = {str(t.op): (t.start_s, t.end_s) for line in timeline.copies for t in line}
        assert copied == {
            "0OFFLOAD0": (2, 12), "1OFFLOAD0": (start, start + 10),
            "0FETCH0": (12, 22), "1FETCH0": (start + 10, start + 20),
        }  # fmt: skip


def test_fetches_on_one_host_link_take_turns() -> None:
    """Both fetches are ready at 12 and later; listed first come, first served, the later one waits for 10 s."""
    orders = ["0F0 0OFFLOAD0 0F1 0FREE0 0FETCH0 0B0 0B1", "1F0 1OFFLOAD0 1FREE0 1FETCH0 1B0 1F1 1B1"]
    rows = {0: ("offload", "offload"), 1: ("keep", "keep")}
    timeline = two(rows, orders, shared_by=2, host=Link(5.0, 6.0))
    copied = {str(t.op): (t.start_s, t.end_s) for line in timeline.copies for t in line}
    # at the host at 10 and 13 (device 1's forward runs 3-5, its copy 5-7)
    assert copied == {"0OFFLOAD0": (2, 4), "1OFFLOAD0": (5, 7), "0FETCH0": (10, 12), "1FETCH0": (13, 15)}
    timeline = two(rows, orders, shared_by=2, host=Link(1.0, 6.0))
    copied = {str(t.op): (t.start_s, t.end_s) for line in timeline.copies for t in line}
    assert copied == {"0OFFLOAD0": (2, 12), "1OFFLOAD0": (12, 22), "0FETCH0": (18, 28), "1FETCH0": (28, 38)}


def test_hosts_hold_the_stashes_of_all_their_devices() -> None:
    """0..12 and 5..15 to the host, back from there one after the other: 20 bytes while both are there."""
    rows = {0: ("offload", "offload"), 1: ("keep", "keep")}
    timeline = two(rows, ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], host=Link(1.0, 0.0))
    assert host_curve(timeline)[:3] == [(0, 0), (2, 10), (5, 20)]
    assert host_curve(timeline)[-1][1] == 0
    assert timeline.host_memory[0].peak_bytes == 20
    assert timeline.host_memory[0].peak_at_s == 5


def test_each_node_has_its_own_host() -> None:
    group = NodeGroup(2, 1, DeviceType("toy", 10**6), host_link=HOST, host_memory_bytes=10)
    asked = problem(2, 1)
    asked = Problem(asked.model, Cluster((group,), Link(5.0, 1.0)), asked.workload)
    route = Pipeline((0, 1), (0, 1), (0,))
    candidate = Candidate(asked, one_layer_a_stage(asked.model), (route,), (("offload", "keep"),))
    timeline = simulate(assemble(candidate, [ops("F0 B0"), [Op(Kind.F, 1, 0), Op(Kind.B, 1, 0)]]))
    assert [memory.peak_bytes for memory in timeline.host_memory] == [10, 0]


# ------------------------------------------------------------------ ship


def shipped(text: str) -> Timeline:
    """One layer on device 0, which ships micro-batch 0's stash to device 1, where nothing else runs."""
    asked = problem(2, 2)
    model = ModelGraph.chain([asked.model.layers[0]])
    asked = Problem(model, asked.cluster, asked.workload)
    rows = {0: ("ship>1",), 1: ("keep",)}
    candidate = regroup(asked, one_layer_a_stage(model), [Pipeline((0,), (0,), (0, 1))], rows)
    return simulate(assemble(candidate, [ops(text), []]))


def test_a_shipped_stash_by_hand() -> None:
    """Device 1 runs nothing else: 2 s on the link and a second of latency each way."""
    timeline = shipped("F0 F1 B1 B0")
    assert [[str(op) for op in order] for order in timeline.orders] == [
        ["0F0", "0SEND_S0>1", "0F1", "0RECV_S0<1", "0B1", "0B0", "0STEP"],
        ["0RECV_S0<0", "0SEND_S0>0"],
    ]
    assert [(m.start_s, m.end_s, m.arrival_s) for m in timeline.messages] == [(2, 4, 5), (5, 7, 8)]
    assert spans(timeline) == {"F0": (0, 2), "F1": (2, 4), "B1": (4, 6), "B0": (8, 10)}
    # F0, F1, left at 4 and at once a buffer for its return, B1, B0
    assert device_curve(timeline) == [(0, 10), (2, 20), (6, 10), (10, 0)]
    assert device_curve(timeline, 1) == [(0, 10), (7, 0)]
    assert timeline.devices[1].memory.peak_parts == (("shipped stashes", 10),)
    assert timeline.host_memory[0].peak_bytes == 0


def test_free_waits_for_a_stash_that_is_shipped_off() -> None:
    timeline = shipped("F0 SEND_S0>1 FREE0 F1 B1 RECV_S0<1 B0")
    assert spans(timeline) == {"F0": (0, 2), "F1": (4, 6), "B1": (6, 8), "B0": (11, 13)}
    assert timeline.devices[0].memory.peak_bytes == 10
    assert [str(op) for op in timeline.orders[0]] == [
        "0F0", "0SEND_S0>1", "0FREE0", "0F1", "0B1", "0RECV_S0<1", "0B0", "0STEP",
    ]  # fmt: skip


def test_shipped_stashes_are_messages_in_the_order_of_their_pair() -> None:
    """0F0's activation and stash go to device 1 one after the other; the stash is 10 bytes, 2 s."""
    rows = {0: ("ship>1", "keep")}
    timeline = two(rows, ["0F0 0B0", "1F0 1B0"], output_bytes=5)
    sent = [(str(m.op), m.start_s, m.end_s) for m in timeline.messages]
    assert sent == [
        ("0SEND_F0>1", 2, 3), ("0SEND_S0>1", 3, 5), ("0SEND_S0>0", 6, 8), ("1SEND_B0>0", 8, 9),
    ]  # fmt: skip
    costs = timeline.costs
    plan = assemble(
        regroup(problem(2, 1, output_bytes=5), (("l0",), ("l1",)), [Pipeline((0, 1), (0, 1), (0,))], rows),
        [ops("F0 B0"), [Op(Kind.F, 1, 0), Op(Kind.B, 1, 0)]],
    )
    assert {(str(m.send), m.bytes) for m in messages(plan, costs)} == {
        ("0SEND_F0>1", 5), ("1SEND_B0>0", 5), ("0SEND_S0>1", 10), ("0SEND_S0>0", 10),
    }  # fmt: skip


# ------------------------------------------------------------------ recompute


def test_recompute_keeps_the_declared_input_until_the_stash_is_made_again() -> None:
    """Stage 1 declares 7 bytes of input and receives 4: all 7 stay from F to R."""
    layers = [
        Layer("l0", 2, 2, separable=False, stash_bytes=10, weight_stash_bytes=10, output_bytes=4, input_bytes=3),
        Layer("l1", 2, 2, separable=False, stash_bytes=10, weight_stash_bytes=10, input_bytes=7),
    ]
    model = ModelGraph.chain(layers)
    asked = Problem(model, Cluster.uniform(1, link=Link()), Workload(1))
    stages = (("l0",), ("l1",))
    candidate = Candidate(asked, stages, (Pipeline((0, 0), (0, 0), (0,)),), (("recompute", "recompute"),))
    order = [op_from_text(word) for word in ("0F0", "1F0", "1R0", "1B0", "0R0", "0B0")]
    timeline = simulate(assemble(candidate, [order]))
    # 0F0 holds its 3 bytes and makes 4; 1F0 adds 3; 1R0's stash takes the place of 7; 1B0 makes 0B0's gradient
    # (4), which lives to the end; 0R0's stash takes the place of 3
    assert device_curve(timeline) == [(0, 7), (2, 10), (4, 13), (6, 17), (8, 14), (12, 0)]


# ------------------------------------------------------------------ policies and pipelines


def test_policies() -> None:
    assert ship_target("ship>12") == 12
    assert ship_target("offload") is None


def test_regroup_splits_and_joins_pipelines() -> None:
    asked = problem(2, 4)
    stages = one_layer_a_stage(asked.model)
    down, up = Pipeline((0, 1), (0, 1), (0, 2)), Pipeline((1, 0), (1, 0), (1, 3))
    away = ("offload", "keep")
    split = regroup(asked, stages, [down, up], {2: away, 3: away})
    assert [(p.forward, p.micro_batches) for p in split.pipelines] == [
        ((0, 1), (0,)), ((0, 1), (2,)), ((1, 0), (1,)), ((1, 0), (3,)),
    ]  # fmt: skip
    assert split.stash == (("keep", "keep"), away, ("keep", "keep"), away)
    joined = regroup(asked, stages, split.pipelines, dict.fromkeys(range(4), away))
    assert [p.micro_batches for p in joined.pipelines] == [(0, 2), (1, 3)]
    assert joined.stash == (away, away)


@pytest.mark.parametrize("text", ["2OFFLOAD3", "2FETCH3", "2FREE3", "2SEND_S3>1", "2RECV_S3<1"])
def test_ops_as_text(text: str) -> None:
    assert str(op_from_text(text)) == text


def test_copies_are_drawn() -> None:
    """Under their device's row in the terminal, and as thin bars in the SVG."""
    asked = problem(1, 2)
    rows = {0: ("offload",), 1: ("keep",)}
    route = Pipeline((0,), (0,), (0, 1))
    plan = assemble(regroup(asked, one_layer_a_stage(asked.model), [route], rows), [ops("F0 F1 B1 B0")])
    assert plan.forecast is not None
    timeline = simulate(plan)
    drawn = [line for line in text.render(plan, timeline, plan.forecast).splitlines() if "|" in line]
    assert [line.split("|")[0].strip() for line in drawn] == ["d0", "d0>", "d0<", "m0", "h0"]
    cells = (WIDTH - len("d0> ||")) // 5  # five times 2 s
    assert drawn[1].split("|")[1].strip() == "0".ljust(cells, ">")
    root = ElementTree.fromstring(draw_timeline.render(plan, timeline, plan.forecast))
    titles = [found.text or "" for found in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith(("OFFLOAD stage 0, micro-batch 0", "FETCH")) for title in titles) == 2
