"""A layout of one of several equal groups of devices, on all of them."""

from __future__ import annotations

from dataclasses import replace

from ...plan import Problem
from ...schedules import Layout
from ..common import Groups, dealt


def unordered(layout: Layout) -> Layout:
    """The pipelines of a layout alone."""
    return replace(layout, orders=((),) * len(layout.orders))


def named_on(groups: Groups, name: str) -> str:
    """What runs on each of these groups, in words."""
    return name if len(groups) == 1 else f"{name}, {len(groups)} replicas"


def on_groups(problem: Problem, groups: Groups, layout: Layout) -> Layout:
    """A layout of one group on all of them."""
    routed, orders = dealt(problem, groups, layout.pipelines, layout.orders)
    pipelines = tuple(pipeline for pipeline, _, _ in routed)
    return replace(layout, name=named_on(groups, layout.name), pipelines=pipelines, orders=tuple(map(tuple, orders)))
