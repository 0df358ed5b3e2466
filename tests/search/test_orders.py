"""The order search's compiled core against the simulator: times, memory, starts, annealing, repetition of windows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from instances import one_layer_a_stage, step_of
from random_plans import random_candidate, random_model

from contraflow.planner.check import check
from contraflow.planner.graph import Candidate, static_bytes
from contraflow.planner.lower.plans import assemble
from contraflow.planner.plan import Kind, Op, Pipeline, Plan, Problem
from contraflow.planner.problem.cluster import Cluster, Link, NodeGroup
from contraflow.planner.problem.model_graph import Layer, ModelGraph
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.problem.workload import Workload
from contraflow.planner.schedules import build as schedule
from contraflow.planner.search.common.effort import ANNEALING
from contraflow.planner.search.common.shapes import resized
from contraflow.planner.search.orders import anneal, follow, kernels, local
from contraflow.planner.search.orders.arm import Arm
from contraflow.planner.search.orders.arrays import mirror, scratch
from contraflow.planner.search.orders.kernels import NEVER, Arrays, Ints
from contraflow.planner.search.orders.stretch import Window, stretch, windows
from contraflow.planner.search.orders.translate import from_ops

GO = np.zeros(1, dtype=np.int64)
PLENTY = 1 << 30


def candidate_of(seed: int, policy: str, silent: bool, mirrored: bool = False) -> Candidate:
    """A random candidate without parameters on the devices of one node.

    policy: what happens to some of the stashes. silent: messages have no bytes; else they also occupy links. mirrored:
    two pipelines that are mirror images with equal shares.
    """
    rng = random.Random(seed)
    devices = 2 * rng.randint(1, 2) if mirrored else rng.randint(1, 4)
    line = tuple(range(devices))
    back = line[::-1]
    two = [[line, back], [line + back, back + line]]
    routes = rng.choice(two if mirrored else [*two, [line], [line + back], [line * 2], [line + back + line]])
    count = len(routes[0]) + rng.choice([0, 0, 2])
    model = random_model(rng, count)
    bare = [replace(x, parameter_bytes=0, buffer_bytes=0) for x in model.layers]
    quiet = [replace(x, output_bytes=0, input_bytes=rng.choice([None, 1])) for x in bare] if silent else bare
    model = replace(model, layers=tuple(quiet))
    cuts = [0, *sorted(rng.sample(range(1, count), len(routes[0]) - 1)), count]
    stages = tuple(tuple(x.name for x in quiet[a:b]) for a, b in zip(cuts, cuts[1:], strict=False))
    batches = len(routes) * rng.randint(1, 4)
    owner = [rng.randrange(len(routes)) for _ in range(batches)]
    owner = [m % len(routes) for m in range(batches)] if mirrored or len(set(owner)) < len(routes) else owner
    pipelines = tuple(Pipeline(r, r, tuple(m for m in range(batches) if owner[m] == k)) for k, r in enumerate(routes))
    row = tuple(rng.choice(["keep", policy]) for _ in routes[0])
    rows = tuple(row if mirrored else tuple(rng.choice(["keep", policy]) for _ in r) for r in routes)
    if policy == "ship":
        away = [(d + 1) % devices for d in line]
        rows = tuple(
            tuple(f"ship>{away[d]}" if p == "ship" and away[d] != d else "keep" for d, p in zip(r, row, strict=True))
            for r, row in zip(routes, rows, strict=True)
        )
    link = rng.choice([Link(), Link(latency_s=0.3), Link(4.0, 0.1)])
    host = rng.choice([Link(8.0), Link(8.0, 0.1), Link(3.0)])
    cluster = Cluster((NodeGroup(1, devices, DeviceType("x", PLENTY), link, None, host),))
    return Candidate(Problem(model, cluster, Workload(batches)), stages, pipelines, rows)


def limited(candidate: Candidate, count: int) -> Candidate:
    """The candidate with a memory limit of `count` bytes a device."""
    workload = replace(candidate.problem.workload, memory_limit_bytes=count)
    return replace(candidate, problem=replace(candidate.problem, workload=workload))


def prefix_peaks(a: Arrays, order: Ints) -> list[int]:
    """Most bytes of every device by the arrays: what is live before an op, and what the op needs."""
    peaks = []
    for low, high in zip(a.first[:-1], a.first[1:], strict=True):
        held = np.concatenate([[0], np.cumsum(a.delta[order[low:high]])])
        peaks.append(int((held[:-1] + a.need[order[low:high]]).max(initial=0)))
    return peaks


def run(a: Arrays, order: Ints, work: kernels.Work | None = None) -> float:
    """Makespan of a complete order."""
    work = scratch(a) if work is None else work
    return float(kernels.run(a, work, order, a.first[:-1].copy(), a.first[1:].copy(), -1.0, NEVER))


def arms_for(seed: int, policy: str, silent: bool, folded: bool = False) -> list[Arm]:
    """An arm with a greedy order, and with what a few hot moves make of it; memory tight where stashes leave."""
    candidate = candidate_of(seed, policy, silent, folded)
    split = seed % 4 != 0
    arm = Arm(candidate, split, folded, seed)
    arm.start(8, 0.0, GO)
    assert arm.order is not None, seed
    if policy == "offload":
        most = max(prefix_peaks(arm.arrays, arm.order))
        arm = Arm(limited(candidate, int(most * random.Random(seed).choice([0.5, 0.7, 0.9]))), split, folded, seed)
        arm.start(8, 0.0, GO)
        if arm.order is None:
            return []
    moved = replace(arm)
    moved.order, moved.seconds = arm.order, 2 * arm.seconds  # any order that runs
    moved.improve(60, 0.0, GO)
    return [arm] if moved.order is arm.order else [arm, moved]


def agree(arm: Arm, silent: bool) -> Plan:
    """Asserts what the arrays say of an arm's order against the simulated complete plan."""
    assert arm.order is not None
    plan = assemble(arm.candidate, arm.ops_by_device())
    assert plan.forecast is not None
    assert step_of(plan) == pytest.approx(arm.seconds, rel=1e-9)
    mine = prefix_peaks(arm.arrays, arm.order)
    if arm.folded:
        twin = mirror(arm.candidate)
        assert twin is not None
        mine = [mine[min(d, twin[d])] for d in range(len(mine))]
    for peak, device in zip(mine, plan.forecast.devices, strict=True):
        assert peak >= device.peak_bytes - dict(device.peak_parts).get("messages", 0)
        assert peak >= device.peak_bytes or not silent
    if silent:
        assert check(plan) == []
    return plan


