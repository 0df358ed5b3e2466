"""Optuna over micro-batch size, memory and recomputation: samples a second, and what does not fit as a constraint.

    pip install "contraflow[examples]"
    python examples/tune_optuna.py --trials 30

A trial is a plan of a twentieth of a second. One that does not fit says how many bytes are missing; where the time was
too short for a first plan it is pruned.
"""

from __future__ import annotations

import argparse

import optuna

from contraflow.planner import Cluster, Layer, ModelFamily, ModelGraph, SearchSpace, Shortage, Workload, plan

SAMPLES = 64
"""Of a step."""
MIB = 2**20


def family() -> ModelFamily:
    """Eight layers measured with one and with eight samples a micro-batch; yours come from `contraflow profile`."""

    def member(size: int) -> ModelGraph:
        layers = [
            Layer(
                f"block{k}", 1e-3 * (2 + size), 1e-3 * (2 + size), 1e-3 * (1 + size), parameter_bytes=64 * MIB,
                stash_bytes=24 * MIB * size, weight_stash_bytes=12 * MIB * size, output_bytes=MIB * size,
            )
            for k in range(8)
        ]  # fmt: skip
        return ModelGraph.chain(layers, micro_batch_size=size)

    return ModelFamily((member(1), member(8)))


def objective(trial: optuna.Trial) -> float:
    """Samples a second of the best plan in a twentieth of a second."""
    size = 2 ** trial.suggest_int("micro-batch size, log2", 0, 3)
    memory = trial.suggest_int("memory, 256 MiB", 1, 8) * 256 * MIB
    space = SearchSpace(recompute=trial.suggest_categorical("recompute", [False, True]), offload=False)
    model = family().rescale(size)
    found = plan(model, Cluster.uniform(4, memory), Workload(SAMPLES // size), space, time_limit=0.05, bound=False)
    short = [lack.over_bytes for lack in found.violations if isinstance(lack, Shortage)]
    trial.set_user_attr("missing bytes", max(short, default=0))
    if found.seconds is None and not short:
        raise optuna.TrialPruned(found.status)
    return SAMPLES / found.seconds if found.seconds else 0.0


def missing(trial: optuna.trial.FrozenTrial) -> list[float]:
    """Above zero where the plan does not fit."""
    return [float(trial.user_attrs.get("missing bytes", 0))]


def study(trials: int, seed: int = 0) -> optuna.Study:
    """The best of so many trials."""
    sampler = optuna.samplers.TPESampler(seed=seed, constraints_func=missing)
    made = optuna.create_study(direction="maximize", sampler=sampler)
    made.optimize(objective, n_trials=trials)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    best = study(parser.parse_args().trials).best_trial
    print(f"{best.value:.1f} samples a second: {best.params}")
