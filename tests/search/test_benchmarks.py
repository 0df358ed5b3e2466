"""The search benchmark: its cases hold what they say, its peer is right on tiny instances, its table tells faults."""

from __future__ import annotations

import importlib
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import pytest

from contraflow.planner import evaluate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
cases: Any = importlib.import_module("search_cases")
ilp: Any = importlib.import_module("peers.zero_bubble_ilp")
rows: Any = importlib.import_module("search_rows")
search: Any = importlib.import_module("search")
peers: Any = importlib.import_module("search_peers")
drawing: Any = importlib.import_module("search_random")
made: Any = rows.Origin("python benchmarks/search.py", "1", "a machine", "2026-11-22")


def every_uniform_case() -> list[Any]:
    scaled = [*cases.scale(), *(case for *_, case in cases.against_ilp())]
    limited = [*cases.full_memory(1), *cases.tight_memory(1), *cases.two_directions(), *cases.stash_decisions()]
    return [*limited, *scaled]


def test_a_device_costs_what_its_row_says() -> None:
    model = cases.chain(4, 4, cases.UNEVEN)
    share = model.layers[:4]
    assert len(model.layers) == 16
    assert sum(x.forward_s for x in share) == 100
    assert sum(x.backward_input_s for x in share) == 120
    assert sum(x.backward_weight_s for x in share) == 80
    assert sum(x.stash_bytes for x in share) == cases.SHARE == 2 * sum(x.weight_stash_bytes for x in share)


def test_every_case_has_its_limit_and_its_own_name() -> None:
    found = every_uniform_case()
    names = [(case.number, case.name, case.limit) for case in found]
    assert len(set(names)) == len(names)
    for case in found:
        assert 0 < case.workload.memory_limit_bytes <= cases.PLENTY
        assert len(case.model.layers) in (len(case.cluster), 4 * len(case.cluster))
        text, unit = case.limit.split()
        assert unit == "shares"
        assert case.workload.memory_limit_bytes / cases.SHARE == pytest.approx(float(text), abs=1e-3)


def test_offloading_a_share_takes_six_ticks_each_way() -> None:
    for case in cases.stash_decisions():
        assert case.cluster.node_groups[0].host_link.occupation_s(cases.SHARE) == pytest.approx(6)


def orders_of_a_device(of: Any, stage: int) -> list[list[Any]]:
    """Every order of one device with each kind in micro-batch order, within the memory limit."""
    batches = of.micro_batches
    found = []
    for kinds in sorted(set(itertools.permutations("FIW" * batches))):
        count = dict.fromkeys("FIW", 0)
        order, held = [], 0
        for kind in kinds:
            order.append(ilp.Pass(kind, stage, count[kind]))
            count[kind] += 1
            held += of.change(order[-1])
            if not (count["W"] <= count["I"] <= count["F"] and held <= of.limit):
                break
        else:
            found.append(order)
    return found


def best_of_all_orders(of: Any) -> int:
    steps = []
    for pair in itertools.product(*(orders_of_a_device(of, stage) for stage in range(of.stages))):
        try:
            steps.append(of.makespan(list(pair)))
        except networkx.NetworkXUnfeasible:
            continue
    return min(steps)


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
@pytest.mark.parametrize("limit", [2, 3, 4])
def test_the_integer_programme_finds_the_best_of_all_orders(solver: str, limit: int) -> None:
    of = ilp.Instance(2, 2, 100, 120, 80, 5, limit)
    cold, warm = (ilp.solve(of, 20, solver, 1, start=start) for start in (False, True))
    assert cold.proven
    assert warm.proven
    assert cold.step == warm.step == best_of_all_orders(of)
    assert warm.incumbents[0][1] == of.makespan(of.one_f_one_b())
    assert 0 < warm.seconds_to_best <= warm.seconds


def test_the_peers_plan_passes_simulator_and_checker() -> None:
    costs, p, m, case = next(iter(cases.against_ilp(((2, 4),))))
    of = ilp.Instance(p, m, costs.forward, costs.backward_input, costs.backward_weight, costs.latency, 2 * p)
    answer = ilp.solve(of, 20, "cp-sat", 1)
    made = search.ilp_plan(case, answer)
    assert rows.faults(made) == []
    assert evaluate(made).step_s == answer.step


