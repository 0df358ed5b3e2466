"""Replicas of single stages: PipeDream's recursion, the plans it leads to, and that they are told the truth of."""

from __future__ import annotations

import math
import random
import time
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import solved, uniform
from naive import assert_forecast
from spread import random_spread, side_by_side, spread

from contraflow.planner import Cluster, Layer, Link, ModelGraph, SearchSpace, Workload, bounds, check, plan
from contraflow.planner.basics import OutOfTime
from contraflow.planner.formats import pipedream
from contraflow.planner.graph import Candidate
from contraflow.planner.partition import Blocks, Chain, Floats, OnBlocks, cut_replicated, deal, in_flight, sloping
from contraflow.planner.plan import Kind, Plan, Problem
from contraflow.planner.problem.cluster import NodeGroup
from contraflow.planner.problem.presets import DeviceType
from contraflow.planner.search.common import Clock, Session
from contraflow.planner.search.improve import improve
from contraflow.planner.search.named import replicas, run_replicas

VGG16 = Path(__file__).parents[1] / "data" / "pipedream" / "vgg16" / "graph.txt"
BANDWIDTH = 1.25e9
GIB = 1 << 30


def widths_of(plan: Plan) -> tuple[int, ...]:
    """Replicas by stage."""
    return tuple(len({p.forward[s] for p in plan.pipelines}) for s in range(len(plan.stages)))


def seconds(found: Plan | None) -> float:
    assert found is not None
    assert found.forecast is not None
    return found.forecast.objective_s


# ---------------------------------------------------------------- the recursion


@pytest.mark.parametrize(("devices", "widths"), [(4, (3, 1)), (8, (7, 1)), (16, (15, 1))])
def test_vgg_16_is_cut_as_pipedream_published(devices: int, widths: tuple[int, ...]) -> None:
    """PipeDream's own price of a stage of w replicas: the larger of computing and 4 (w - 1) / w bytes, over w."""
    model = pipedream.load(VGG16).trained.model
    on = OnBlocks(Chain.of(Problem(model, Cluster.uniform(devices), Workload(devices))), tuple(range(devices)))
    size = len(on.chain) + 1
    work, crossing = on.forward_s + on.backward_s, 2 * on.chain.boundary_bytes / BANDWIDTH

    def price(at: int, width: int) -> Floats:
        sums = 4 * (width - 1) / width * on.own_bytes / BANDWIDTH
        found = np.maximum(np.maximum(work, sums), crossing[:, None]) / width
        return np.where(np.tri(size, dtype=bool), np.inf, found)

    found = cut_replicated(price, size, devices, range(1, devices + 1), devices)
    assert tuple(block.width for block in min(found.values())[1]) == widths


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_no_stages_on_blocks_cost_less(seed: int) -> None:
    """Against every cut and every number of replicas; prices differ by layers, devices and place."""
    rng = np.random.default_rng(seed)
    layers, devices = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    prices = rng.integers(1, 20, (devices, devices + 1, layers + 1, layers + 1)).astype(float)
    prices[rng.random(prices.shape) < 0.2] = np.inf
    prices[..., np.tri(layers + 1, dtype=bool)] = np.inf
    found = cut_replicated(lambda at, w: prices[at, w], layers + 1, devices, range(1, devices + 1), layers)
    least: dict[tuple[int, int], float] = {}
    for count in range(1, min(layers, devices) + 1):
        for widths in product(range(1, devices + 1), repeat=count):
            for cuts in permutations(range(1, layers), count - 1):
                if list(cuts) == sorted(cuts) and sum(widths) <= devices:
                    blocks = side_by_side(widths, [*cuts, layers])
                    first = devices - sum(widths)
                    cost = max(prices[first + b.at, b.width, b.first, b.end] for b in blocks)
                    key = count, sum(widths)
                    least[key] = min(least.get(key, np.inf), cost)
    for (count, used), (cost, blocks) in found.items():
        assert cost == least[count, used] == max(prices[b.at, b.width, b.first, b.end] for b in blocks)
        assert (len(blocks), sum(b.width for b in blocks)) == (count, used)
    for count in range(1, layers + 1):
        best = min((cost for key, cost in least.items() if key[0] == count), default=np.inf)
        assert best == min((cost for key, (cost, _) in found.items() if key[0] == count), default=np.inf)


def test_noam_is_the_devices_behind_over_the_replicas() -> None:
    assert in_flight(side_by_side([3, 1])) == [2, 1]
    assert in_flight(side_by_side([1, 1, 1, 1])) == [4, 3, 2, 1]
    assert in_flight(side_by_side([15, 1])) == [2, 1]
    assert in_flight(side_by_side([1, 3])) == [4, 1]


