"""A bound for every plan of a space: any stages, any placement, any order, under the memory limit.

A step is ruled out when one of the tests shows that no plan ends within it; the bound is the longest step found so.
Each test is a sum over all devices, with Lagrange prices for memory, so it needs no placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Protocol

import numpy as np

from ..basics import OutOfTime, check_time, time_left
from ..partition import Floats
from ..plan import Problem
from ..problem import SearchSpace
from .layers import IdleTimes, Layers
from .packing import fullest
from .whole import any_plan

_CLOSE = 1e-9
_FEW = 5
_MANY = 60
_MOST = 1e6
_WORTH_S = 1.0


def space(problem: Problem, space: SearchSpace) -> float:
    """Valid for every plan of the space whose memory fits, in seconds; infinite where none can fit.

    Contiguous stages of any number on any devices, at most `space.pipelines` routes. `space.offload` stands for
    every stash that leaves its device; with it or `separate_backward`, memory counts over all devices together.
    Where the deadline of this context comes (`until`), what has been proven by then.
    """
    layers = Layers(problem, space)
    least = any_plan(problem, space.split_backward)
    if not _possible(layers):
        return inf
    found = least
    tests: list[Test] = [*_filling(layers, space), *_waiting(layers, space), *_begun(layers, space)]
    with suppress(OutOfTime):  # what is proven by then holds
        for test in tests:
            found = _raised(test, found, _MOST * least)
        check_time()
        if layers.routes == 1:
            exact = space.schedule == "search" and time_left() > _WORTH_S  # a named schedule is done in less
            found = max(found, fullest(layers.batches * layers.pieces, layers.speeds, exact) * (1 - _CLOSE))
    return found


def _raised(test: Test, least: float, most: float) -> float:
    """The longest step that a test rules out, found by halving, or `least` where it rules out no more; about `most`."""
    low, high = 0.0, least
    while 0 < high < most and test.fails(high):
        check_time()
        low, high = high, 2 * high
    while low > 0 and high - low > _CLOSE * high / 2:
        check_time()
        middle = (low + high) / 2
        low, high = (middle, high) if test.fails(middle) else (low, middle)
    return max(least, low * (1 - _CLOSE))


def long_run(problem: Problem, space: SearchSpace) -> float:
    """Seconds a micro-batch that memory leaves in the long run of every plan of the space; 0 where nothing can fit.

    On average over a run that goes on, devices hold each layer's stash for its stay, a micro-batch every period
    (Little, A Proof for the Queuing Formula L = lambda W, 1961), or make it again, or copy it to the host.
    """
    layers = Layers(problem, space)
    if not _possible(layers):
        return 0.0
    idle = layers.idle_times(inf)
    return max((test.least_s(idle) for test in _filling(layers, space, _MANY)), default=0.0) * (1 - _CLOSE)


def possible(problem: Problem, space: SearchSpace) -> bool:
    """Whether the devices can hold the parameters at all; False proves that nothing fits."""
    return _possible(Layers(problem, space))


def _possible(layers: Layers) -> bool:
    """Whether every layer's parameters and one stash fit some device, and all parameters all devices."""
    largest = layers.limits.max()
    return bool((layers.light + layers.stash <= largest).all() and layers.static.sum() <= layers.limits.sum())


def _few(values: Floats, most: int = _FEW) -> list[float]:
    """Some of the finite positive values, the extremes among them."""
    found = sorted({value for value in values.tolist() if 0 < value < inf})
    if len(found) > most:
        found = [found[int(place)] for place in np.linspace(0, len(found) - 1, most)]
    return found


def _ratio(work: Floats, size: Floats) -> Floats:
    return np.asarray(np.divide(work, size, out=np.full(len(work), inf), where=size > 0))


class Test(Protocol):
    """Shows of some steps that no plan has them."""

    def fails(self, step_s: float) -> bool:
        """Whether no plan of the space ends within so many seconds."""


# ------------------------------------------------------------------ memory over time


