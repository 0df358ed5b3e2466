"""What the dispatcher reads and writes: decisions, the stages of a case, and scratch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

F, B, W, R, SEND, RECEIVE, FETCH, FREE = range(8)
"""Codes of entries in a list. B is the whole backward, or its input half; SEND and RECEIVE are of stashes."""
STAGE_AT, BATCH_AT, DEVICE_AT = 3, 19, 43
"""Bits of a code where its stage begins, its micro-batch, and its device plus one; its kind stands before them."""
STAGES, BATCHES = (1 << BATCH_AT - STAGE_AT) - 1, (1 << DEVICE_AT - BATCH_AT) - 1
"""The most that these may say."""
REMADE_F, HALF = 4, 5
"""Rows of `Case.seconds`, `take` and `drop` beside F, B, W and R: a forward that leaves no stash, and an I."""
TYPES = 6
KEEP, RECOMPUTE, HOST, AWAY = range(4)
"""What becomes of a stash; one that is kept crosses where its backward runs on another device."""
FRONT, REAR, POLICY, TARGET, TURNS, CAP, WINDOW, AHEAD, HALVES = range(9)
"""Rows of decisions, by stage. FRONT, REAR: devices. TURNS: bits of the micro-batches (by number modulo QUARTERS) that
have the policy, the others keep; TARGET: where they are shipped. CAP: most forwards without their backward, or, where
that runs elsewhere, whose stash has not left. WINDOW: a stash moves to its backward's device at most so many backwards
ahead of its own, and, unless AHEAD is 0, not before the backward of its micro-batch begins so many stages later.
HALVES: 1 where the backward is split."""
ROWS = 9
QUARTERS = 4

HELD, SINCE, OVER, MOST, RUNNING, GONE_FIRST, GONE_LAST, GONE_BYTES, UNITS, LOGGED, LOOK = range(11)
"""Rows of `Work.device`: bytes held, and the most since its last op ended; bytes over its limit, and that limit; the op
that runs; stashes that have left and are not freed: a queue and its bytes; how many stages it has; length of
its list; whether something has happened that may let an op start."""
FINISH, LOAD, OUT, IN, COPIED_OUT, COPIED_IN = range(6)
"""Rows of `Work.clock`: when the op that runs ends, seconds of work left, and when its NIC and its copies are done."""
BEGUN, DONE, HOP, REFUSED, FREED, LEFT, WAITING = 0, 4, 8, 10, 12, 13, 14
"""Rows of `Work.stage`: ops begun and ended by kind, micro-batches whose stash goes out and comes back next, whether
there is no room for it, stashes freed, stashes that have left, and how many wait to go out and to come back."""
STATE = 2
"""Row of `Work.cell`: state of a stash; before it, tensors known of the forward and of the backward."""
NOTHING, MADE, GOING, THERE, COMING, USABLE, REMADE = range(7)
"""States of a stash; one that is recomputed is usable before it is remade."""


class Case(NamedTuple):
    """Stages on a cluster.

    seconds [TYPES, stages] at speed 1. take, drop [TYPES, stages]: bytes that an op takes at its start, and by which it
    changes what is held at its end. moved [2, stages]: bytes of a stash that moves, and of what is left of one that is
    recomputed. in/out: edges between stages in CSR form, their other ends and bytes. owned, lent:
    bytes that stay where the backward runs, and where only the forward does; of ties likewise, member [ties, stages].
    trained: bytes of new parameters. step [stages, devices]: seconds of the optimizer step. By device: speed, limit
    (bytes), node, host (number of its link; seconds a byte and latency). pace, lag [devices, devices]: seconds a byte,
    and latency.
    """

    batches: int
    seconds: Floats
    take: Ints
    drop: Ints
    moved: Ints
    in_first: Ints
    in_stage: Ints
    in_bytes: Ints
    out_first: Ints
    out_stage: Ints
    out_bytes: Ints
    owned: Ints
    lent: Ints
    member: NDArray[np.bool_]
    tied_owned: Ints
    tied_lent: Ints
    trained: Ints
    step: Floats
    speed: Floats
    limit: Ints
    node: Ints
    host: Ints
    host_pace: Floats
    host_lag: Floats
    pace: Floats
    lag: Floats


class Work(NamedTuple):
    """Scratch of one thread: see the rows above.

    eta [F or B; stages, micro-batches]: when the tensors of an op are there. last: end of a stage's last backward.
    soon [out or back; stages]: keys of the stashes that may move now, NEVER of others.
    link [devices, devices], host [out or in; host links]: when they are free. times, items: a heap of events. unit:
    stages of a device, later ones first. gone: codes and bytes of stashes that have left. log: the lists.
    """

    device: Ints
    clock: Floats
    stage: Ints
    cell: Ints
    eta: Floats
    last: Floats
    soon: Floats
    link: Floats
    host: Floats
    times: Floats
    items: Ints
    unit: Ints
    gone: Ints
    log: Ints


def scratch(c: Case) -> Work:
    """Scratch space for a case."""
    stages, devices, batches = c.seconds.shape[1], len(c.speed), c.batches
    messages = 9 * stages * batches + 8  # entries of a list, and of an op's events, at the most
    events = 4 * messages + 4 * len(c.in_stage) * batches

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return Work(
        device=ints(LOOK + 1, devices),
        clock=np.zeros((COPIED_IN + 1, devices)),
        stage=ints(WAITING + 2, stages),
        cell=ints(STATE + 1, stages, batches),
        eta=np.zeros((2, stages, batches)),
        last=np.zeros(stages),
        soon=np.zeros((2, stages)),
        link=np.zeros((devices, devices)),
        host=np.zeros((2, int(c.host.max()) + 1)),
        times=np.zeros(events),
        items=ints(3, events),
        unit=ints(devices, stages),
        gone=ints(2, devices, stages * batches),
        log=ints(devices, messages),
    )
