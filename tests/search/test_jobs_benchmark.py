"""The benchmark of whole jobs: grids are left out only where they cannot win, and what is lost is told."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from contraflow.planner import Cluster, Layer, Link, ModelFamily, ModelGraph, Workload, check

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
cases: Any = importlib.import_module("jobs_cases")
grid: Any = importlib.import_module("jobs_grid")
jobs: Any = importlib.import_module("jobs")


def family(teams: tuple[int, ...] = (1, 2)) -> ModelFamily:
    """Six unequal layers, whose teams of two are not twice as fast."""
    members = []
    for team in teams:
        for size in (1, 2):
            layers = [
                Layer(
                    f"l{k}", size * (1 + k % 3) / team**0.8, 2 * size / team**0.8, separable=False,
                    stash_bytes=100 * size, output_bytes=10 * size, parameter_bytes=200 // team, input_bytes=10 * size,
                )
                for k in range(6)
            ]  # fmt: skip
            ways = (("tensor", team),) if team > 1 else ()
            members.append(ModelGraph.chain(layers, micro_batch_size=size, ways=ways))
    return ModelFamily(tuple(members))


def job(memory: int) -> Any:
    """Eight samples on four devices."""
    costs = cases.Costs("chain", "custom", "fp32", "1,2", "1,2", "")
    return cases.Job("a chain", costs, Cluster.uniform(4, memory, Link(100.0, 0.01)), 8, Workload(1, "adam"))


def test_grids_that_are_left_out_take_longer_or_do_not_fit() -> None:
    memory = 2600
    best = grid.best_grid(job(memory), [family()])
    assert best.plan is not None
    assert not check(best.plan)
    steps, points = [], 0
    for one in grid.grids(family(), job(memory)):
        alone = grid.Winner()
        grid.tried(one, job(memory), True, alone)
        points += 1
        steps.append(alone.seconds)
        assert alone.seconds >= one.least_s * (1 - 1e-9)
    assert best.seconds == min(steps) < math.inf
    assert best.simulated < best.points == points


def test_cuts_of_least_load_are_those() -> None:
    works = [3.0, 1.0, 1.0, 2.0, 2.0]
    assert grid.cut(works, [1.0, 1.0]) in ([0, 2, 5], [0, 3, 5])
    assert grid.cut(works, [2.0, 1.0]) == [0, 4, 5]
    assert grid.cut(works, [1.0] * 5) == [0, 1, 2, 3, 4, 5]


def test_costs_that_are_kept_are_those_of_the_command() -> None:
    """Times and bytes of a committed file, and what would be typed for it."""
    found = next(one for one in cases.table() if one.file == "bert-large")
    assert found.family("half").sizes(()) == (1, 2, 4, 8)
    assert len(found.family("half", "block").members[0].layers) < len(found.family("half").members[0].layers)
    assert "--efficiency 0.5 --layers parts" in found.costs.command("half", "parts")
    assert "--efficiency" not in found.costs.command("kernels", "parts")
    files = [one.path(sort, layers) for one in cases.table() for sort in cases.SORTS for layers in cases.LAYERS]
    assert all(path.exists() for path in files)


def test_a_jobs_row_is_made_of_its_runs_and_losses_are_told() -> None:
    match = jobs.Match(replace(job(10_000), grid_s=1.0), "half", 0.5, 0)
    match.__dict__.update(parts=family(), blocks=family())
    players = match.players()
    assert {"joint", "grid", "plain grid", "no teams", "no sizes", "no sharing", "no recompute"} < set(players)
    grid_s = float(players["grid"]().cells[jobs.SECONDS])
    found = {"joint": (grid_s, grid_s / 2), "no teams": (2 * grid_s, grid_s), "no split": (grid_s / 0.9, grid_s / 2)}
    runs = {who: jobs.Run(f"{match.name}: {who}", *figures).cells for who, figures in found.items()}
    row = dict(zip(jobs.TABLE, jobs.line(match, runs), strict=True))
    assert (row["which"], row["plan() over it"], row["plan(), s"]) == ("no split", "0.9000", f"{grid_s:.6g}")
    assert not list(jobs.losses(match.name, runs))
    runs["grid"] = jobs.Run("", 0.4 * grid_s).cells
    assert len([text for text in jobs.losses(match.name, runs) if "to the grid" in text or "above grid" in text]) == 2


def test_random_jobs_are_the_same_every_time() -> None:
    assert [one.name for one in cases.drawn(7, 5)] == [one.name for one in cases.drawn(7, 5)]
    assert len({one.name for one in cases.drawn(7, 20)}) == 20
