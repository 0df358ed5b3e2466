"""How well every weight policy trains: the same seeds, samples and learning rates for all; a table and a plot.

Runs are emulated in one process each (`executor.emulation`), which the executor equals float by float.

    python benchmarks/convergence.py                                  mlp-fashion, three optimizers, 3 seeds
    python benchmarks/convergence.py --tasks vgg-tiny lstm-reviews gnmt-tiny --optimizers adam
    python benchmarks/convergence.py --methods synchronous pipeoptim stash --seeds 5 --plot losses.png

Data comes from packages (docs/models.md). Finished runs are kept in --json and not trained again; Ctrl-C keeps them.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from convergence_report import plot, tables
from convergence_runs import TASKS, Method, Outcome, Run, methods, train
from tables import origin, savable


def wanted(chosen: argparse.Namespace) -> list[Run]:
    """Every run that the command line asks for."""
    found = []
    for name in chosen.tasks:
        rates = dict(TASKS[name].rates)
        for optimizer in [key for key in chosen.optimizers if key in rates]:
            for method in methods(TASKS[name].stages):
                if chosen.methods is None or method.name in chosen.methods:
                    found += [Run(name, optimizer, method, seed) for seed in range(chosen.seeds)]
    return found


def measured(runs: list[Run], known: dict[Run, Outcome], workers: int, kept: Path | None) -> dict[Run, Outcome]:
    """The outcomes, those that are known among them; the others are trained side by side."""
    found = dict(known)
    left = [run for run in runs if run not in found]
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        waiting: dict[Future[Outcome], Run] = {pool.submit(train, run): run for run in left}
        for number, done in enumerate(as_completed(waiting), 1):
            run, outcome = waiting[done], done.result()
            found[run] = outcome
            save(found, kept)
            text = f"{run.task} {run.optimizer} {run.method.name} seed {run.seed}: accuracy {outcome.accuracy:.3f}"
            print(f"{number}/{len(left)} {text}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted: the table has what is done", file=sys.stderr)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {run: found[run] for run in runs if run in found}


def save(found: dict[Run, Outcome], path: Path | None) -> None:
    """All outcomes as JSON."""
    if path is not None:
        content = [asdict(run) | asdict(outcome) for run, outcome in found.items()]
        path.write_text(json.dumps(content))


def load(path: Path | None) -> dict[Run, Outcome]:
    """What `save` wrote; nothing where there is no file."""
    if path is None or not path.exists():
        return {}
    found = {}
    for row in json.loads(path.read_text()):
        run = Run(row["task"], row["optimizer"], Method(**row["method"]), row["seed"])
        found[run] = Outcome(tuple(row["losses"]), row["accuracy"], row["held_out_loss"])
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=sorted(TASKS), default=["mlp-fashion"])
    parser.add_argument("--optimizers", nargs="+", default=["adam", "adamw", "momentum"])
    parser.add_argument("--methods", nargs="+", help="of: " + ", ".join(m.name for m in methods(1)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps every run there, and takes known ones from it")
    savable(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG or SVG (needs matplotlib)")
    return parser.parse_args()


def main() -> int:
    """Trains, prints the table, draws the plot."""
    chosen, made = arguments(), origin()
    runs = wanted(chosen)
    found = measured(runs, load(chosen.json), chosen.workers, chosen.json)
    for name, table in tables(found, made).items():
        print(f"{name}\n\n{table.text()}\n")
        if chosen.save:
            table.save(f"convergence/{name}")
    if chosen.plot is not None and found:
        plot(found, chosen.plot)
    return 0 if len(found) == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
