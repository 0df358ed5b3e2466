"""How well every weight policy trains over learning rates: small versions of PipeOptim's eight networks.

Each method at its own best rate, and all methods at the rate that is best for synchronous training; the best is the one
with the least mean loss on held-out samples over all seeds. Every run is emulated in one process
(`executor/oracle/emulation.py`), which the executor equals float by float.

    python benchmarks/rates.py --save                     all tasks, 5 seeds, rates of 1/3, 1 and 3 times the task's
    python benchmarks/rates.py --tasks vgg-tiny --seeds 2

Finished runs are kept in --runs and not trained again; Ctrl-C keeps them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from convergence_report import REFERENCE, RIVAL, Spread
from convergence_runs import SMALL, methods, trained
from tables import Table, origin, savable

METHODS = (REFERENCE, RIVAL, "spectrain", "stash", "naive", "2bw")
COLUMNS = ["task, method", "best rate", "accuracy", "held-out loss", "training loss", "same rate", "accuracy",
           "held-out loss", f"seeds better than {RIVAL}"]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What to train."""

    task: str
    method: str
    rate: float
    seed: int


@dataclass(frozen=True)
class Measured:
    """Over the held-out samples the share that is right and the mean loss; the mean training loss of all updates."""

    accuracy: float
    held_out_loss: float
    loss: float

    @property
    def score(self) -> float:
        """Held-out loss; infinite where training diverged."""
        return self.held_out_loss if math.isfinite(self.held_out_loss + self.loss) else math.inf


Found = Mapping[Run, Measured]


def measured(run: Run) -> Measured:
    """Trains."""
    task = SMALL[run.task]
    (method,) = (m for m in methods(task.stages) if m.name == run.method)
    ((optimizer, _),) = task.rates
    outcome = trained(task, optimizer, method, run.seed, run.rate)
    return Measured(outcome.accuracy, outcome.held_out_loss, statistics.fmean(outcome.losses))


def wanted(chosen: argparse.Namespace) -> list[Run]:
    """Every run that the command line asks for."""
    found = []
    for task in chosen.tasks:
        ((_, rate),) = SMALL[task].rates
        for seed in range(chosen.seeds):
            rates = [float(f"{rate * factor:.2g}") for factor in chosen.factors]
            found += [Run(task, method, each, seed) for each in rates for method in METHODS]
    return found


def all_measured(runs: Sequence[Run], kept: Path, workers: int) -> dict[Run, Measured]:
    """The outcomes of these runs; those that are kept are not trained again."""
    found = load(kept)
    left = [run for run in runs if run not in found]
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        waiting = {pool.submit(measured, run): run for run in left}
        for number, done in enumerate(as_completed(waiting), 1):
            run = waiting[done]
            found[run] = done.result()
            kept.write_text(json.dumps([asdict(run) | asdict(outcome) for run, outcome in found.items()]))
            print(f"{number}/{len(left)} {run}: {found[run].accuracy:.3f}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted: the table has what is done", file=sys.stderr)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {run: found[run] for run in runs if run in found}


def load(path: Path) -> dict[Run, Measured]:
    """What was kept; nothing where there is no file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())
    return {
        Run(row["task"], row["method"], row["rate"], row["seed"]): Measured(
            row["accuracy"], row["held_out_loss"], row["loss"]
        )
        for row in rows
    }


# ------------------------------------------------------------------ the table


def by_rate(found: Found, task: str, method: str) -> dict[float, dict[int, Measured]]:
    """Outcomes of one method on one task: rate, then seed."""
    rates: dict[float, dict[int, Measured]] = {}
    for run, outcome in found.items():
        if (run.task, run.method) == (task, method):
            rates.setdefault(run.rate, {})[run.seed] = outcome
    return rates


def best_rate(rates: Mapping[float, Mapping[int, Measured]]) -> float:
    """The rate with the least mean score over seeds; the lowest where every rate diverges."""
    return min(sorted(rates), key=lambda rate: statistics.fmean(each.score for each in rates[rate].values()))


def rows(found: Found) -> list[list[str]]:
    """A row for every task and method."""
    made = []
    for task in dict.fromkeys(run.task for run in found):
        same = best_rate(by_rate(found, task, REFERENCE))
        rival = by_rate(found, task, RIVAL)
        for method in METHODS:
            rates = by_rate(found, task, method)
            own = best_rate(rates)
            best, here = rates[own], rates[same]
            wins = "" if method == RIVAL else f"{_wins(best, rival[best_rate(rival)])}, {_wins(here, rival[same])}"
            loss = str(_spread(best, "loss"))
            made.append([f"{task}, {method}", f"{own:g}", *_spreads(best), loss, f"{same:g}", *_spreads(here), wins])
    return made


def _wins(one: Mapping[int, Measured], other: Mapping[int, Measured]) -> str:
    """Of how many seeds the first has the smaller held-out loss."""
    seeds = one.keys() & other.keys()
    return f"{sum(one[seed].score < other[seed].score for seed in seeds)} of {len(seeds)}"


def _spread(by_seed: Mapping[int, Measured], name: str) -> Spread:
    return Spread.of([getattr(each, name) if math.isfinite(each.score) else math.nan for each in by_seed.values()])


def _spreads(by_seed: Mapping[int, Measured]) -> list[str]:
    return [str(_spread(by_seed, name)) for name in ("accuracy", "held_out_loss")]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=sorted(SMALL), default=list(SMALL))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--factors", type=float, nargs="+", default=[1 / 3, 1, 3], help="of the task's rate")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("rates-runs.json"), metavar="FILE")
    savable(parser)
    return parser.parse_args()


def main() -> int:
    """Trains and prints the table."""
    chosen = arguments()
    begun = origin()
    runs = wanted(chosen)
    found = all_measured(runs, chosen.runs, chosen.workers)
    made = Table.made(begun, COLUMNS, rows(found))
    print(made.markdown())
    if chosen.save:
        made.save("convergence/rates")
    return 0 if len(found) == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
