"""Ops and devices: every op takes the device of its site."""

from __future__ import annotations

from ortools.sat.python import cp_model

from ...basics import check_time
from ...plan import Kind
from .timetable import Literal
from .variables import Variables


def ops_run_on_their_devices(v: Variables) -> None:
    """F, the backward, and R where the stash is made again: an interval at every site where they may run."""
    for (s, k), choice in v.choices.items():
        check_time()
        for kind in v.instance.stages[s].kinds:
            _run(v, kind, s, k, True)
        _run(v, Kind.R, s, k, choice.remade)


def _run(v: Variables, kind: Kind, s: int, k: int, literal: Literal) -> None:
    for number, (site, place) in enumerate(zip(v.instance.stages[s].sites, v.places(kind, s, k), strict=True)):
        here = v.every(place, literal)
        if here is not False:
            interval = v.runs[kind, s, k, number] = v.interval(v.start[kind, s, k], site.ticks[kind], here)
            v.resources["device", site.device, -1].append(interval)


def step_is_no_shorter_than_any_load(v: Variables) -> None:
    """What any device has to do, where devices are open (where they are not, the bound says it)."""
    if not v.instance.open:
        return
    work: dict[int, list[cp_model.LinearExprT]] = {}
    for s, stage in enumerate(v.instance.stages):
        choice = v.choices[s, 0]
        for site, front, rear in zip(stage.sites, choice.front, choice.rear, strict=True):
            ticks = {kind: v.instance.micro_batches * size for kind, size in site.ticks.items()}
            again = v.every(rear, choice.remade)
            back = sum(ticks[kind] for kind in stage.backwards)
            work.setdefault(site.device, []).extend([ticks[Kind.F] * front, back * rear, ticks[Kind.R] * again])
    for terms in work.values():
        v.model.add(v.makespan >= sum(terms))
