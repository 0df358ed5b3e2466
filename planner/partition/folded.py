"""Cutting a chain for two directions: device d holds stages d and D-1-d, so their memory and time add.

Pairs are cut from the outside in. For a given bound on the load and the memory of a device, taking as many layers
as possible at the far end never hurts the pairs inside, so a state is the left cut and its value the smallest
right cut; the smallest load that leaves a cut is found by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .chain import Chain, Cuts, Floats

LARGEST = 96
"""Chains with more layers are cut by other means (this programme is cubic in the layers)."""


def fold(
    chain: Chain, devices: Sequence[int], in_flight: Sequence[tuple[int, int]], *, buffers: int = 0
) -> Cuts | None:
    """The cut with the smallest load of a device that fits; None where none fits or the chain is too long.

    devices[d] holds stage d with in_flight[d][0] stashes and stage D-1-d with in_flight[d][1]; the peaks are
    added, which is safe, tied layers counted once. The load of a device is F and B of both its stages over its speed.
    """
    if len(devices) > len(chain) or len(chain) > LARGEST:
        return None
    search = _Fold(chain, devices, in_flight, buffers)
    low, high = 0.0, float(chain.load_s[-1]) * 2 / min(chain.speed(d) for d in devices)
    found = search.cuts(high)
    for _ in range(16):
        if found is None or high - low <= 1e-3 * high:
            break
        middle = (low + high) / 2
        better = search.cuts(middle)
        if better is None:
            low = middle
        else:
            found, high = better, middle
    return found


class _Fold:
    """One fold: memory of every interval by stashes in flight, and the programme for a given load."""

    def __init__(
        self, chain: Chain, devices: Sequence[int], in_flight: Sequence[tuple[int, int]], buffers: int
    ) -> None:
        self.chain, self.devices, self.in_flight = chain, devices, in_flight
        self.half, self.odd = divmod(len(devices), 2)
        counts = {n for pair in in_flight for n in (*pair, sum(pair))}
        empty = np.isinf(chain.seconds)
        self.memory: dict[int, Floats] = {
            n: np.where(empty, np.inf, chain.bytes(n, buffers, len(devices) > 1)) for n in counts
        }

    def cuts(self, load_s: float) -> Cuts | None:
        """Cuts whose devices all take at most `load_s` for F and B of both their stages."""
        size = len(self.chain) + 1
        right = np.full(size, -1, dtype=np.int64)
        right[0] = size - 1
        rights, parents = [right], []
        for pair in range(self.half):
            right, parent = self._pair(right, pair, load_s)
            rights.append(right)
            parents.append(parent)
        for left in np.flatnonzero(right >= 0).tolist():
            if self._closes(left, int(right[left]), load_s):
                return self._trace(left, rights, parents)
        return None

    def _pair(self, right: NDArray[np.int64], pair: int, load_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The smallest right cut for every left cut after this pair (-1: none), and the left cut before it."""
        size = len(right)
        inner = len(self.devices) - 2 * pair - 2
        cuts = np.arange(size)
        room = cuts[None, :] - cuts[:, None]
        enough = room >= inner if inner else room == 0
        best = np.full(size, size, dtype=np.int64)
        parent = np.full(size, -1, dtype=np.int64)
        for i in np.flatnonzero(right >= 0).tolist():
            allowed = enough & self._fits(pair, load_s, i, int(right[i]))
            reach = np.where(allowed.any(axis=1), allowed.argmax(axis=1), size)
            better = reach < best
            best[better], parent[better] = reach[better], i
        best[best == size] = -1
        return best, parent

    def _fits(self, pair: int, load_s: float, i: int, j: int) -> NDArray[np.bool_]:
        """[i', j']: whether stages [i, i') and [j', j) fit both devices of a pair."""
        chain, mirror = self.chain, len(self.devices) - 1 - pair
        seconds = chain.seconds[i, :][:, None] + chain.seconds[:, j][None, :]
        speed = min(chain.speed(self.devices[pair]), chain.speed(self.devices[mirror]))
        allowed: NDArray[np.bool_] = seconds <= load_s * speed
        twice = np.zeros_like(seconds)
        for size, members in chain.copies:
            twice += size * ((members[i, :] > 0)[:, None] & (members[:, j] > 0)[None, :])
        for device, (near, far) in ((pair, self.in_flight[pair]), (mirror, self.in_flight[mirror][::-1])):
            memory = self.memory[near][i, :][:, None] + self.memory[far][:, j][None, :] - twice
            allowed &= memory <= chain.limit(self.devices[device])
        return allowed

    def _closes(self, left: int, right: int, load_s: float) -> bool:
        """Whether the middle is complete: nothing left, or one stage (in both directions) that fits."""
        if not self.odd:
            return left == right
        device = self.devices[self.half]
        fits = bool(self.memory[sum(self.in_flight[self.half])][left, right] <= self.chain.limit(device))
        return fits and bool(2 * self.chain.seconds[left, right] <= load_s * self.chain.speed(device))

    def _trace(self, left: int, rights: list[NDArray[np.int64]], parents: list[NDArray[np.int64]]) -> Cuts:
        """The cuts behind a final state."""
        found: set[int] = set()
        for right, parent in zip(reversed(rights[1:]), reversed(parents), strict=True):
            found |= {left, int(right[left])}
            left = int(parent[left])
        return tuple(sorted(found))