# ------------------------------------------------------------------ the arrays against the simulator


@pytest.mark.parametrize("policy", ["keep", "recompute", "offload"])
def test_orders_take_what_the_simulator_says(policy: str) -> None:
    """Exactly: one pipeline and two, unequal stages, latencies, occupied links, halves, policies.

    The kernels know less than the simulator where reductions, network cards between nodes, or copies of devices that
    share a host link queue up.
    """
    compared = 0
    for seed in range(60):
        for arm in arms_for(seed, policy, silent=seed % 2 == 0):
            agree(arm, silent=seed % 2 == 0)
            compared += 1
    assert compared > 50


def test_orders_that_ship_take_about_what_the_simulator_says() -> None:
    """Lowering places the messages that bring stashes home: mostly as the arrays have them, or so that less waits."""
    same, shorter, longer, fitting = 0, 0, 0, 0
    for seed in range(80):
        arm = Arm(candidate_of(seed, "ship", seed % 2 == 0), seed % 4 != 0, False, seed)
        arm.start(8, 0.0, GO)
        assert arm.order is not None
        if not arm.arrays.away.any():
            continue
        limit = int(random.Random(seed).choice([0.7, 0.9, 1.0]) * max(prefix_peaks(arm.arrays, arm.order)))
        tight = Arm(limited(arm.candidate, limit), arm.split, False, seed)
        tight.start(8, 0.0, GO)
        for one in (arm, tight):
            if one.order is None:
                continue
            one.improve(60, 0.0, GO)
            plan = assemble(one.candidate, one.ops_by_device())
            ratio = step_of(plan) / one.seconds
            assert ratio < 1.2, seed
            same += abs(ratio - 1) < 1e-9
            shorter += ratio <= 1 - 1e-9
            longer += ratio >= 1 + 1e-9
            fitting += check(plan) == []
    total = same + shorter + longer
    assert total > 60
    assert same > 0.6 * total
    assert longer < 0.1 * total
    assert fitting > 0.9 * total


