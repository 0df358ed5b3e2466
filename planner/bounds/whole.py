"""Bounds that hold for every plan of a problem: all work, and the longest path."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..basics import PerCall
from ..partition import Chain, Floats
from ..plan import Problem


def load(problem: Problem, split: bool = True) -> float:
    """Valid for every plan: all F and B of all layers and micro-batches, spread over all speeds, in halves or not.

    Device d works off at most step_s * speed_d seconds of layer time, the devices of a node as much as its cores do,
    and all of it must be worked off; every micro-batch has an F and a B, with what they cost beside their layers.
    """
    work = sum(layer.forward_s + layer.backward_s for layer in problem.model.layers) + _least_around(problem)
    return problem.workload.micro_batches * work / problem.cluster.whole_speed


def work(problem: Problem, split: bool = True) -> float:
    """Valid for every plan: its load, and the optimizer steps of all parameters, spread over all speeds.

    A trained parameter is updated at least once, by one of the devices that hold it or in parts by all of them; a STEP
    runs in line and takes the bytes that it reads and writes over the device's memory bandwidth.
    """
    return load(problem, split) + update_work(problem) / problem.cluster.whole_speed


def update_work(problem: Problem) -> float:
    """Seconds at speed 1 that the optimizer steps of all parameters take devices at the least, by any of them."""
    chain, workload = Chain.of(problem), problem.workload
    trained = int(chain.costs.own_trained_bytes.sum()) + sum(tie.trained_bytes for tie in chain.costs.ties)
    kinds = {device.kind for device in problem.cluster.devices}
    least = min(0.0 if kind.memory_bandwidth is None else kind.speed / kind.memory_bandwidth for kind in kinds)
    return workload.step_traffic_bytes(trained) / workload.parts(1) * least


def critical_path(problem: Problem, split: bool = True) -> float:
    """Valid for every plan: one micro-batch takes the longest path forward and back at the highest speed.

    With `split` backwards the path back is that of I alone, and a W follows the last I of the path.
    """
    chain = Chain.of(problem)
    before, own, weight = _ancestors(chain, split)
    fastest = max(device.kind.speed for device in problem.cluster.devices)
    return (float((before + own + weight).max()) + _least_around(problem)) / fastest


def _least_around(problem: Problem) -> float:
    """Seconds at speed 1 that a micro-batch's ops cost beside their layers at the least: an F and a B or I."""
    return 2 * problem.cluster.around.op_s


EVERY_PLAN: list[Callable[[Problem, bool], float]] = [work, critical_path]
"""Bounds in seconds that hold for every plan of a problem, with split backwards or without: a new one is a row."""


def any_plan(problem: Problem, split: bool = True) -> float:
    """The largest of the bounds that hold for every plan, whatever its stages, pipelines, devices and stashes."""
    return _known.get(problem, split, lambda: max(bound(problem, split) for bound in EVERY_PLAN))


_known: PerCall[float] = PerCall()


def _ancestors(chain: Chain, split: bool) -> tuple[Floats, Floats, Floats]:
    """Per layer: seconds on the heaviest path of layers into it (itself left out), its own, and a W at the end.

    A path counts F and B, or with `split` F and I of separable layers; the W then is that of the path's first
    layer, whose I is the last of the path.
    """
    costs = chain.costs
    halves = np.array(costs.separable, dtype=bool) & split
    own = costs.forward_s + np.where(halves, costs.backward_input_s, costs.backward_s)
    weight = np.where(halves, costs.backward_weight_s, 0.0)
    before, last = np.zeros(len(chain)), weight.copy()
    for producer, consumer, _ in costs.edges:
        path = before[producer] + own[producer] + last[producer]
        if path > before[consumer] + last[consumer]:
            before[consumer], last[consumer] = before[producer] + own[producer], last[producer]
    return before, own, last
