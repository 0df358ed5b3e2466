"""Which tensors a device holds when: the memory curve, taken apart by category, stage and micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..graph import NOWHERE, Floats, Ints
from .events import Events
from .memory import memory_events

if TYPE_CHECKING:
    from ..plan import Plan
    from .timeline import Timeline


class Held(NamedTuple):
    """Bytes that a device holds of something from `start_s` to `end_s`, by device and time.

    `category` counts in `events.CATEGORIES`. Tensors on their way into a stage are those of the stage; gradients that
    wait for a stage's backward, too. What a device holds all the time is not among them.
    """

    device: Ints
    category: Ints
    stage: Ints
    micro_batch: Ints
    start_s: Floats
    end_s: Floats
    bytes: Ints


def held_tensors(plan: Plan, timeline: Timeline) -> Held:
    """Everything that comes and goes in the simulated step of this plan."""
    events, _ = memory_events(plan, timeline.costs, timeline.jobs, timeline.step_s)
    op, time, delta, category = _changes(events)
    ops = timeline.jobs.ops
    key = np.array([ops.device[op], category, ops.stage[op], ops.micro_batch[op]])
    _, number = np.unique(key, axis=1, return_inverse=True)
    number = number.reshape(-1)
    order = np.lexsort((time, number))
    number, time, key, total = number[order], time[order], key[:, order], np.cumsum(delta[order])
    total -= np.concatenate([[0], total])[np.searchsorted(number, number)]
    again = np.append(number[1:] == number[:-1], False)
    until = np.where(again, np.append(time[1:], timeline.step_s), timeline.step_s)
    held = (total > 0) & (until > time)
    kept = np.flatnonzero(held)
    kept = kept[np.lexsort((time[kept], key[0, kept]))]
    device, category, stage, micro_batch = key[:, kept]
    return Held(device, category, stage, micro_batch, time[kept], until[kept], total[kept])


def _changes(events: Events) -> tuple[Ints, Floats, Ints, Ints]:
    """Op, seconds, bytes and category of all changes of memory."""
    listed, loose = events.listed, events.loose
    instant = np.concatenate([NOWHERE, *(part[0] for part in listed)])
    op = np.concatenate([NOWHERE, *events.whose, *(part[0] for part in loose)])
    time = np.concatenate([events.line.time[instant], *(part[1] for part in loose)])
    delta = np.concatenate([NOWHERE, *(part[1] for part in listed), *(part[2] for part in loose)])
    counts = [len(part[0]) for part in listed] + [len(part[0]) for part in loose]
    categories = [part[2] for part in listed] + [part[3] for part in loose]
    return op, time, delta.astype(np.int64), np.repeat(categories, counts).astype(np.int64)