def test_a_shipped_stash_takes_room_of_both_devices() -> None:
    """The second device holds the guests of the first beside its own: four stashes do not fit in three places."""
    layers = [Layer(f"l{k}", 1.0, 1.0, separable=False, stash_bytes=10) for k in range(2)]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(2, PLENTY, Link(10.0)), Workload(4))
    line = Pipeline((0, 1), (0, 1), (0, 1, 2, 3))
    given = Candidate(problem, (("l0",), ("l1",)), (line,), (("ship>1", "keep"),))
    orders = [[Op(Kind.F, 0, m) for m in range(4)] + [Op(Kind.B, 0, m) for m in range(4)]]
    orders.append([Op(kind, 1, m) for m in range(4) for kind in (Kind.F, Kind.B)])
    for limit, fits in ((50, True), (20, False)):
        arm = Arm(limited(given, limit), False, False, 0)
        arm.seed_with(orders)
        assert (arm.order is not None) == fits, limit


@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_memory_is_exact_without_messages(policy: str) -> None:
    """Peaks are the simulator's; an order runs at just this limit, and not with a byte less on any device."""
    for seed in range(0, 60, 2):
        arm = arms_for(seed, policy, silent=True)[-1]
        assert arm.order is not None
        peaks = prefix_peaks(arm.arrays, arm.order)
        forecast = agree(arm, silent=True).forecast
        assert forecast is not None
        if not any(layer.input_bytes for layer in arm.candidate.problem.model.layers[:1]):
            assert tuple(peaks) == forecast.peak_bytes
        tight = arm.arrays._replace(limit=np.array(peaks, dtype=np.int64))
        assert run(tight, arm.order) == arm.seconds
        for d, peak in enumerate(peaks):
            if peak:
                less = np.array(peaks, dtype=np.int64)
                less[d] -= 1
                assert run(arm.arrays._replace(limit=less), arm.order) == NEVER


@pytest.mark.parametrize("policy", ["keep", "recompute", "offload"])
def test_a_folded_order_unfolds_to_a_plan_as_long(policy: str) -> None:
    """Half of a mirrored candidate: the plan of both halves takes what the half says, in no more memory."""
    compared = 0
    for seed in range(40):
        for arm in arms_for(seed, policy, silent=seed % 2 == 0, folded=True):
            plan = agree(arm, silent=seed % 2 == 0)
            compared += 1
            ops = [op for order in plan.orders for op in order if op.kind == Kind.F]
            assert len(ops) == len(arm.candidate.stages) * arm.candidate.problem.workload.micro_batches
    assert compared > 40


def test_devices_that_share_a_host_link_are_not_folded() -> None:
    """A device and its twin would copy at the same time over one link."""
    given = candidate_of(1, "offload", True, True)
    group = given.problem.cluster.nodes[0]
    shared = Cluster((replace(group, host_link_shared_by=2),))
    away = (("offload",) * len(given.stages),) * 2
    assert mirror(replace(given, stash=away)) is not None
    assert mirror(replace(given, stash=away, problem=replace(given.problem, cluster=shared))) is None


def test_steps_of_a_devices_stages_come_one_after_another_behind_all_else() -> None:
    """Exactly so without sums: two and three stages a device, whose optimizers take as long as their backwards."""
    for chunks in (2, 3):
        layers = [
            Layer(f"l{k}", 1.0, 1.0, 1.0, parameter_bytes=100 * (1 + k % 3), stash_bytes=1, output_bytes=1)
            for k in range(3 * chunks)
        ]
        device = DeviceType("x", PLENTY, memory_bandwidth=500.0)
        cluster = Cluster((NodeGroup(1, 3, device, Link(), None, Link()),))
        problem = Problem(ModelGraph.chain(layers), cluster, Workload(4, optimizer="adam"))
        route = tuple(range(3)) * chunks
        stages = tuple((layer.name,) for layer in layers)
        arm = Arm(Candidate(problem, stages, (Pipeline(route, route, tuple(range(4))),)), True, False, 1)
        for improved in (False, True):
            arm.improve(200, 0.0, GO) if improved else arm.start(8, 0.0, GO)
            assert step_of(assemble(arm.candidate, arm.ops_by_device())) == pytest.approx(arm.seconds, rel=1e-9)
        assert arm.arrays.done.tolist() == pytest.approx([chunks * x for x in arm.arrays.tail[:3]])


