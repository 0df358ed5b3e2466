"""Changes of memory, each at an instant: the start or end of an op in list order, or of a message or a copy."""

from __future__ import annotations

import numpy as np

from ..graph import Floats, Ints
from .jobs import Jobs

CATEGORIES = (
    "parameters", "gradients", "optimizer", "buffers", "stashes", "shipped stashes", "messages", "workspace",
    "weight versions",
)  # fmt: skip
BUFFER, STASH, GUEST, MESSAGE, WORKSPACE, VERSION = 3, 4, 5, 6, 7, 8
"""Of CATEGORIES, those that change during a step."""
START, END = 0, 1
"""The two instants of an op."""
CLOSE = 1e-9
"""Times closer than this share of the step are equal."""
_FAR = 4 / CLOSE  # ticks between devices: more than a step has


class Line:
    """The instants of every device in list order: two for each op, and before them two at time 0 for the device itself.

    An in-line op has its start and its end; what is posted stands where the list has it, at the time when the in-line
    op before it has ended. So the list decides where times are equal.
    """

    def __init__(self, jobs: Jobs, step_s: float) -> None:
        ops = jobs.ops
        count = len(ops) + ops.devices
        self.count = 2 * count
        self.op = np.arange(len(ops)) + ops.device + 1
        head = ops.first + np.arange(ops.devices)
        self.device = np.repeat(np.arange(ops.devices), np.diff(np.append(head, count)))
        end = np.append(jobs.end[: len(ops)], 0.0)
        until = end[np.where(ops.in_line, np.arange(len(ops)), ops.previous)] if len(ops) else end[:0]
        time = np.zeros((count, 2))
        time[self.op, START] = np.where(ops.in_line, jobs.start[: len(ops)], until)
        time[self.op, END] = until
        self.time: Floats = time.reshape(-1)
        self.unit = step_s * CLOSE
        self.ticks = self.tick(self.time, np.repeat(self.device, 2))

    def tick(self, time: Floats, device: Ints) -> Floats:
        """Times in units too fine to matter, far apart between devices."""
        whole = np.rint(time / self.unit) if self.unit > 0 else np.zeros(len(time))
        return np.asarray(whole + device * _FAR, dtype=np.float64)

    def at(self, op: Ints, instant: int = 0) -> Ints:
        """The number of an op's instant."""
        return np.asarray(2 * self.op[op] + instant, dtype=np.int64)


class Events:
    """Collects changes of memory: at an instant of the line, or whenever a message or a copy starts or ends."""

    def __init__(self, jobs: Jobs, step_s: float) -> None:
        self.jobs, self.end = jobs, jobs.end
        self.line = Line(jobs, step_s)
        self.listed: list[tuple[Ints, Ints, int]] = []  # instant, bytes, category
        self.whose: list[Ints] = []  # of `listed`: the op whose stage and micro-batch the bytes are of
        self.needed: list[Ints] = []  # for whatever arrives, the instant that needs it
        self.loose: list[tuple[Ints, Floats, Ints, int]] = []  # op, time, bytes, category

    def _add(self, op: Ints, instant: int, delta: Ints, category: int, of: Ints | None) -> None:
        if len(op):
            self.listed.append((self.line.at(op, instant), delta, category))
            self.whose.append(op if of is None else of)

    def start(self, op: Ints, delta: Ints, category: int, of: Ints | None = None) -> None:
        """At the start of every op, in-line ones; `of`: the ops whose tensors these are, where they are others'."""
        self._add(op, START, delta, category, of)

    def finish(self, op: Ints, delta: Ints, category: int, of: Ints | None = None) -> None:
        """The same at their ends."""
        self._add(op, END, delta, category, of)

    def post(self, op: Ints, delta: Ints, category: int) -> None:
        """At the place of a posted op: when the in-line op before it has ended."""
        self._add(op, START, delta, category, None)

    def left(self, op: Ints, delta: Ints, category: int) -> None:
        """When a message or copy has left; before whatever starts or is posted at the same time behind it."""
        self._add_loose(op, self.end[op], delta, category)

    def arrives(self, op: Ints, user: Ints, delta: Ints, category: int) -> None:
        """When a copy starts to arrive; after whatever ends at the same time on the device, but before its user."""
        some = delta > 0
        op = op[some]
        self._add_loose(op, self.jobs.start[op], delta[some], category)
        self.needed.append(self.line.at(user[some]))

    def _add_loose(self, op: Ints, time: Floats, delta: Ints, category: int) -> None:
        if len(op):
            self.loose.append((op, time, delta, category))