def test_a_stage_starts_what_the_next_one_starts_before_its_first_backward() -> None:
    assert sloping([1, 4], [1, 2]) == [7, 4]
    assert sloping([1, 4], [1, 2], [False, True]) == [9, 4]
    assert sloping([9, 4], [1, 2]) == [9, 4]


def test_micro_batches_are_dealt_round_robin_on_every_stage() -> None:
    blocks: Blocks = side_by_side([3, 2])
    routes = deal(blocks, range(5), 12)
    assert len(routes) == 6
    assert routes[0, 3] == [0, 6]
    assert routes[1, 4] == [1, 7]


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("seed", range(40))
def test_every_mix_of_replicas_is_forecast_and_checked(seed: int) -> None:
    """Times, memory and violations against the independent account; no bound above the step."""
    made = random_spread(seed)
    assert check(made) == []
    assert_forecast(made)
    candidate = Candidate(made.problem, made.stages, made.pipelines, made.stash)
    shares = tuple(len(p.micro_batches) for p in made.pipelines)
    least = max(bounds.candidate(candidate, shares), bounds.space(made.problem, SearchSpace()))
    assert least <= seconds(made) * (1 + 1e-9)


@pytest.mark.parametrize("weights", ["stash", "vertical", "2bw", "spectrain", "pipeoptim", "naive"])
@pytest.mark.parametrize("seed", range(5))
def test_every_mix_of_replicas_without_a_flush(seed: int, weights: str) -> None:
    made = random_spread(1000 + seed, weights)
    assert check(made) == []
    assert_forecast(made)
    assert bounds.period(made.problem, SearchSpace(asynchronous=(weights,))) <= seconds(made) * (1 + 1e-9)


def test_a_stage_of_three_replicas_takes_a_third() -> None:
    """3-1 with F = B = 3 s and 1 s, 12 micro-batches: the third replica's first gradient comes last, after 3 x 2 s."""
    model = ModelGraph.chain([Layer(n, s, s, separable=False, stash_bytes=1) for n, s in (("wide", 3), ("thin", 1))])
    assert seconds(spread(model, [3, 1], Workload(12))) == pytest.approx(12 / 3 * 6 + 3 * 2)
    found = spread(model, [3, 1], Workload(24, update_every=3), weights="stash")
    assert found.forecast is not None
    assert found.forecast.period_s == pytest.approx(2.0)


# ---------------------------------------------------------------- the search


def test_one_layer_on_more_devices_than_micro_batches() -> None:
    """Three replicas; the fourth device has nothing to do."""
    found = solved(uniform(1, 1.0, 2.0), Cluster.uniform(4), Workload(3))
    assert (found.status, seconds(found.plan)) == ("optimal", 3.0)


def test_a_heavy_layer_gets_more_devices_than_a_light_one() -> None:
    """5 devices, layers of 9 s and 6 s: 3-2 in steady state, which groups of equal size cannot reach."""
    layers = [Layer(n, s / 3, 2 * s / 3, separable=False, stash_bytes=1) for n, s in (("a", 9.0), ("b", 6.0))]
    found = solved(ModelGraph.chain(layers), Cluster.uniform(5), Workload(30))
    assert found.plan is not None
    assert seconds(found.plan) <= (30 / 3 - 1) * 9 + 15 + 1e-9
    space = SearchSpace(asynchronous=("stash",))
    found = plan(ModelGraph.chain(layers), Cluster.uniform(5), Workload(60, update_every=6), space, 60, workers=1)
    assert found.plan is not None
    assert widths_of(found.plan) == (3, 2)
    assert (found.status, seconds(found.plan)) == ("optimal", pytest.approx(3.0))


def test_orders_of_replicas_are_searched_though_no_other_shape_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """2-1, backwards in one op: halves bring the last gradient earlier. Bounds speak of plans without such stages."""
    layers = [Layer(n, s, s, s, stash_bytes=1, weight_stash_bytes=1) for n, s in (("a", 2.0), ("b", 1.0), ("c", 1.0))]
    start = spread(ModelGraph.chain(layers), [2, 1], Workload(6), Cluster.uniform(3, 1000))
    for others in ("search_separate", "Hunt.run"):
        monkeypatch.setattr(f"contraflow.planner.search.improve.{others}", lambda *_, **__: None)
    session = Session(start.problem, SearchSpace(), Clock(time.monotonic() + 60, 4.0))
    assert session.offer(start, "here")
    session.separate = True
    session.proof.of_shapes(seconds(start), seconds(start), planned=True)
    assert session.only_two_devices
    improve(session, [(0, 1, 2)])
    assert session.best_s < seconds(start)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_no_more_routes_than_allowed(most: int) -> None:
    layers = [Layer(n, s, s, separable=False, stash_bytes=1) for n, s in (("a", 4.0), ("b", 1.0), ("c", 1.0))]
    for workload, space in (
        (Workload(12), SearchSpace(pipelines=most)),
        (Workload(48, update_every=12), SearchSpace(asynchronous=("stash",), pipelines=most)),
    ):
        found = solved(ModelGraph.chain(layers), Cluster.uniform(6), workload, space)
        assert found.plan is not None
        assert check(found.plan) == []
        assert len({p.forward for p in found.plan.pipelines}) <= most


