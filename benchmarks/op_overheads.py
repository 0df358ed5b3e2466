"""What ops and messages cost a rank's own thread beside their layers, and what a change of the executor does to that.

Two gloo processes of one thread each train an MLP of 8 tiny layers, once whole on each (its gradients summed, no
message between stages) and once as stages of 1F1B. Told are the seconds that a rank spends around a forward and a
backward, neither computing nor waiting, seconds of an op all told, and the step against its forecast; and the processor
time of a step, all ranks together, which other work on the machine disturbs least. With `--against` the executor of
another checkout takes turns with this one, process by process, and ratios are those of this one's medians to the
other's; times on a machine that does something else say little, ratios more.

    python benchmarks/op_overheads.py --against /path/to/another/checkout --rounds 6        10 minutes on two cores
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from checkouts import Figures, measured_in
from tables import Table, origin, savable

ROOT = Path(__file__).resolve().parents[1]
MODEL, SAMPLES, MICRO_BATCHES = "mlp-deep", 8, 8
PLANS = {"whole": ("gpipe", 2), "1f1b": ("1f1b", 1)}
WARMUPS, STEPS = 4, 20


def measured_here() -> Figures:
    """Figures of the executor that this process imports."""
    from executor_contender import Entry, Pacing, compete

    from contraflow.executor.measure.profile import profile_model
    from contraflow.executor.run.launch import prepare
    from contraflow.models import resolve
    from contraflow.planner import Cluster, ModelGraph, SearchSpace, Workload, plan
    from contraflow.planner.plan import COMPUTE, IN_LINE

    graph = ModelGraph.from_dict(profile_model(resolve(MODEL), SAMPLES, rounds=1, load=2, drawing=False))
    entries, forecast = [], {}
    for name, (schedule, replicas) in PLANS.items():
        space = SearchSpace(schedule=schedule, replicas=replicas)
        made = plan(graph, Cluster.uniform(2), Workload(MICRO_BATCHES * replicas), space, time_limit=30).plan
        assert made is not None
        assert made.forecast is not None
        entries.append(Entry(name, prepare(made, self_check=False)))
        forecast[name] = made.forecast.step_s
    found: Figures = {}
    for name, rounds in compete(entries, Pacing(WARMUPS, STEPS, 1e9), lambda _: None).items():
        seconds: dict[str, list[float]] = {}
        for ranks in rounds:
            for outcome in ranks:
                free = blocked = 0.0
                for record in outcome.ops:
                    blocked += record.waited_s
                    if record.op.kind not in IN_LINE:
                        continue
                    if record.op.kind in COMPUTE and record.op.micro_batch >= 0:
                        kind = record.op.kind.name
                        around = max(0.0, record.start_s - free - blocked)
                        seconds.setdefault(f"{name}: around {kind}", []).append(around)
                        seconds.setdefault(f"{name}: {kind}", []).append(record.end_s - record.start_s + around)
                    free, blocked = record.end_s, 0.0
        found |= {what: median(each) for what, each in seconds.items()}
        step_s = median(max(outcome.seconds for outcome in ranks) for ranks in rounds)
        found |= {f"{name}: step": step_s, f"{name}: step / forecast": step_s / forecast[name]}
        spent = [sum(outcome.processor_s for outcome in ranks) for ranks in rounds]
        found[f"{name}: step, processors"] = quantiles(spent, n=4, method="inclusive")[0]
    return found


def main() -> int:
    """Prints microseconds, and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout, by turns with this one")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="processes of each [%(default)s]")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    savable(parser)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured_here()))
        return 0
    trees = [ROOT] if options.against is None else [ROOT, options.against]
    runs: dict[Path, list[Figures]] = {tree: [] for tree in trees}
    for k in range(options.rounds):
        for tree in reversed(trees) if k % 2 else trees:
            runs[tree].append(measured_in(tree, __file__, "--here"))
            print(f"round {k + 1} of {options.rounds}: {tree}", file=sys.stderr)
    rows = []
    for what in runs[ROOT][0]:
        each = [median(figures[what] for figures in runs[tree]) for tree in trees]
        scale = 1.0 if "/" in what else 1e6
        ratio = [f"{each[0] / each[1]:.3f}" if each[1] > 0 else ""] if len(each) > 1 else []
        rows.append([what, *(f"{scale * x:.1f}" for x in each), *ratio])
    columns = ["us, but for ratios", "this", "the other", "this / the other"]
    made = replace(origin(), note=f"load {os.getloadavg()[0]:.1f} after")
    table = Table.made(made, columns[: len(rows[0])], rows)
    print(table.text())
    if options.save:
        table.save("runtime/overhead")
    return 0


if __name__ == "__main__":
    sys.exit(main())
