"""What plan() is asked for: bad input is refused here, before anything is searched."""

from __future__ import annotations

import math
from dataclasses import replace

from ..basics import (
    MOST_COUNTED_BYTES,
    MOST_SEARCHED_LAYERS,
    MOST_SEARCHED_PASSES,
    InputError,
    ModelError,
    WorkloadError,
)
from ..plan import Plan, Problem
from ..problem import PRESETS, Cluster, ModelGraph, SearchSpace, Workload
from ..schedules import ASYNCHRONOUS, SCHEDULES, WEIGHTS, known, spelled_out
from .named import splits


def asked_for(
    model: ModelGraph, cluster: Cluster, workload: Workload, space: SearchSpace
) -> tuple[Problem, SearchSpace]:
    """The problem, and the space with the replicas that its schedule's name says. Raises InputError."""
    space = _spelled_out(space)
    _validate(model, cluster, workload, space)
    problem = Problem(model, cluster, replace(workload, sharded=False, groups=1))
    _validate_replicas(problem, space)
    return problem, space


def _validate(model: object, cluster: object, workload: object, space: object) -> None:
    for value, kind in ((model, ModelGraph), (cluster, Cluster), (workload, Workload), (space, SearchSpace)):
        if not isinstance(value, kind):
            raise InputError(f"expected a {kind.__name__}, got {type(value).__name__}")
    assert isinstance(model, ModelGraph)
    assert isinstance(cluster, Cluster)
    assert isinstance(space, SearchSpace)
    _validate_sizes(model, workload)
    _validate_counts(model, cluster, workload)
    if space.schedule != "search" and not known(space.schedule):
        names = ", ".join(["search", *SCHEDULES, *ASYNCHRONOUS])
        raise WorkloadError(f"unknown schedule {space.schedule!r}; known: {names}")
    if space.asynchronous and space.schedule not in ("search", *ASYNCHRONOUS):
        raise WorkloadError(f"schedule {space.schedule!r} has a flush; without one: {', '.join(ASYNCHRONOUS)}")
    weights = WEIGHTS.get(space.schedule)
    if space.asynchronous and weights is not None and weights not in space.asynchronous:
        asked = ", ".join(space.asynchronous)
        raise WorkloadError(f"schedule {space.schedule!r} updates weights with {weights!r}, which is not {asked!r}")
    for device in cluster.devices:
        name = device.kind.name
        if model.device in PRESETS and PRESETS.get(name) == device.kind and name != model.device:
            raise ModelError(
                f"the model was measured on {model.device!r}, device {device.index} is {name!r}: no conversion exists"
            )


def _spelled_out(space: object) -> SearchSpace:
    """The space with the replicas that its schedule's name says."""
    if not isinstance(space, SearchSpace):
        raise InputError(f"expected a SearchSpace, got {type(space).__name__}")
    name, replicas = spelled_out(space.schedule)
    return space if replicas is None else replace(space, schedule=name, replicas=replicas)


def _validate_replicas(problem: Problem, space: SearchSpace) -> None:
    if (space.replicas or 1) == 1:
        return
    if space.asynchronous or space.schedule in ASYNCHRONOUS:
        raise WorkloadError("the search without a flush chooses replicas itself")
    if not any(splits(problem, space)):
        raise WorkloadError(f"{len(problem.cluster)} devices do not form {space.replicas} equal groups")


def _validate_sizes(model: ModelGraph, workload: object) -> None:
    """Bytes are added up in 64-bit integers: parameters with all their state, and all stashes and messages."""
    assert isinstance(workload, Workload)
    total = sum(
        x.parameter_bytes * 16
        + workload.micro_batches
        * (x.stash_bytes + x.weight_stash_bytes + 4 * x.output_bytes + (x.input_bytes or 0) + 2 * x.buffer_bytes)
        + x.workspace_bytes
        for x in model.layers
    )
    if total >= MOST_COUNTED_BYTES:
        raise ModelError(
            f"model {model.name!r}: a step moves {total:.3g} bytes in all; at most {MOST_COUNTED_BYTES:.3g} are counted"
        )


def _validate_counts(model: ModelGraph, cluster: Cluster, workload: object) -> None:
    """Refuses what would fill memory before a first plan is made."""
    assert isinstance(workload, Workload)
    layers, stages = len(model.layers), min(len(model.layers), len(cluster))
    if layers > MOST_SEARCHED_LAYERS:
        raise ModelError(
            f"model {model.name!r} has {layers} layers; at most {MOST_SEARCHED_LAYERS} are cut into stages"
        )
    passes = stages * workload.micro_batches
    if passes > MOST_SEARCHED_PASSES:
        raise WorkloadError(
            f"{workload.micro_batches} micro-batches through {stages} stages are {passes} forward passes; "
            f"at most {MOST_SEARCHED_PASSES} are planned"
        )


def check_effort(time_limit: object, seed: object, workers: object, deterministic_limit: object, hint: object) -> None:
    """Raises InputError where a search cannot be made with these."""
    _number("time limit", time_limit)
    if deterministic_limit is not None:
        _number("deterministic limit", deterministic_limit)
    for name, value, least in (("seed", seed, 0), ("workers", workers, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise WorkloadError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if hint is not None and not isinstance(hint, Plan):
        raise InputError(f"hint must be a Plan, got {type(hint).__name__}")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise WorkloadError(f"{name} must be a finite number of seconds, at least 0, got {value!r}")
