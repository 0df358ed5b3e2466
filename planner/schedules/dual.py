"""DualPipe and DualPipeV: two legs of the pipeline meet on every device, one's forward beside the other's backward.

Leg 0 is the one whose forwards reach the device first: in DualPipe the direction that starts nearer, in DualPipeV
the way down the V. An overlapped pair is listed F before B.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..plan import Op
from .layout import Layout, backward, forward, input_backward, pipeline, require, weight_backward

Placement = Callable[[int, int], tuple[int, int]]
"""(leg, number of the micro-batch on that leg) -> (stage, micro-batch)."""


def dualpipe(devices: int, micro_batches: int) -> Layout:
    """DualPipe: micro-batches from both ends, every stage on two devices (DeepSeek-V3, arXiv:2412.19437).

    Bubble (D/2-1)(F&B + B - 3W) at D + 1 stashes, for N >= 2D, N even; where a pair's F is sent on before its B
    runs, (D/2-1)(F + I - W) at least. Fewer micro-batches, or an odd number, keep the order of the next such number.
    """
    require(devices % 2 == 0, "dualpipe", f"needs an even number of devices, got {devices}")
    shares = (range(0, micro_batches, 2), range(1, micro_batches, 2))
    half = devices // 2
    orders = []
    for d in range(devices):
        near = 0 if d < half else 1

        def place(leg: int, k: int, d: int = d, near: int = near) -> tuple[int, int]:
            direction = leg ^ near
            return (devices - 1 - d if direction else d), 2 * k + direction

        order = _Legs(half, min(d, devices - 1 - d), max(len(shares[0]), devices), place).order
        orders.append(tuple(op for op in order if op.micro_batch < micro_batches))
    down, up = pipeline(range(devices), shares[0]), pipeline(reversed(range(devices)), shares[1])
    return Layout("dualpipe", devices, (down, up) if up.micro_batches else (down,), tuple(orders))


def dualpipe_v(devices: int, micro_batches: int) -> Layout:
    """DualPipeV: DualPipe cut in half, so that the upper half's work is the way back on a V; no stage twice.

    (Sea AI Lab, "DualPipe could be better without the Dual", 2025.) Bubble (D-1)(F&B + B - 3W) of one chunk at
    2D + 1 chunks' stashes, for N >= 2D; fewer micro-batches keep the order of 2D.
    """
    last = 2 * devices - 1
    orders = []
    for d in range(devices):

        def place(leg: int, k: int, d: int = d) -> tuple[int, int]:
            return (last - d if leg else d), k

        order = _Legs(devices, d, max(micro_batches, 2 * devices), place).order
        orders.append(tuple(op for op in order if op.micro_batch < micro_batches))
    route = pipeline([*range(devices), *reversed(range(devices))], range(micro_batches))
    return Layout("dualpipe-v", 2 * devices, (route,), tuple(orders))


class _Legs:
    """One device's order: `depth` devices to where the legs meet, this one `rank` from the outside.

    The eight phases of the published schedule, in the numbers of the device's distance from the middle.
    """

    def __init__(self, depth: int, rank: int, count: int, place: Placement) -> None:
        self.order: list[Op] = []
        self._place = place
        self._forwards = [0, 0]
        self._backwards = [0, 0]
        self._weights: deque[Op] = deque()
        inner = depth - 1 - rank
        self._warm_up(inner, rank)
        for _ in range(count - 2 * depth + rank + 1):
            self._pair(0, 1)
            self._pair(1, 0)
        self._cool_down(inner, rank)

    def _warm_up(self, inner: int, rank: int) -> None:
        for _ in range(2 * inner):
            self._forward(0)
        for _ in range(rank + 1):
            self._forward(0)
            self._forward(1)
        for _ in range(inner):
            self._backward(1, split=True)
            self._weight()
            self._forward(1)

    def _cool_down(self, inner: int, rank: int) -> None:
        for _ in range(inner):
            self._backward(1)
            self._pair(1, 0)
        whole = rank + 1
        for k in range(2 * (rank + 1)):
            self._backward(1 - k % 2, split=k >= whole)
        for _ in range(inner):
            self._weight()
            self._backward(0, split=True)
        while self._weights:
            self._weight()

    def _pair(self, ahead: int, behind: int) -> None:
        self._forward(ahead)
        self._backward(behind)

    def _forward(self, leg: int) -> None:
        self.order.append(forward(*self._place(leg, self._forwards[leg])))
        self._forwards[leg] += 1

    def _backward(self, leg: int, split: bool = False) -> None:
        stage, m = self._place(leg, self._backwards[leg])
        self._backwards[leg] += 1
        self.order.append(input_backward(stage, m) if split else backward(stage, m))
        if split:
            self._weights.append(weight_backward(stage, m))

    def _weight(self) -> None:
        self.order.append(self._weights.popleft())