def memory(model: ModelGraph, share: float) -> int:
    """So much of what all layers need with a few stashes each."""
    return int(share * sum(2 * x.parameter_bytes + 8 * x.stash_bytes + 4 * x.output_bytes for x in model.layers))


def random_problem(seed: int) -> tuple[ModelGraph, Cluster, random.Random]:
    """Layers of uneven work, parameters and tensors on 3 to 16 devices in one node or several."""
    rng = random.Random(seed)
    layers = [
        Layer(
            f"l{k}", (f := rng.uniform(0.2, 3) * rng.choice([1, 1, 4])), f, f * rng.choice([0.5, 1.0]),
            parameter_bytes=int(rng.choice([0.01, 0.1, 1, 4]) * GIB), stash_bytes=rng.randint(1, 6) * GIB // 4,
            output_bytes=rng.randint(1, 40) * GIB // 100,
        )
        for k in range(rng.randint(2, 8))
    ]  # fmt: skip
    model, devices = ModelGraph.chain(layers), rng.randint(3, 16)
    nodes = rng.choice([n for n in (1, 2, 4, devices) if devices % n == 0])
    limit = memory(model, rng.choice([0.3, 0.6, 2.0, 2.0]))
    kind = DeviceType("toy", limit, 1.0, rng.choice([None, 900 * GIB]))
    link, network = Link(rng.choice([5, 50]) * GIB, 1e-5), Link(rng.choice([0.5, 5]) * GIB, 1e-4)
    return model, Cluster((NodeGroup(nodes, devices // nodes, kind, link, None, link),), network), rng


SEEDS = [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 2, 3, 5, 6, 7))]


@pytest.mark.parametrize("seed", SEEDS)
def test_never_worse_than_equal_groups_or_one_route(seed: int) -> None:
    """With a flush; all found in the same effort, and what is claimed holds."""
    model, cluster, rng = random_problem(seed)
    workload = Workload(rng.randint(2, 20))
    free = solved(model, cluster, workload)
    if free.plan is None:
        assert free.status in ("unknown", "infeasible")
        return
    assert check(free.plan) == []
    assert free.bound_s <= seconds(free.plan) * (1 + 1e-9)
    for n in (2, 3, 4):
        if len(cluster) % n == 0 and n <= workload.micro_batches:
            equal = solved(model, cluster, workload, SearchSpace(replicas=n))
            assert equal.plan is None or seconds(free.plan) <= seconds(equal.plan) * 1.02


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_flush_never_worse_than_one_route(seed: int) -> None:
    model, cluster, rng = random_problem(100 + seed)
    update = rng.choice([1, 2, 4, 6])
    workload, methods = Workload(update * 12, update_every=update), ("stash",)
    free = solved(model, cluster, workload, SearchSpace(asynchronous=methods))
    one = solved(model, cluster, workload, SearchSpace(asynchronous=methods, pipelines=1))
    if free.plan is None or one.plan is None:
        assert one.plan is None
        return
    assert check(free.plan) == []
    assert free.bound_s <= seconds(free.plan) * (1 + 1e-9)
    assert seconds(free.plan) <= seconds(one.plan) * (1 + 1e-6)
    assert all(op.kind is not Kind.REDUCE or len(free.plan.pipelines) > 1 for order in free.plan.orders for op in order)


@pytest.mark.parametrize("seed", range(1, 4))
def test_more_that_stashes_may_become_hides_no_replicas(seed: int) -> None:
    """Little memory, slow links, many routes: with recomputation and copies to the host, no plan is lost without."""
    rng = random.Random(seed)
    layers = [
        Layer(f"l{k}", t, t, t, True, stash_bytes=10**6, weight_stash_bytes=600_000, output_bytes=200_000)
        for k, t in enumerate(rng.uniform(0.8, 1.2) for _ in range(4))
    ]
    kind = DeviceType("d", 1 << 40)
    cluster = Cluster((NodeGroup(1, rng.randint(5, 8), kind, Link(1e6 / 3), None, Link(1e7)),))
    problem = Problem(ModelGraph.chain(layers), cluster, Workload(21, memory_limit_bytes=2_650_000))
    found = []
    for space in (SearchSpace(), SearchSpace(recompute=False, offload=False)):
        session = Session(problem, space, Clock(math.inf, 1.0))
        run_replicas(session)
        found.append(session.best_s)
    assert found[0] <= found[1] < math.inf


def one_stash(**forbidden: bool) -> Session:
    """Two layers, three devices, room for one stash beside what is in transit."""
    layers = [Layer(n, s, s, s, False, stash_bytes=10**7, output_bytes=10**5) for n, s in (("a", 2.0), ("b", 1.0))]
    node = NodeGroup(1, 3, DeviceType("d", 1 << 40), Link(1e9), None, Link(1e7))
    workload = Workload(24, memory_limit_bytes=12 * 10**6)
    problem = Problem(ModelGraph.chain(layers), Cluster((node,)), workload)
    return Session(problem, SearchSpace(**forbidden), Clock(math.inf, 1.0))


@pytest.mark.parametrize("forbidden", [{}, {"offload": False}, {"recompute": False}])
def test_replicas_that_hold_one_stash_are_busy_all_the_time_where_the_others_go(forbidden: dict[str, bool]) -> None:
    """2-1: 24 micro-batches whose stashes, kept, go one at a time; the pipelines that share a device copy by turns.

    Kept they take 111 s; so what is said of these stages must be no bound of kept stashes.
    """
    session = one_stash(**forbidden)
    run_replicas(session)
    assert session.best_s <= 96.0 * (1 + 1e-9)
    for part in session.ledger.parts.values():
        assert part.step_s is None or part.bound_s <= part.step_s * (1 + 1e-9), part
    assert session.ledger.parts["stages with 2-1 replicas"].bound_s <= session.best_s * (1 + 1e-9)


def test_spreads_are_listed_once_however_short_the_parts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that ends while they are listed: what was listed before is not listed again."""
    session = one_stash()
    asked: list[tuple[object, ...]] = []

    def every_other_time(session: Session, order: tuple[int, ...], menu: tuple[str, ...]) -> list[replicas.Spread]:
        asked.append((order, menu))
        if asked.count((order, menu)) == 1:
            raise OutOfTime
        return list(spreads(session, order, menu))

    spreads = replicas.spreads
    monkeypatch.setattr(replicas, "spreads", every_other_time)
    for _ in range(100):
        run_replicas(session)
    assert session.rounds.tried
    assert len(asked) == 2 * len(set(asked)) == 8
    assert math.isfinite(session.best_s)


def test_what_the_recursion_expects_to_be_shortest_is_tried_in_many_ways_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With backwards whole and in halves, and with several numbers in flight, before what takes half as long again."""
    layers = [Layer(f"l{k}", 1.0, 1.0, 1.0, stash_bytes=100, weight_stash_bytes=60, output_bytes=1) for k in range(8)]
    nodes = NodeGroup(1, 15, DeviceType("toy", 450), Link(1e4), host_link=Link(200.0))
    problem = Problem(ModelGraph.chain(layers), Cluster((nodes,)), Workload(30))
    session = Session(problem, SearchSpace(recompute=False), Clock(math.inf))
    seen: list[tuple[float, tuple[tuple[str, ...], ...], tuple[bool, ...]]] = []

    def noted(_: Session, one: replicas.Spread, most: object, split: tuple[bool, ...]) -> None:
        seen.append((one.expected_s, one.stages, split))

    monkeypatch.setattr(replicas, "try_spread", noted)
    run_replicas(session)
    best = seen[0]
    mine = [n for n, one in enumerate(seen) if one[1] == best[1]]
    assert best[0] == min(expected_s for expected_s, *_ in seen)
    assert {any(seen[n][2]) for n in mine[:2]} == {True, False}
    assert mine[5] < next(n for n, (expected_s, *_) in enumerate(seen) if expected_s > 1.5 * best[0]) < len(seen) / 2


def test_copies_that_may_be_made_hide_no_replicas_without_a_flush() -> None:
    """Two layers, five devices, room for little more than a stash: 5.67 s with copies, 4.24 with recomputation."""
    layers = [
        Layer("a", 1.963, 1.472, 1.472, False, stash_bytes=1_043_404, parameter_bytes=57_889, output_bytes=2000),
        Layer("b", 4.341, 3.256, 3.256, False, stash_bytes=1_290_009, parameter_bytes=35_395, output_bytes=2000),
    ]
    node = NodeGroup(1, 5, DeviceType("toy", 1 << 40), link=Link(1e6, 0.05), host_link=Link(2e6))
    workload = Workload(30, optimizer="sgd", memory_limit_bytes=1_497_865, update_every=5)
    periods = []
    for offload in (True, False):
        found = plan(
            ModelGraph.chain(layers), Cluster((node,)), workload,
            SearchSpace(asynchronous=("2bw",), offload=offload), time_limit=60, workers=1, deterministic_limit=0.2,
        ).plan  # fmt: skip
        assert found is not None
        assert found.forecast is not None
        assert check(found) == []
        periods.append(found.forecast.objective_s)
    assert periods[0] <= periods[1] * (1 + 1e-9)
