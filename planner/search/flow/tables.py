"""What the compiled timetable reads and writes: costs of the layers, links and devices, and scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...partition import Chain

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
INTERVALS = 4
"""Of a stage at the most: F, I and W, and one of them goes on in the next period."""


class Case(NamedTuple):
    """A chain of layers and the devices that its stages may be on.

    Sums over the layers before each cut [layers + 1]: forward, inputs, weights (seconds of F, I and W at speed 1),
    single (layers whose backward cannot be split), stash, pending (bytes that F leaves, and of these I), static (bytes
    that stay); unstashed, unpending: what is taken off for a stage that begins there. boundary: bytes across each cut;
    incoming: what a stage that begins there keeps where its stash is made again. around [layers + 1, layers + 1]:
    seconds at speed 1 that an F or a B of an interval takes beside its layers; aside: a W.

    speed, room [devices]: room has what workspace takes left out. lag, pace [devices, devices]: seconds of a message,
    and of each of its bytes. devices: those to be used. micro_batches: their number. remakes: whether stashes may be
    made again.
    """

    forward: Floats
    inputs: Floats
    weights: Floats
    single: Ints
    stash: Floats
    unstashed: Floats
    pending: Floats
    unpending: Floats
    static: Floats
    boundary: Floats
    incoming: Floats
    around: Floats
    aside: float
    speed: Floats
    room: Floats
    lag: Floats
    pace: Floats
    devices: Ints
    micro_batches: int
    remakes: bool


class Work(NamedTuple):
    """Scratch of one thread, by stage: F, I and W in seconds; bytes kept until its B begins, of a stash or of what it
    is made from again; stash, until I is done: what W waits with where that is more; pending, until W is; remake,
    hop (seconds from the stage before), back (and to it), following (the next stage on the same device, or -1).

    begins [2 * stages]: when F of every stage, then I, the last stage's first, begin; done [stages]: when W ends.
    By device: first (its first stage, or -1), load (seconds), bytes_s (bytes times the seconds they are held for), left
    (bytes of room), tensors (bytes of its messages). busy, held, wrapped: as in `jit/gaps.py`.
    """

    forward: Floats
    inputs: Floats
    weights: Floats
    stash: Floats
    pending: Floats
    kept: Floats
    remake: Floats
    hop: Floats
    back: Floats
    following: Ints
    begins: Floats
    done: Floats
    first: Ints
    load: Floats
    bytes_s: Floats
    left: Floats
    tensors: Floats
    busy: Floats
    held: Ints
    wrapped: Floats


def case_of(chain: Chain, devices: Sequence[int], split: bool, remakes: bool = False) -> Case:
    """Of a chain; split: whether backwards may be, remakes: whether stashes may be made again."""
    costs, cluster, count = chain.costs, chain.problem.cluster, len(chain.problem.cluster)
    can = np.array(costs.separable, dtype=np.bool_) & split
    weights = np.where(can, costs.backward_weight_s, 0.0)
    pending = chain.weight_stash(can)
    links = [[cluster.link(a, b) if a != b else None for b in range(count)] for a in range(count)]
    lag = [[0.0 if link is None else link.latency_s for link in row] for row in links]
    pace = [[0.0 if link is None else link.occupation_s(1) for link in row] for row in links]
    fed = costs.input_bytes.sum()
    workspace = float(max(costs.workspace_bytes.tolist(), default=0))
    return Case(
        forward=_sums(costs.forward_s),
        inputs=_sums(costs.backward_s - weights),
        weights=_sums(weights),
        single=_sums(~can).astype(np.int64),
        stash=chain.stash.ends,
        unstashed=chain.stash.begins,
        pending=pending.ends,
        unpending=pending.begins,
        static=_sums(chain.held_bytes(1)),
        boundary=chain.boundary_bytes.astype(np.float64),
        incoming=np.maximum(chain.boundary_bytes, np.where(np.arange(len(chain) + 1) == 0, fed, 0)).astype(np.float64),
        around=chain.around_s.astype(np.float64),
        aside=float(cluster.around.op_s),
        speed=np.array([chain.speed(d) for d in range(count)], dtype=np.float64),
        room=np.array([chain.limit(d) for d in range(count)], dtype=np.float64) - workspace,
        lag=np.array(lag, dtype=np.float64),
        pace=np.array(pace, dtype=np.float64),
        devices=np.array(sorted(set(devices)), dtype=np.int64),
        micro_batches=chain.problem.workload.micro_batches,
        remakes=remakes,
    )


def scratch(case: Case, stages: int) -> Work:
    """For timetables of so many stages."""
    count = len(case.room)
    return Work(
        forward=np.zeros(stages),
        inputs=np.zeros(stages),
        weights=np.zeros(stages),
        stash=np.zeros(stages),
        pending=np.zeros(stages),
        kept=np.zeros(stages),
        remake=np.zeros(stages),
        hop=np.zeros(stages),
        back=np.zeros(stages),
        following=np.zeros(stages, dtype=np.int64),
        begins=np.zeros(2 * stages),
        done=np.zeros(stages),
        first=np.zeros(count, dtype=np.int64),
        load=np.zeros(count),
        bytes_s=np.zeros(count),
        left=np.zeros(count),
        tensors=np.zeros(count),
        busy=np.zeros((2, count, INTERVALS * stages + 2)),
        held=np.zeros(count, dtype=np.int64),
        wrapped=np.zeros(count),
    )


def _sums(values: NDArray[np.generic]) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values.astype(np.float64))])