def test_never_longer_than_the_simulator_says() -> None:
    """Reductions, optimizer steps and network cards only add: random candidates on one node and two."""
    compared = 0
    for seed in range(120):
        given = random_candidate(seed)
        if any(policy not in ("keep", "recompute") for row in given.stash for policy in row):
            continue
        arm = Arm(given, True, False, seed)
        arm.start(8, 0.0, GO)
        if arm.order is None:
            continue
        plan = assemble(given, arm.ops_by_device())
        compared += 1
        assert arm.seconds <= step_of(plan) * (1 + 1e-9), seed
        assert plan.forecast is not None
        static = [sum(parts.values()) for parts in static_bytes(given, given.costs)]
        for held, fixed, device in zip(prefix_peaks(arm.arrays, arm.order), static, plan.forecast.devices, strict=True):
            assert held + fixed >= device.peak_bytes - dict(device.peak_parts).get("messages", 0), seed
    assert compared > 50


# ------------------------------------------------------------------ starts and annealing


def test_unhurried_devices_do_not_step_over_one_another() -> None:
    """Times that are no whole numbers and all the memory there is: rules of every kind end with an order.

    Idle devices whose clocks differ by a rounding error once took turns until the greedy gave up.
    """
    layers = [Layer(f"l{k}", 2, 0.8062947, 0.5622616, stash_bytes=3, weight_stash_bytes=1) for k in range(8)]
    route = (0, 1, 2, 3, 3, 2, 1, 0)
    cluster = Cluster.uniform(4, PLENTY, Link(latency_s=0.3))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(6))
    given = Candidate(problem, one_layer_a_stage(problem.model), (Pipeline(route, route, tuple(range(6))),))
    starts = [Arm(given, True, False, seed) for seed in range(20)]
    for arm in starts:
        arm.start(1, 0.0, GO)
    assert all(arm.order is not None for arm in starts)
    assert len({arm.seconds for arm in starts}) > 3


def uneven(devices: int, batches: int, limit: int, chunks: int = 2) -> Candidate:
    """F, I, W = 10, 12, 8 and a latency a device, stages back and forth, a limit in halves of a device's stash."""
    line = tuple(range(devices))
    route = (line + line[::-1])[: devices * chunks]
    layers = [
        Layer(f"l{k}", 10 / chunks, 12 / chunks, 8 / chunks, stash_bytes=8, weight_stash_bytes=4)
        for k in range(devices * chunks)
    ]
    cluster = Cluster.uniform(devices, 4 * chunks * limit, Link(latency_s=0.5))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(batches))
    return Candidate(problem, one_layer_a_stage(problem.model), (Pipeline(route, route, tuple(range(batches))),))


def test_annealing_never_loses_and_repeats_itself() -> None:
    """Better orders that run and fit; equal seeds, equal orders; other seeds, other orders."""
    given = uneven(4, 8, 4)
    arms = [Arm(given, True, False, seed) for seed in (3, 3, 4)]
    for arm in arms:
        arm.start(40, 0.0, GO)
        for _ in range(5):
            before = arm.seconds
            arm.improve(4000, 0.0, GO)
            assert arm.seconds <= before
        agree(arm, silent=True)
    orders = [arm.order for arm in arms if arm.order is not None]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])


@pytest.mark.parametrize("fill", [-1.0, 0.3, 1.0])
def test_an_annealed_order_is_complete(fill: float) -> None:
    """What annealing says of its order holds for the order as it stands, however its weight halves were placed."""
    for seed in range(12):
        start = arms_for(seed, "recompute", silent=True)[0]
        assert start.order is not None
        tight = prefix_peaks(start.arrays, start.order)
        a = start.arrays._replace(limit=np.array(tight, dtype=np.int64))
        order, state = start.order.copy(), np.array([seed + 1], dtype=np.uint64)
        hot, effort = 0.1 * start.seconds, 400 * len(order)
        seconds = anneal.anneal(a, scratch(a), scratch(a), order, effort, hot, 0.001, 0.0, fill, state, GO)
        if fill < 0:
            assert seconds <= start.seconds
        if seconds < NEVER:
            assert run(a, order) == pytest.approx(seconds, rel=1e-12)
            assert np.array_equal(np.sort(order), np.sort(start.order))


