"""How the searches' functions are compiled."""

from __future__ import annotations

from typing import Any

import numba
from numba.core.cpu import CPUTargetOptions

_LEAN: Any = {"cache": True, "nogil": True} | ({"_nrt": False} if hasattr(CPUTargetOptions, "_nrt") else {})
lean: Any = numba.njit(**_LEAN)
"""For functions that make no arrays: without counts of references, of which each of many arrays would need some.
Measured on `separate.dispatch`: 20 instead of 600 us for 64 ops."""
inlined: Any = numba.njit(inline="always", **_LEAN)
"""The same, for small ones that are called often."""
