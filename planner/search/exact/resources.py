"""What all families have put on devices, links and memories: one at a time, and no more than fits."""

from __future__ import annotations

from .timetable import Timetable


def one_at_a_time(t: Timetable) -> None:
    """One op on a device, one message on a link, one copy in each direction of a host link."""
    for intervals in t.resources.values():
        t.model.add_no_overlap(intervals)


def memories_suffice(t: Timetable) -> None:
    """Units held at any time stay within the room of a device, or of a node's host memory."""
    for memory, held in t.demands.items():
        if held:
            intervals, units = zip(*held, strict=True)
            t.model.add_cumulative(intervals, units, t.rooms[memory])
