"""What all families have put on devices, links and memories: one at a time, and no more than fits."""

from __future__ import annotations

from .variables import Variables


def one_at_a_time(v: Variables) -> None:
    """One op on a device, one message on a link, one copy in each direction of a host link."""
    for intervals in v.resources.values():
        v.model.add_no_overlap(intervals)


def memories_suffice(v: Variables) -> None:
    """Units held at any time stay within the capacity of a device, or of a node's host memory."""
    for (kind, number), held in v.demands.items():
        if held:
            room = v.instance.room(kind, number)
            assert room is not None
            intervals, units = zip(*held, strict=True)
            v.model.add_cumulative(intervals, units, room)
