"""Runs random plans of random models and compares what every device held with what was planned.

python benchmarks/reliability/peaks.py --cases 300 --json benchmarks/results/reliability/peaks.json
python benchmarks/reliability/peaks.py --only 17
"""

from __future__ import annotations

import statistics
import sys
import time
import traceback
import warnings
from collections import Counter

import torch
from peak_cases import Case
from record import Row, arguments, finish

from contraflow.executor.run.launch import execute
from contraflow.executor.run.result import RunResult
from contraflow.executor.stage.engines import EngineNotice
from contraflow.planner.basics.errors import InputError
from contraflow.planner.check import check
from contraflow.planner.graph.versions import update_size
from contraflow.planner.problem.weight_policy import FLUSH

COMMAND = "python benchmarks/reliability/peaks.py --cases {cases}"


def run(case: Case) -> RunResult:
    """The case's plan, run on threads: two steps, or a run as long as planned and a bit. Raises InputError.

    Every other case is enforced: an op for which there seems to be no room would end it.
    """
    plan = case.plan()
    violations = check(plan)
    if violations:
        raise AssertionError(f"a plan that was assembled fails its check: {violations[0]}")
    updates = plan.problem.workload.micro_batches // update_size(plan)
    steps = 2 if plan.weights == FLUSH else updates + case.seed % 3
    return execute(
        plan,
        steps,
        case.model,
        transport="threads",
        self_check=False,
        engine=case.engine,
        dtype=case.dtype,
        enforce=case.seed % 2 == 1,
    )


def shares(result: RunResult) -> list[float]:
    """Measured over planned of every device that holds anything."""
    pairs = zip(result.peak_bytes, result.forecast_peak_bytes, strict=True)
    return [measured / planned for measured, planned in pairs if planned]


def main() -> int:
    """The command."""
    parser = arguments(__doc__, 300)
    parser.add_argument("--only", type=int, metavar="SEED", help="one case alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EngineNotice)
    started = time.monotonic()
    row = Row("random plans of random models run, memory measured", COMMAND.format(cases=options.cases))
    row.faults = {"traceback": 0, "above its peak": 0}
    seeds = [options.only] if options.only is not None else range(options.seed, options.seed + options.cases)
    found: list[float] = []
    refused: Counter[str] = Counter()
    for seed in seeds:
        case = Case(seed)
        try:
            mine = shares(run(case))
        except InputError as error:
            refused[str(error)] += 1
            continue
        except Exception:
            row.count("traceback")
            print(f"{case.text}\n{traceback.format_exc()}", file=sys.stderr)
            continue
        row.cases += 1
        found += mine
        if max(mine) > 1:
            row.count("above its peak")
            print(f"{case.text}: {' '.join(f'{share:.4f}' for share in mine)}", file=sys.stderr)
    for reason, count in refused.most_common(12):
        print(f"no plan, {count} times: {reason}", file=sys.stderr)
    if found:
        row.figures = {"worst": round(max(found), 4), "median": round(statistics.median(found), 4)}
        row.figures["least"] = round(min(found), 4)
    return finish(row, started, options.json)


if __name__ == "__main__":
    sys.exit(main())
