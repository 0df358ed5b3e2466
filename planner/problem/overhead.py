"""What an op costs beside its kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Overhead:
    """Seconds at speed 1 that a rank's own thread spends around its kernels: Python, launches, posting messages.

    Attributes:
        op_s: of every F, B, I, W and R, calling its program included: layers' own seconds are without that.
        message_s: at either end of every tensor between two stages; F, B and I have those of their stage, and R has
            F's. Counted wherever the stages lie: what it costs is the same for every placement of a cut. As much again
            in F where its stash is copied or sent, in B and I where it comes back.
        step_s: of every STEP that trains something, as its bytes' seconds whatever the speed.
        collective_s: of every sum of gradients and gathering of parameters between ranks, beside what their links take:
            ranks that compute as long as one another are never ready at the same time.
    """

    op_s: float = 0.0
    message_s: float = 0.0
    step_s: float = 0.0
    collective_s: float = 0.0

    def __bool__(self) -> bool:
        return any(getattr(self, f"{key}_s") > 0 for key in OVERHEADS)

    def to_dict(self) -> dict[str, float]:
        """By the keys of cluster.toml's [overhead]."""
        return {key: getattr(self, f"{key}_s") for key in OVERHEADS}


OVERHEADS = ("op", "message", "step", "collective")
"""The keys of [overhead], in the order of the attributes."""
NO_OVERHEAD = Overhead()
"""Of whom nothing is said."""
EXPECTED = Overhead(op_s=200e-6, message_s=100e-6, step_s=200e-6)
"""Of a rank on one core, for saying what plans leave out where nothing was measured. Not measured."""