@dataclass(frozen=True)
class Filled:
    """Area: the limits over the step enclose every layer's stash for its least stay, N times.

    price: seconds of a byte-second. What a layer costs at the least: its stash stays; or it is made again, a
    forward more, and stays for R and I only; or a part of it is, in less; or it goes to the host, over links of `host`
    bytes a second. Sum of speeds * step + price * limits * step >= the work and the cheapest of these, for every price.
    With an infinite price only the areas count, and the limits are not full from the first instant to the last.
    """

    layers: Layers
    price: float
    link_price: float
    recompute: bool
    offload: bool

    def fails(self, step_s: float) -> bool:
        layers, idle = self.layers, self.layers.idle_times(step_s)
        if self.price == inf:
            kept = layers.batches * float(self._kept(idle).sum())
            return bool(_area(layers, idle, step_s) < kept * (1 - _CLOSE))
        return step_s < layers.batches * self.least_s(idle) * (1 - _CLOSE)

    def least_s(self, idle: IdleTimes) -> float:
        """Seconds a micro-batch in the long run: what a micro-batch costs over what all devices have in a second."""
        layers = self.layers
        room = float(layers.limits.sum() - layers.static.sum())
        kept = self._kept(idle)
        if self.price == inf:
            return float(kept.sum()) / room if room > 0 else inf
        own = (layers.forward + layers.inputs) / layers.fastest
        short = layers.stash * own + layers.after * layers.weights / layers.fastest
        cheapest = self.price * kept
        have = float(layers.speeds.sum()) + self.price * room
        if self.recompute:
            cheapest = np.minimum(cheapest, layers.forward + self.price * short)
            staying = kept - _saved_partly(layers, idle)
            cheapest = np.minimum(cheapest, layers.again + self.price * staying)
        if self.offload:
            cheapest = np.minimum(cheapest, self.price * (short + self.link_price * layers.stash))
            have += self.price * self.link_price * layers.host_bandwidth
        return float((layers.work + cheapest).sum()) / have if have > 0 else inf

    def _kept(self, idle: IdleTimes) -> Floats:
        """Byte-seconds of every layer's stash that stays."""
        layers = self.layers
        return np.asarray(layers.stash * idle.stay + layers.after * layers.weights / layers.fastest)


def _filling(layers: Layers, space: SearchSpace, most: int = _FEW) -> Iterator[Filled]:
    if not (space.recompute or space.offload):
        yield Filled(layers, inf, 0.0, False, False)
        return
    idle = layers.idle_times(inf)
    own = (layers.forward + layers.inputs) / layers.fastest
    saved = layers.stash * (idle.stay - own)
    links = [0.0]
    if space.offload:
        if not np.isfinite(layers.host_bandwidth):
            return
        links += _few(_ratio(saved, layers.stash))
    ratios = np.concatenate([_ratio(layers.forward, saved), _ratio(layers.again, _saved_partly(layers, idle))])
    prices = _few(ratios, most) if space.recompute else [1e6 * layers.fastest / _scale(saved)]
    for price in prices:
        for link in links:
            yield Filled(layers, price, link, space.recompute, space.offload)


def _saved_partly(layers: Layers, idle: IdleTimes) -> Floats:
    """Byte-seconds of every layer's stash that selective recomputation saves at the most."""
    own = (layers.again + layers.inputs) / layers.fastest
    return np.asarray((layers.stash - layers.rest) * np.maximum(0.0, idle.stay - own))


def _scale(saved: Floats) -> float:
    return max(float(saved.max()), 1e-300)


def _area(layers: Layers, idle: IdleTimes, step_s: float) -> float:
    """Byte-seconds of stashes that all devices can hold within a step.

    Where stashes stay on their devices, none holds one before its first F. Memory fills no faster than F makes
    stashes, and empties no faster than I and W free them. The loss is convex in a device's room, so the mean room
    loses least.
    """
    count, room = len(layers.limits), float(layers.limits.sum() - layers.static.sum())
    largest = float(layers.limits.max())
    area = room * step_s
    left = room
    for head in np.sort(idle.head) if layers.local else ():
        area -= head * min(left, largest)
        left -= min(left, largest)
    rising = float(_ratio(layers.stash, layers.forward).max(initial=0.0)) * layers.fastest
    frees = [_ratio(layers.stash - layers.after, layers.inputs), _ratio(layers.after, layers.weights)]
    zero = (layers.after == 0) & (layers.weights == 0)
    frees[1] = np.where(zero, 0.0, frees[1])
    falling = float(max(part.max(initial=0.0) for part in frees)) * layers.fastest
    above = max(0.0, room / count - float(layers.stash.max()))
    ramps = sum(max(0.0, largest) / rate for rate in (rising, falling) if rate > 0)
    if step_s >= float(idle.head.max()) + ramps:
        area -= sum(count * above * above / (2 * rate) for rate in (rising, falling) if rate > 0)
    return area


