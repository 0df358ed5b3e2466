"""What the compiled timetable reads and writes: layers on a cluster, decisions, and scratch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

END, FRONT, REAR, POLICY, BACK_FIRST, HALVED = range(6)
"""Rows of decisions, by stage: behind which layer it ends, its forward's and its backward's device, what becomes of its
stashes, whether its backward chooses its time before its forward does, and whether that, where it can be, is two ops:
the gradient of its input, which others wait for, then those of its parameters."""
ROWS = 6
ONE, CURRENT, ENTRY, BATCH = range(4)
"""Versions of weights that passes of a stage take: one; what its forwards find; what the first stage's find; what these
find at the begin of an update.
"""
KEEP, LATE, RECOMPUTE, HOST = range(4)
"""What becomes of a stash. Where its backward runs on another device, KEEP sends it at once, LATE when it is needed, or
a share of its wait before."""
AHEAD, BEHIND, EARLY = range(3)
"""Rows of slack, by stage: periods by which a forward, and a backward, lies further out than it must; that share."""
CLOSED = -1.0
"""In their place: further out as far as the op beside it, so that no gap is left."""

FORWARD, BACKWARD, SENT, SENDING, RECEIVING, LEFT, FETCHED, FETCHING, RETURNED, RETURNING, WEIGHTS = range(11)
"""Rows of times, by stage, in seconds: when a micro-batch's forward begins, and its backward, with what it recomputes;
when its stash begins its way to its backward's device, when the ops began that its forward's device and this run then,
and when it has left;
when one begins to come back from the host, and when that op began; when new parameters begin their way to the forward's
device, and when that asks for them, behind a forward of the stage that runs then; when the gradients of a stage's
parameters begin, behind that of its input, not a number where they are one op."""
TIMES = 11


class Case(NamedTuple):
    """Layers on a cluster, for one weight policy. Sums are of the layers before each cut.

    forward, backward, inputs [cuts]: seconds at speed 1, of the gradients of inputs alone; whole [cuts]: layers whose
    backward is one op, of which all are where halves is 0; around [cuts, cuts]: of a pass of an interval of layers
    beside them. step, predict [devices, cuts]: seconds a micro-batch of STEPs, and of what forwards predict. stash,
    owned, lent, trained [cuts]: bytes of a stash; that stay where a backward runs, and where only a forward does; of
    parameters that are trained; unstashed: what is taken off a stash for a stage that begins there. boundary [cuts]:
    bytes over each cut. work, incoming, inner [cuts, cuts]: bytes of intervals of layers: workspace, what recomputation
    keeps, the largest tensor inside.
    By device: speed, limit (bytes), node, host (number of its link), host_pace, host_lag (seconds a byte, latency).
    pace, lag [devices, devices]: the same of links. update: micro-batches. versions: ONE, CURRENT, ENTRY or
    BATCH. predicts: 0 or 1. apart: most periods between the first and the last pass of a device.
    """

    forward: Floats
    backward: Floats
    inputs: Floats
    whole: Floats
    around: Floats
    step: Floats
    predict: Floats
    stash: Floats
    unstashed: Floats
    owned: Floats
    lent: Floats
    trained: Floats
    boundary: Floats
    work: Floats
    incoming: Floats
    inner: Floats
    speed: Floats
    limit: Floats
    node: Ints
    host: Ints
    host_pace: Floats
    host_lag: Floats
    pace: Floats
    lag: Floats
    update: int
    versions: int
    predicts: int
    halves: int
    apart: float


class Work(NamedTuple):
    """Scratch of one thread.

    lasts [F, B with R, R, B with R until others have its gradient; stages], starts [F, B with R; stages], copied [to
    the host, from it; stages], sent, left [stages]: seconds. listed [stages]: when what leaves is posted. asked,
    posted: when what comes back from the host is, because of what leaves there, and of what comes back after it, too.
    busy [begin, end; devices and both directions of every host link, many]: sorted within a period; held: how many, by
    device; wrapped: when the op began, before 0, that ends in this period. frees [devices, stages]: when, within a
    period, a device waits until a stash has left; freed: how many.
    spans [device, begin, end, bytes; many]: what is held; noted: how many. times, sizes [devices, many]: changes of
    memory within a period; changes: how many. base: bytes all the time. load: seconds a micro-batch of devices;
    copies: of what the host takes and gives; link, nic: of messages, and of the longest stash or parameters.
    """

    lasts: Floats
    starts: Floats
    copied: Floats
    sent: Floats
    left: Floats
    listed: Floats
    asked: Floats
    posted: Floats
    busy: Floats
    held: Ints
    wrapped: Floats
    frees: Floats
    freed: Ints
    times: Floats
    sizes: Floats
    changes: Ints
    spans: Floats
    noted: Ints
    base: Floats
    load: Floats
    link: Floats
    nic: Floats
    copies: Floats


def scratch(case: Case, stages: int) -> Work:
    """Scratch space for a case and so many stages at most."""
    devices, hosts = len(case.speed), int(case.host.max()) + 1
    lines = devices + 2 * hosts
    return Work(
        lasts=np.zeros((4, stages)),
        starts=np.zeros((2, stages)),
        copied=np.zeros((2, stages)),
        sent=np.zeros(stages),
        left=np.zeros(stages),
        listed=np.zeros(stages),
        asked=np.zeros(stages),
        posted=np.zeros(stages),
        busy=np.zeros((2, lines, 4 * stages + 2)),
        held=np.zeros(lines, dtype=np.int64),
        times=np.zeros((devices, 32 * stages)),
        sizes=np.zeros((devices, 32 * stages)),
        changes=np.zeros(devices, dtype=np.int64),
        wrapped=np.zeros(lines),
        frees=np.zeros((devices, stages)),
        freed=np.zeros(devices, dtype=np.int64),
        spans=np.zeros((4, 16 * stages)),
        noted=np.zeros(1, dtype=np.int64),
        base=np.zeros(devices),
        load=np.zeros(devices),
        link=np.zeros((2, devices, devices)),
        nic=np.zeros((4, devices)),
        copies=np.zeros((2, hosts)),
    )
