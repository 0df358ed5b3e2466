"""Random plans whose stages have two devices, against a naive account of memory and every rule of order."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from random_plans import plans_of, random_candidate

from contraflow.planner import bounds
from contraflow.planner.check import check
from contraflow.planner.forecast.timeline import Timeline
from contraflow.planner.graph import Candidate
from contraflow.planner.plan import IN_LINE, Kind, Op, Plan
from contraflow.planner.plan_file import plan_from_dict, plan_to_dict
from contraflow.planner.problem.model_graph import ModelGraph
from contraflow.planner.simulate import evaluate, simulate


def naive_peaks(plan: Plan, timeline: Timeline) -> list[int]:
    """Peaks by walking every device's list: allocations where they are posted or start, releases when they end."""
    costs, devices = timeline.costs, len(plan.orders)
    size = {(e.producer, e.consumer): e.bytes for e in costs.edges}
    path = {m: n for n, p in enumerate(plan.pipelines) for m in p.micro_batches}
    sent = {(m.source, m.op): m.end_s for m in timeline.messages}
    times = {(d, t.op): (t.start_s, t.end_s) for d, line in enumerate(timeline.devices) for t in line.ops}
    peaks = []
    for d in range(devices):
        events: list[tuple[float, int]] = []
        clock = 0.0
        for o in plan.orders[d]:
            begin, end = times.get((d, o), (clock, clock))
            stash, kept = int(costs.stash_bytes[o.stage]), int(costs.incoming_bytes[o.stage])
            if o.micro_batch < 0:
                clock = end if o.kind in IN_LINE else clock
                continue
            number = path[o.micro_batch]
            policy = plan.stash[number][o.stage]
            again = policy == "recompute"
            load = kept if again else stash
            if o.kind is Kind.SEND_S:
                events.append((sent[d, o], -load))
            elif o.kind is Kind.RECV_S:
                events.append((clock, load))
            elif o.kind is Kind.RECV_F:
                events.append((clock, size[o.peer, o.stage]))
            elif o.kind is Kind.RECV_B:
                events.append((clock, size[o.stage, o.peer]))
            elif o.kind in (Kind.SEND_F, Kind.SEND_B):
                edge = (o.stage, o.peer) if o.kind is Kind.SEND_F else (o.peer, o.stage)
                events.append((sent[d, o], -size[edge]))
            elif o.kind in (Kind.F, Kind.R):
                work = int(costs.workspace_bytes[o.stage])
                events += [(begin, work), (end, -work)]
                if o.kind is Kind.F:
                    inputs = int(costs.input_bytes[o.stage]) + again * int(costs.kept_input_bytes[o.stage])
                    out = sum(n for (a, _), n in size.items() if a == o.stage)
                    events.append((begin, inputs + out))
                if not again or o.kind is Kind.R:  # what comes in goes into the stash
                    taken = costs.incoming_bytes[o.stage] - (0 if again else costs.kept_input_bytes[o.stage])
                    events += [(begin, stash - int(taken))]
            elif o.kind is Kind.B:
                work = int(costs.workspace_bytes[o.stage])
                back = sum(n for (_, b), n in size.items() if b == o.stage)
                took = sum(n for (a, _), n in size.items() if a == o.stage)
                events += [(begin, work + back), (end, -work - stash - took)]
            clock = end if o.kind in IN_LINE else clock
        total = peak = 0
        for _, delta in sorted((round(time, 9), delta) for time, delta in events):
            total += delta
            peak = max(peak, total)
        assert total == 0
        peaks.append(peak + static_of(plan, d))
    return peaks


def static_of(plan: Plan, device: int) -> int:
    """Parameters on every device that runs a stage; gradients and state where its backward runs."""
    costs = Candidate(plan.problem, plan.stages, plan.pipelines).costs
    forward = {s for p in plan.pipelines for s, d in enumerate(p.forward) if d == device and p.micro_batches}
    backward = {s for p in plan.pipelines for s, d in enumerate(p.backward) if d == device and p.micro_batches}
    lent = sum(int(costs.parameter_bytes[s]) for s in forward - backward)
    owned = sum(int(costs.parameter_bytes[s]) for s in backward)
    return lent + owned * (4 if plan.problem.workload.optimizer == "adam" else 2)