@pytest.mark.parametrize("policy", ["keep", "recompute", "offload"])
def test_what_a_move_promises(policy: str) -> None:
    """An op that stays has the longest path through it; a move that is refused cannot run; the others' promises are
    mostly exact, where they lengthen the order."""
    rng, close, longer, refused = random.Random(policy), 0, 0, 0
    for arm in (arm for seed in range(40) for arm in arms_for(seed, policy, silent=True)[:1]):
        assert arm.order is not None
        a, w = arm.arrays, scratch(arm.arrays)
        makespan = run(a, arm.order, w)
        reader = np.zeros(len(a.edge_lag), dtype=np.int64)
        local.consumers(a, reader)
        local.tails(a, w, reader)
        stay = [local.promised(a, w, i, i) for i in range(len(arm.order))]
        assert max(stay) == pytest.approx(makespan, rel=1e-9)
        for _ in range(50):
            d = rng.randrange(len(a.first) - 1)
            i, j = (rng.randrange(int(a.first[d]), int(a.first[d + 1])) for _ in range(2))
            moved = list(arm.order)
            moved.insert(j, moved.pop(i))
            promised, true = local.promised(a, w, i, j), run(a, np.array(moved))
            if promised >= NEVER:
                refused += 1
                assert true >= NEVER
            elif makespan * (1 + 1e-9) < true < NEVER:
                longer += 1
                close += promised == pytest.approx(true, rel=1e-9)
    assert refused > 100
    assert longer > 50
    assert close > (0.6 if policy == "offload" else 0.7) * longer  # copies wait for their engines, too


@pytest.mark.parametrize("policy", ["recompute", "offload"])
@pytest.mark.parametrize("silent", [True, False], ids=["quiet links", "busy links"])
def test_what_follows_from_a_move(policy: str, silent: bool) -> None:
    """Heads, arrivals, copies and tails after moves, one after another, are those of the order run from its start."""
    rng, followed, refused, copies = random.Random(silent), 0, 0, 0
    for arm in (arm for seed in range(40) for arm in arms_for(seed, policy, silent)[:1]):
        assert arm.order is not None
        if not anneal.alone(arm.arrays):
            continue
        copies += arm.arrays.away.any()
        a, w, whole, order = arm.arrays, scratch(arm.arrays), scratch(arm.arrays), arm.order.copy()
        reader, total = np.zeros(len(a.edge_lag), dtype=np.int64), len(order)
        local.consumers(a, reader)
        x = follow.Queue(
            np.zeros(total), np.zeros(total, np.int64), np.zeros(total, np.bool_), np.zeros((5, total)),
            np.zeros(1, np.int64),
        )  # fmt: skip
        run(a, order, w)
        local.tails(a, w, reader)
        for _ in range(50):
            d = rng.randrange(len(a.first) - 1)
            i, j = (rng.randrange(int(a.first[d]), int(a.first[d + 1])) for _ in range(2))
            if local.promised(a, w, i, j) >= NEVER:
                continue
            moved = order.tolist()
            moved.insert(j, moved.pop(i))
            true = run(a, np.array(moved), whole)
            made = follow.follow(a, w, x, reader, min(i, j), max(i, j), 10 * arm.seconds)
            if true >= NEVER or made >= NEVER:
                assert true >= NEVER or x.looked[0] >= total
                refused += 1
                run(a, order, w)
                local.tails(a, w, reader)
                assert not x.queued.any()
                continue
            order = np.array(moved)
            local.tails(a, whole, reader)
            assert made == pytest.approx(true, rel=1e-12)
            for name in ("full", "count_at", "place", "room"):
                assert np.array_equal(getattr(w, name), getattr(whole, name)), name
            away = np.arange(int(a.batches.max())) < (a.batches * a.away)[:, None]
            for name in ("start", "rest", "far", "arrive", "gone", "back"):
                of = away if name in ("gone", "back") else slice(None)
                assert getattr(w, name)[of] == pytest.approx(getattr(whole, name)[of], rel=1e-9, abs=1e-9), name
            followed += 1
    assert followed > 200
    assert refused > 5
    assert (copies > 10) == (policy == "offload")


def test_annealing_stops_at_its_target() -> None:
    """Rounds without an end return at once when the order is no longer than what was asked for."""
    arm = Arm(uneven(4, 8, 8), True, False, 1)
    arm.start(20, 0.0, GO)
    target = 1.02 * arm.seconds
    for _ in range(len(ANNEALING.hot)):
        arm.improve(10**12, max(target, arm.seconds), GO)
    assert arm.seconds <= target