def test_a_plan_above_its_limit_is_a_fault() -> None:
    _, p, m, case = next(iter(cases.against_ilp(((2, 4),))))
    answer = ilp.solve(ilp.Instance(p, m, 100, 100, 100, 0, 2 * p), 20, "cp-sat", 1)
    small = replace(case, workload=replace(case.workload, memory_limit_bytes=cases.SHARE))
    assert any("peaks at" in fault for fault in rows.faults(search.ilp_plan(small, answer)))


def test_the_table_tells_faults_and_missed_goals() -> None:
    good, bad = (rows.Row(1, name, "4 shares", goal=100.0, ours=110.0, bound=105.0, gap=0.05) for name in "ab")
    bad.peers_above_bound([("peer", 100.0)])
    assert good.judge().verdict == "MISSED 1.100"
    assert bad.judge().verdict == "FAULT"
    text = rows.table([good, bad], made).text()
    assert "bound 105 above peer: 100" in text
    assert len(text.splitlines()) == 3


def test_ways_stand_beside_each_other_and_rows_measured_again_replace_those_before() -> None:
    """A column a way; of a table measured twice every row has its own origin."""
    steps = {"keep": None, "offload": 30.0, "all": 27.0}
    found = [rows.Row(4, f"gpt: {way}", "8 GiB", ours=s, bound=27.0, verdict="no plan") for way, s in steps.items()]
    ways = rows.side_by_side(found, made)
    assert ways.columns == ["instance", "keep", "offload", "all", "bound", "all / best other"]
    assert ways.rows == [["gpt; 8 GiB", "no plan", "30", "27", "27", "0.900"]]
    later = replace(made, commit="2")
    first = rows.against_peers([rows.Row(1, name, "4", "peer", 100.0, ours=90.0, gap=0.0) for name in "abc"], made)
    again = rows.against_peers([rows.Row(1, "b", "4", "peer", 100.0, ours=80.0, gap=0.1)], later)
    both = first.renewed(again)
    assert [row[3] for row in both.rows] == ["90 (optimal)", "80", "90 (optimal)"]
    assert (both.origins, both.of) == ([made, later], [0, 1, 0])
    assert both.markdown().endswith(f"{made}\n\nb; 4: {later}")
    assert again.renewed(ways) == ways


def test_random_instances_are_those_of_their_seed_and_spread_as_said() -> None:
    """4 to 16 devices, odd ones too, p-1 to 8p micro-batches, messages up to 40 % of F, every memory limit."""
    found = drawing.instances(200, 7)
    assert found[:20] == drawing.instances(20, 7)
    assert found != drawing.instances(200, 8)
    assert {one.devices for one in found} == set(range(4, 17))
    assert {one.memory for one in found} == set(drawing.MEMORY)
    for one in found:
        assert one.devices - 1 <= one.micro_batches <= 8 * one.devices
        assert 0 <= one.costs[3] <= max(601, 0.4 * one.costs[0])
        layers = one.case().model.layers
        assert len(layers) == one.layers * one.devices
        middle = {layer.forward_s for layer in layers[1:-1]}
        assert len(middle) == 1
        assert layers[0].forward_s == pytest.approx(one.heavy[0] * middle.pop())


@pytest.mark.long
def test_a_match_counts_the_worst_seed_and_finds_false_bounds() -> None:
    """A plan that a seed does not find is a loss; a bound above a peer is a fault."""
    effort = rows.Effort(2, 5, 0, 1, True)
    drawn = next(one for one in drawing.instances(60, 3) if one.devices == 4 and one.memory == "1")
    match = peers.meet(peers.Match("3/0", drawn), effort, 2, 0.2)
    assert match.faults == []
    assert match.peer_s is not None
    assert len(match.ours_s) == 2
    assert match.ratio == max(match.ours_s) / match.peer_s
    assert match.ratio <= 1 + rows.GOOD
    assert match.result in ("win", "tie")
    lost = replace(match, ours_s=[match.peer_s, None])
    assert (lost.result, lost.ratio) == ("loss", None)
    assert peers.summary([match, lost], made).rows[-1][:6] == ["all", "2", str(int(match.ratio < 1)), *_rest(match)]


def _rest(match: Any) -> list[str]:
    return [str(int(match.ratio >= 1)), "1", "0"]
