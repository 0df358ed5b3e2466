"""Tables and the plot of the convergence benchmark, from its outcomes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convergence_runs import Outcome, Run
from tables import Origin, Table

SMOOTHED = 25
"""Updates that a point of the plot is the mean of."""
HIGHEST = 1.5
"""Of the first loss: what rises further leaves the plot."""
REFERENCE, RIVAL = "synchronous", "pipeoptim"
"""What all methods are compared with, seed by seed."""
_HEAD = ["method", "updates", "held-out accuracy", "mean training loss", f"above {REFERENCE}", f"above {RIVAL}",
         "last tenth"]  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation (0 of one seed)."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value a seed; not finite where one of them is not."""
        if not all(map(math.isfinite, values)):
            return cls(math.nan, math.nan)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "diverged"
        return f"{self.mean:.3f} +- {self.deviation:.3f}"


@dataclass(frozen=True)
class Row:
    """One method on one task with one optimizer, over all seeds.

    Attributes:
        loss: mean training loss over all updates.
        gap: loss minus the synchronous run's, seed by seed.
        behind: loss minus PipeOptim's, seed by seed.
        late: mean training loss over the last tenth of the updates.
    """

    task: str
    optimizer: str
    method: str
    updates: int
    accuracy: Spread
    loss: Spread
    gap: Spread | None
    behind: Spread | None
    late: Spread


def rows(found: Mapping[Run, Outcome]) -> list[Row]:
    """A row for every task, optimizer and method, in the order in which they come."""
    groups: dict[tuple[str, str, str], dict[int, Outcome]] = {}
    for run, outcome in found.items():
        groups.setdefault((run.task, run.optimizer, run.method.name), {})[run.seed] = outcome
    made = []
    for (task, optimizer, method), by_seed in groups.items():
        means = {seed: statistics.fmean(outcome.losses) for seed, outcome in by_seed.items()}
        losses = [outcome.losses for outcome in by_seed.values()]
        late = [statistics.fmean(each[-max(1, len(each) // 10) :]) for each in losses]
        accuracy = [outcome.accuracy for outcome in by_seed.values()]
        gap, behind = (_above(groups.get((task, optimizer, name), {}), means) for name in (REFERENCE, RIVAL))
        spreads = Spread.of(accuracy), Spread.of([*means.values()]), gap, behind, Spread.of(late)
        made.append(Row(task, optimizer, method, len(losses[0]), *spreads))
    return made


def _above(base: Mapping[int, Outcome], means: Mapping[int, float]) -> Spread | None:
    """Differences of mean losses to runs of the same seeds; None where there are none."""
    found = [means[seed] - statistics.fmean(base[seed].losses) for seed in means if seed in base]
    return Spread.of(found) if found else None


def tables(found: Mapping[Run, Outcome], made: Origin) -> dict[str, Table]:
    """One table for each task and optimizer, by them and the number of seeds."""
    parts: dict[str, list[Row]] = {}
    for row in rows(found):
        seeds = {run.seed for run in found if (run.task, run.optimizer) == (row.task, row.optimizer)}
        parts.setdefault(f"{row.task}-{row.optimizer}-{len(seeds)}", []).append(row)
    return {name: Table.made(made, _HEAD, [_cells(row) for row in part]) for name, part in parts.items()}


def _cells(row: Row) -> list[str]:
    gap = "" if row.gap is None or row.method == REFERENCE else row.gap
    behind = "" if row.behind is None or row.method == RIVAL else row.behind
    return [*map(str, (row.method, row.updates, row.accuracy, row.loss, gap, behind, row.late))]


def plot(found: Mapping[Run, Outcome], path: Path) -> None:
    """Training loss over samples seen, a panel for each task and optimizer, mean of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((run.task, run.optimizer) for run in found))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.5), squeeze=False)
    for axis, (task, optimizer) in zip(axes[0], panels, strict=True):
        here = {run: outcome for run, outcome in found.items() if (run.task, run.optimizer) == (task, optimizer)}
        for name in dict.fromkeys(run.method.name for run in here):
            each = [outcome.losses for run, outcome in here.items() if run.method.name == name]
            mean = [statistics.fmean(step) for step in zip(*each, strict=True)]
            smooth = [statistics.fmean(mean[max(0, k - SMOOTHED) : k + 1]) for k in range(len(mean))]
            share = [(k + 1) / len(mean) for k in range(len(mean))]
            axis.plot(share, smooth, label=name, linewidth=2.2 if name == REFERENCE else 1.3)
        axis.set_title(f"{task}, {optimizer}")
        axis.set_xlabel("share of the samples seen")
        axis.set_ylabel(f"training loss (mean of {SMOOTHED} updates)")
        axis.set_ylim(0, HIGHEST * max(outcome.losses[0] for outcome in here.values()))
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