# ------------------------------------------------------------------ waits


@dataclass(frozen=True)
class Waited:
    """Load and the waits before and after it: what every device has time for, against all the work there is.

    ahead: work of a byte before the first I of a device: until then it runs forwards whose stashes are in its
    memory (a forward whose stash will be made again counts as waste, its R as the forward; where a part of it is, that
    R is waste), at most ahead * bytes + what is cheaper. behind: the same after its last F, for I and W. None: this
    wait is not counted.
    pooled: the memory of all devices counts together, and the waits are those of the earliest device.

    With neither, the waits are those before a device's first op and, where F and B share it, after its last one.

    Per device of speed v with layers S: v * (step - first - last) + (ahead + behind) * (limit - static of S) >=
    sum over S of N * (work - max(0, f - ahead * s) - max(0, i + w - behind * s, w - behind * h)), if it cannot
    hold all N stashes of its layers; if it can, its work is small. Layers are whole: where each has one device,
    the sum of floor(capacity / x) over devices is at least that of floor(work / x) over layers, for every x.
    """

    layers: Layers
    ahead: float | None
    behind: float | None
    pooled: bool
    offload: bool = False

    def fails(self, step_s: float) -> bool:
        idle = self.layers.idle_times(step_s)
        if self.pooled:
            return self._pooled(idle, step_s)
        first = idle.first if self.ahead is not None else idle.head if self.behind is None else 0.0 * idle.head
        last = idle.last if self.behind is not None else self._tail(idle)
        with_all = self._capacity(step_s - first - last)
        if not self._exceeds(with_all):
            return False
        if self.ahead is None or self.behind is None:
            return True
        some = self._capacity(step_s - np.maximum(first, last))
        return self._exceeds(np.maximum(with_all, np.minimum(some, self._small[: len(some), None])))

    def _exceeds(self, capacities: Floats) -> bool:
        """Whether the work is more than the devices can do, in all or in whole pieces."""
        if self.layers.most(capacities) < self._need_s * (1 - _CLOSE):
            return True
        sizes, units = self._packed
        return bool((self.layers.most_of_each(np.floor(capacities / sizes[:, None, None] + _CLOSE)) < units).any())

    @property
    def _price(self) -> float:
        return (self.ahead or 0.0) + (self.behind or 0.0)

    @cached_property
    def _need(self) -> Floats:
        """Of every layer, the work that is not done in the waits, and what its parameters take of the memory."""
        layers, need = self.layers, self.layers.work.copy()
        if self.ahead is not None:
            partly = layers.forward - layers.again - self.ahead * layers.rest
            need -= np.maximum(0.0, np.maximum(partly, layers.forward - self.ahead * layers.stash))
        if self.behind is not None:
            both = layers.inputs + layers.weights - self.behind * layers.stash
            need -= np.maximum(0.0, np.maximum(both, layers.weights - self.behind * layers.after))
        return np.asarray(layers.batches * np.maximum(need, 0.0) + self._price * layers.static)

    @cached_property
    def _need_s(self) -> float:
        return float(self._need.sum())

    @cached_property
    def _packed(self) -> tuple[Floats, Floats]:
        """Some sizes, and how many whole pieces of each there are at the least.

        Pieces are what one device does all of: a layer's need on one route, or its forwards and its backwards each.
        """
        layers = self.layers
        if layers.owned:
            whole = self._need
        elif layers.routes > 1 or self.ahead is not None or self.behind is not None:
            return np.empty(0), np.empty(0)
        else:
            whole = layers.batches * layers.pieces
        sizes = np.array(_few(whole))
        return sizes, np.floor(whole / sizes[:, None] + 1e-3 * _CLOSE).sum(axis=1)

    def _tail(self, idle: IdleTimes) -> Floats:
        return idle.tail if self.ahead is None and self.layers.together else 0.0 * idle.tail

    def _capacity(self, seconds: Floats) -> Floats:
        """Capacity of every device (row) at every rank (column); of devices that are alike, of the first."""
        layers, rows = self.layers, 1 if self.layers.equal else None
        speeds, limits = layers.speeds[:rows, None], layers.limits[:rows, None]
        return np.asarray(np.maximum(0.0, speeds * seconds[None, :] + self._price * limits))

    @cached_property
    def _small(self) -> Floats:
        """Per device, the most need of layers (or of some micro-batches of them) whose stashes it can hold at once.

        A device with one of several replicas holds between `light` and `static` bytes of a layer.
        """
        layers, need, price = self.layers, self._need, self._price
        size, shared = layers.batches * layers.stash + layers.static, layers.static - layers.light
        some = np.array([0.0, *_few(_ratio(need, size))])[:, None]
        over = np.maximum(need - some * size, (price - some) * layers.static)
        over = np.maximum(over, over - (price - some) * shared)
        most = some * layers.limits + np.maximum(0.0, over).sum(axis=1, keepdims=True)
        return np.asarray(most.min(axis=0))

    def _pooled(self, idle: IdleTimes, step_s: float) -> bool:
        layers = self.layers
        first = float(idle.first.min()) if self.ahead is not None else 0.0
        last = float(idle.last.min()) if self.behind is not None else 0.0
        host = layers.host_bandwidth if self.offload else 0.0
        limit = float(layers.limits.sum())
        held = layers.batches * float(layers.stash.sum()) + float(layers.static.sum())
        if self.ahead is not None and self.behind is not None and held <= limit + host * first:
            return False
        moved = host * ((self.ahead or 0.0) * first + (self.behind or 0.0) * last)
        have = float(layers.speeds.sum()) * (step_s - first - last) + self._price * limit + moved
        return have < self._need_s * (1 - _CLOSE)