def whole(seed: int) -> list[Plan]:
    """Plans of a random candidate without offloading, whose ops all take time."""
    candidate = random_candidate(seed, apart=True)
    rng_layers = [
        replace(x, forward_s=1.37 + 0.11 * k, backward_input_s=1.91 + 0.07 * k, backward_weight_s=0.0, separable=False)
        for k, x in enumerate(candidate.problem.model.layers)
    ]
    layers = tuple(
        replace(x, stash_bytes=max(x.stash_bytes, 40), weight_stash_bytes=max(x.stash_bytes, 40)) for x in rng_layers
    )
    problem = replace(candidate.problem, model=ModelGraph(layers, candidate.problem.model.edges))
    stash = tuple(tuple("keep" if x == "offload" or ">" in x else x for x in row) for row in candidate.stash)
    return plans_of(Candidate(problem, candidate.stages, candidate.pipelines, stash), seed, 2, split=False)


@pytest.mark.parametrize("seed", range(60))
def test_memory_equals_a_naive_walk(seed: int) -> None:
    """Times are such that hardly two changes fall together; where they do, the walk lets releases come first."""
    for plan in whole(seed):
        timeline = simulate(plan)
        assert plan.forecast is not None
        naive = naive_peaks(plan, timeline)
        assert all(a >= b for a, b in zip(plan.forecast.peak_bytes, naive, strict=True))
        off = sum(a != b for a, b in zip(plan.forecast.peak_bytes, naive, strict=True))
        assert off == 0, (plan.forecast.peak_bytes, naive)


@pytest.mark.parametrize("seed", range(0, 240, 4))
def test_random_plans_keep_every_rule(seed: int) -> None:
    """Checked, unchanged by the file, every byte given back, no backward before its stash, no step below a bound."""
    for number in range(seed, seed + 4):
        candidate = random_candidate(number, apart=True)
        for plan in plans_of(candidate, number, 2, split=True):
            assert check(plan) == []
            assert plan_from_dict(json.loads(json.dumps(plan_to_dict(plan)))) == plan
            timeline = simulate(plan)
            for line in timeline.devices:
                assert line.memory.bytes[-1] == line.memory.bytes[0] == line.memory.bytes.min()
                assert sum(count for _, count in line.memory.peak_parts) == line.memory.peak_bytes
            arrive(plan, timeline)
            shares = tuple(len(p.micro_batches) for p in plan.pipelines)
            kept = replace(candidate, stash=plan.stash)
            assert bounds.candidate(kept, shares, True, [1 << 60] * len(plan.orders)) <= timeline.step_s * (1 + 1e-9)
            assert bounds.any_plan(plan.problem) <= timeline.step_s * (1 + 1e-9)


def arrive(plan: Plan, timeline: Timeline) -> None:
    """Everything is there before it is used, and parameters leave after their step and arrive within it."""
    start = {t.op: t.start_s for line in timeline.devices for t in line.ops if t.op.kind is not Kind.STEP}
    steps = {
        (d, t.op.stage): t.end_s for d, line in enumerate(timeline.devices) for t in line.ops if t.op.kind is Kind.STEP
    }
    path = {m: p for p in plan.pipelines for m in p.micro_batches}
    for m in timeline.messages:
        s, k = m.op.stage, m.op.micro_batch
        if m.op.kind is Kind.SEND_S and m.target == path[k].backward[s]:
            users = [start[o] for o in (Op(Kind.R, s, k), Op(Kind.B, s, k), Op(Kind.I, s, k)) if o in start]
            assert min(users) >= m.arrival_s - 1e-9
        if m.op.kind is Kind.SEND_P:
            assert m.start_s >= steps[m.source, s] - 1e-9
            assert timeline.step_s >= m.arrival_s - 1e-9


def test_evaluate_gives_what_assemble_said() -> None:
    for seed in range(40):
        for plan in plans_of(random_candidate(seed, apart=True), seed, 1, split=True):
            assert evaluate(plan) == plan.forecast