@pytest.mark.parametrize("task", ["start", "improve"])
def test_the_stop_flag_stops(task: str) -> None:
    """A search without an end returns soon after it is told to."""
    arm = Arm(uneven(4, 16, 4), True, False, 1)
    arm.start(20, 0.0, GO)
    arm.improve(1, 0.0, GO)
    stop = np.zeros(1, dtype=np.int64)
    work = threading.Thread(target=getattr(arm, task), args=(10**12, 0.0, stop))
    work.start()
    time.sleep(0.2)
    assert work.is_alive()
    stop[0] = 1
    work.join(30)
    assert not work.is_alive()
    assert arm.order is not None


# ------------------------------------------------------------------ repetition


def named_order(name: str, devices: int, batches: int) -> tuple[Candidate, Sequence[Sequence[Op]], Plan]:
    """A named schedule with F = I = W = 10 a device, its orders, and its plan; the memory it needs is the limit."""
    layout = schedule(name, devices, batches)
    chunks = layout.stages // devices
    layers = [
        Layer(f"l{k}", 10 / chunks, 10 / chunks, 10 / chunks, stash_bytes=4, weight_stash_bytes=2)
        for k in range(layout.stages)
    ]
    problem = Problem(ModelGraph.chain(layers), Cluster.uniform(devices, PLENTY), Workload(batches))
    given = Candidate(problem, one_layer_a_stage(problem.model), layout.pipelines)
    plan = assemble(given, layout.orders, name)
    assert plan.forecast is not None
    return limited(given, max(plan.forecast.peak_bytes)), layout.orders, plan


def repeated(given: Candidate, orders: Sequence[Sequence[Op]], split: bool, more: int) -> list[tuple[Window, Arm]]:
    """The arm of `more` micro-batches more with the order stretched, for each window of the order."""
    arm = Arm(given, split, False, 0)
    arm.seed_with(orders)
    assert arm.order is not None
    work = scratch(arm.arrays)
    run(arm.arrays, arm.order, work)
    found = []
    for window in windows(arm.arrays, arm.order, work.start, more):
        longer = Arm(resized(given, given.problem.workload.micro_batches + more), split, False, 0)
        longer.accept(stretch(arm.arrays, arm.order, work.start, window, more))
        found.append((window, longer))
    return found


@pytest.mark.parametrize(
    ("name", "devices", "batches", "more"),
    [("1f1b", 4, 8, 12), ("zb-h1", 4, 16, 16), ("zb-h2", 4, 16, 24), ("interleaved", 4, 16, 16), ("zb-v", 4, 16, 12)],
)
def test_a_repeated_window_is_the_named_schedule_of_more_micro_batches(
    name: str, devices: int, batches: int, more: int
) -> None:
    """The step grows by exactly the load of every micro-batch more, within the same memory."""
    given, orders, plan = named_order(name, devices, batches)
    split = any(op.kind == Kind.W for order in orders for op in order)
    tried = repeated(given, orders, split, more)
    assert tried
    window, longer = tried[0]
    assert window.length_s == pytest.approx(30 * window.batches)
    assert longer.seconds == pytest.approx(step_of(plan) + 30 * more)
    assert longer.seconds == pytest.approx(step_of(named_order(name, devices, batches + more)[2]))
    agree(longer, silent=True)


def test_every_window_repeats() -> None:
    """Whatever the window of an annealed order: the longer order runs, fits, and takes about what the window adds.

    Not exactly: what is under way when a window begins may arrive later the next time.
    """
    small = Arm(uneven(4, 12, 4), True, False, 5)
    small.start(60, 0.0, GO)
    for _ in range(4):
        small.improve(5000, 0.0, GO)
    tried = repeated(small.candidate, small.ops_by_device(), True, 24)
    assert tried
    for window, longer in tried:
        assert longer.order is not None, window
        assert longer.seconds == pytest.approx(small.seconds + window.length_s / window.batches * 24, rel=0.05)
        agree(longer, silent=True)
    best = small.stretched(Arm(resized(small.candidate, 36), True, False, 5))
    assert best.seconds <= min(longer.seconds for _, longer in tried) * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["keep", "recompute", "offload"])
def test_orders_survive_their_translation(policy: str) -> None:
    """Compute orders and back: the same sequence, with and without recomputation and copies."""
    for seed in range(20):
        for arm in arms_for(seed, policy, silent=True):
            assert arm.order is not None
            assert np.array_equal(from_ops(arm.candidate, arm.arrays, arm.ops_by_device()), arm.order)