@dataclass(frozen=True)
class Begun:
    """What can be done before any backward: forwards of whole beginnings of the way, in that time and memory.

    price: seconds of a byte of all memory then, rate: of a second of all devices. Of every micro-batch a prefix of the
    layers has had its F; an F counts unless it will be made again, when its stash need not stay; where a part of it is,
    that much less. So for all prices
    speeds * (step - first) + price * (room + what the host takes by then) + rate * speeds * first + N * the most, of
    any prefix, of sum of (f - price * s, or 0 where it is made again) - rate * f >= N * work + optimizer steps, which
    come behind backwards.
    """

    layers: Layers
    price: float
    rate: float
    recompute: bool
    host_bandwidth: float

    def fails(self, step_s: float) -> bool:
        layers, idle = self.layers, self.layers.idle_times(step_s)
        first, speeds = float(idle.first.min()), float(layers.speeds.sum())
        room = float(layers.limits.sum() - layers.static.sum()) + self.host_bandwidth * first
        worth = layers.forward - self.price * layers.stash
        worth = (_remade_too(layers, self.price, worth) if self.recompute else worth) - self.rate * layers.forward
        most = np.cumsum(worth).max() if layers.straight else np.maximum(worth, 0.0).sum()
        done = self.price * room + self.rate * speeds * first + layers.batches * max(0.0, float(most))
        need = layers.batches * layers.work.sum() + layers.updates
        return bool(speeds * (step_s - first) + done < need * (1 - _CLOSE))


def _remade_too(layers: Layers, price: float, kept: Floats) -> Floats:
    """What a forward is worth before any backward if its stash is kept, made again, or a part of it is."""
    partly = layers.forward - layers.again - price * layers.rest
    return np.asarray(np.maximum(np.maximum(kept, partly), 0.0))


def _begun(layers: Layers, space: SearchSpace) -> Iterator[Begun]:
    host = layers.host_bandwidth if space.offload else 0.0
    if not np.isfinite(host) or not layers.stash.any() or not layers.forward.any():
        return
    whole = float(layers.forward.sum() / layers.stash.sum())
    for price in (whole, *_few(_ratio(layers.forward, layers.stash))):
        saved = layers.forward - price * layers.stash
        kept = _remade_too(layers, price, saved) if space.recompute else saved
        for rate in {0.0, max(0.0, float(kept.sum() / layers.forward.sum()))}:
            yield Begun(layers, price, rate, space.recompute, host)


def _waiting(layers: Layers, space: SearchSpace) -> Iterator[Waited]:
    yield Waited(layers, None, None, False)
    offload = space.offload
    if offload and not np.isfinite(layers.host_bandwidth):
        return
    behind: list[float | None] = [None]
    if not space.recompute:
        work = layers.inputs + layers.weights
        behind += _few(np.concatenate([_ratio(work, layers.stash), _ratio(layers.weights, layers.after)]))
    for price in (None, *_few(_ratio(layers.forward, layers.stash))):
        for other in behind:
            if price is None and other is None:
                continue
            if layers.local:
                yield Waited(layers, price, other, False)
            yield Waited(layers, price, other, True, offload)
