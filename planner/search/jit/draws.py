"""Random numbers of the compiled searches.

numba looks at a function's own file only: who calls these names this module in `drop_stale`.
"""

# mypy: disable-error-code="no-untyped-def"
# compiled functions: numba infers their types

from __future__ import annotations

import numpy as np

from .options import inlined, lean


@inlined
def draw(state):
    """A uniform number in [0, 1): xorshift64*; state is an array of one uint64."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@lean
def pick(state, count):
    """A whole number below `count`."""
    return min(count - 1, int(draw(state) * count))
