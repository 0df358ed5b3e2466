"""What the compiled block search reads and writes: costs of the passes of every pipeline, and scratch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Case(NamedTuple):
    """Pipelines on devices. The ops of a pass: F of every stage, then I of every stage, the last stage's first.

    By op, pipeline after pipeline: device, forward (whether it is an F), takes, lag (seconds of the op, and of its
    message to the next op; -1 for the last op of a pass), held (bytes by which its device holds more after it), alive
    (the same without what waits for W), weight, later (of an I: seconds of its W, and bytes until then).

    room: bytes of a device. load: seconds of the busiest device for a micro-batch. batches: micro-batches of a
    pipeline. mine [pipelines, ops]: the ops of a pipeline by device, those of device d from first_mine[:, d] on.
    legs: where a pass turns: the first op of every part of its way, and the number of ops.
    """

    device: Ints
    forward: Flags
    takes: Floats
    lag: Floats
    held: Floats
    alive: Floats
    weight: Floats
    later: Floats
    room: Floats
    load: float
    batches: Ints
    mine: Ints
    first_mine: Ints
    legs: Ints


class Work(NamedTuple):
    """Scratch of one thread.

    begins [passes, ops]: when the ops of a block begin. at, late, code: when a device's ops begin in a period, in this
    order; after how many periods; and which they are. todo: the lists of F and I, device after device, from `first` on;
    done: what has run, with W (their I's number plus the number of ops), from `first_done` on; written: where a device
    writes next. runs: by op, how often it is listed, or has run; arrive [ops, micro-batches]: when its input is there.
    waiting [devices, many]: I whose W have not run, from `taken` to `asked`. clock, wake, held, alive, head: by device;
    left: seconds of what has not run. ends, owed: when micro-batches have left, and seconds of all W that waited then;
    owing: of those that do. looked, look: which ops have been looked at.
    """

    begins: Floats
    at: Floats
    late: Floats
    code: Ints
    todo: Ints
    first: Ints
    done: Ints
    first_done: Ints
    written: Ints
    runs: Ints
    arrive: Floats
    waiting: Ints
    taken: Ints
    asked: Ints
    clock: Floats
    wake: Floats
    held: Floats
    alive: Floats
    head: Ints
    left: Floats
    ends: Floats
    owed: Floats
    owing: Floats
    looked: Ints
    look: Ints


def scratch(case: Case, passes: int) -> Work:
    """Scratch for blocks of so many passes."""
    pipelines, count, devices = len(case.batches), len(case.takes), len(case.room)
    ops = count // pipelines
    most = int(np.diff(case.first_mine, axis=1).max())
    sizes = np.bincount(case.device, weights=np.repeat(case.batches, ops), minlength=devices).astype(np.int64)

    def numbers(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return Work(
        begins=np.zeros((passes, ops)),
        at=np.zeros(passes * most),
        late=np.zeros(passes * most),
        code=numbers(passes * most),
        todo=numbers(int(sizes.sum())),
        first=np.concatenate([[0], np.cumsum(sizes)]),
        done=numbers(int((sizes + sizes // 2).sum())),
        first_done=np.concatenate([[0], np.cumsum(sizes + sizes // 2)]),
        written=numbers(devices),
        runs=numbers(count),
        arrive=np.zeros((count, int(case.batches.max()) + 1)),
        waiting=numbers(devices, max(1, int(sizes.max()) // 2)),
        taken=numbers(devices),
        asked=numbers(devices),
        clock=np.zeros(devices),
        wake=np.zeros(devices),
        held=np.zeros(devices),
        alive=np.zeros(devices),
        head=numbers(devices),
        left=np.zeros(devices),
        ends=np.zeros(int(case.batches.max()) * pipelines),
        owed=np.zeros(int(case.batches.max()) * pipelines),
        owing=np.zeros(1),
        looked=numbers(count),
        look=numbers(1),
    )
