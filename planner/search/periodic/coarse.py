"""A problem on fewer devices that is like one on many: neighbours as one device, and as many times fewer micro-batches.

One pipeline that visits every device once in every part of its way, back and forth or round and round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .tables import Case, Floats, Ints


class Legs(NamedTuple):
    """What the dispatcher knows of a way beside its Case.

    visits: stages of a device. level: by op, how many stages its device had before. keys: by op. filled: bytes of the
    stashes of a device's stages [devices, visits].
    """

    visits: int
    level: Ints
    keys: Floats
    filled: Floats


def in_legs(case: Case) -> bool:
    """Whether one pipeline visits all devices once in every part of its way."""
    return len(case.batches) == 1 and bool((np.diff(case.legs) == len(case.room)).all())


def legs_of(case: Case) -> Legs:
    """Of a case in legs."""
    devices = len(case.room)
    visits = (len(case.legs) - 1) // 2
    level = np.repeat(np.arange(visits), devices)
    return Legs(
        visits,
        np.concatenate([level, level[::-1]]),
        np.zeros(len(case.device)),
        np.zeros((devices, visits)),
    )


def coarse(case: Case, devices: int) -> Case:
    """The same on so many devices, none of which has more than the others' mean of what its neighbours have."""
    many = len(case.room)
    position = np.empty(many, dtype=np.int64)
    position[case.device[:many]] = np.arange(many)
    group = position * devices // many
    size = np.bincount(group, minlength=devices)
    times = many / devices
    order = []
    for low, high in zip(case.legs, case.legs[1:], strict=False):
        order.append(group[case.device[low:high]])
    labels = np.concatenate([n * devices + part for n, part in enumerate(order)])
    firsts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    device = group[case.device[firsts]]

    def mean(column: NDArray[np.float64]) -> Floats:
        return np.add.reduceat(column, firsts) / size[device]

    lag = _lags(case, firsts)
    batches = max(1, round(int(case.batches[0]) / times))
    takes, weight = mean(case.takes), mean(case.weight)
    load = np.bincount(device, weights=takes + weight, minlength=devices)
    return Case(
        device=device,
        forward=case.forward[firsts],
        takes=takes,
        lag=lag,
        held=mean(case.held),
        alive=mean(case.alive),
        weight=weight,
        later=mean(case.later),
        room=np.bincount(group, weights=case.room, minlength=devices) / size / times,
        load=float(load.max()),
        batches=np.array([batches], dtype=np.int64),
        mine=np.argsort(device, kind="stable").reshape(1, -1).astype(np.int64),
        first_mine=np.searchsorted(np.sort(device), np.arange(devices + 1)).reshape(1, -1).astype(np.int64),
        legs=np.arange(0, len(device) + 1, devices, dtype=np.int64),
    )


def _lags(case: Case, firsts: Ints) -> Floats:
    """Messages between neighbouring groups: the mean of those from device to device; where the way turns, its own."""
    lasts = np.r_[firsts[1:], len(case.device)] - 1
    turns = np.zeros(len(case.device), dtype=np.bool_)
    turns[case.legs[1:] - 1] = True
    inner = np.where(turns, 0.0, case.lag)
    count = np.add.reduceat(np.where(turns, 0, 1), firsts)
    between = np.add.reduceat(inner, firsts) / np.maximum(1, count)
    return np.where(turns[lasts], case.lag[lasts], between)
