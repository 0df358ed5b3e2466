"""What a simulated step says, as tests write it by hand: spans of ops, and memory where it changes."""

from __future__ import annotations

from itertools import pairwise

from contraflow.planner.forecast.timeline import Timeline
from contraflow.planner.plan import Kind


def spans(timeline: Timeline, device: int = 0) -> dict[str, tuple[float, float]]:
    """Start and end of a device's compute ops and copies by text, without the stage."""
    timed = [*timeline.devices[device].ops, *timeline.copies[device]]
    return {str(t.op)[1:]: (t.start_s, t.end_s) for t in timed if t.op.kind != Kind.STEP}


def curve(times: object, counts: object) -> list[tuple[float, int]]:
    """The steps of a memory curve: the last total of every instant, where it changes."""
    last: dict[float, int] = {}
    for time, count in zip(times, counts, strict=True):  # type: ignore[call-overload]
        last[float(time)] = int(count)
    steps = list(last.items())
    return steps[:1] + [b for a, b in pairwise(steps) if a[1] != b[1]]


def device_curve(timeline: Timeline, device: int = 0) -> list[tuple[float, int]]:
    return curve(*timeline.memory(device))


def host_curve(timeline: Timeline, node: int = 0) -> list[tuple[float, int]]:
    return curve(timeline.host_memory[node].times_s, timeline.host_memory[node].bytes)
