"""Weight policies: with which version of a stage's weights its forward and its backward run.

Version v of a stage has taken v updates since the pipeline was last empty. What follows from a plan's op lists is in
`versions`; a policy says what to read off them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..basics import PlanError, shown

FLUSH = "flush"
CURRENT, ENTRY, BATCH = "current", "entry", "batch"
"""Which version a forward takes: the stage's newest; the newest that the first stage had when the micro-batch
entered there; the newest that the first stage had when the first micro-batch of the same update entered."""


@dataclass(frozen=True)
class WeightPolicy:
    """One way to train without a flush.

    Attributes:
        takes: CURRENT, ENTRY or BATCH.
        stashed: the backward uses the version of its forward; else the newest.
        predicts: the forward runs on weights predicted for the time of its backward.
        extra: updates that the forward's prediction looks ahead beyond that, the same on every stage.
        half_depth: both passes look stage // 2 updates further ahead, the backward too: to the time when the
            micro-batch's last stage is done with it.
        smoothed: the predicted direction is the mean of past gradients as the optimizer keeps it, not what it makes
            of that.
        momentum_first: the predicted direction is what momentum will be after the last gradient once more.
    """

    takes: str = CURRENT
    stashed: bool = False
    predicts: bool = False
    extra: int = 0
    half_depth: bool = False
    momentum_first: bool = False
    smoothed: bool = False

    def __post_init__(self) -> None:
        if self.takes not in (CURRENT, ENTRY, BATCH):
            raise ValueError(f"unknown choice of a version: {self.takes!r}")

    def forward_ahead(self, stage: int, staleness: int) -> int:
        """Updates that the forward's weights are predicted ahead; `staleness`: updates before its backward."""
        if not self.predicts:
            return 0
        return staleness + self.extra + (stage // 2 if self.half_depth else 0)

    def backward_ahead(self, stage: int) -> int:
        """Updates that the backward's weights are predicted ahead."""
        return stage // 2 if self.half_depth else 0

    def least_update(self, stages: int) -> int:
        """The fewest micro-batches an update with which so many stages may all be full."""
        return stages if self.takes == BATCH else 1

    def most_stale(self, update: int, stages: int) -> int | None:
        """Most updates between the version of a forward and the one that its update starts from; None: any.

        Two buffered versions are enough where an update has as many micro-batches as a pipeline holds, or where it is
        not full.
        """
        return 1 if update < self.least_update(stages) else None


class _Policies(dict[str, WeightPolicy]):
    """Policies by name."""

    def __missing__(self, name: str) -> WeightPolicy:
        """Raises PlanError: what is not known is never taken for something else."""
        raise PlanError(f"unknown weight policy {shown(name)}; known: {', '.join(self)}")


_POLICIES = {
    FLUSH: WeightPolicy(),
    "naive": WeightPolicy(),
    # Narayanan et al. 2019, PipeDream (SOSP'19), sections 3.3: weight stashing; and vertical sync
    "stash": WeightPolicy(stashed=True),
    "vertical": WeightPolicy(ENTRY, stashed=True),
    # Narayanan et al. 2021, PipeDream-2BW (arXiv:2006.09503), section 3.1
    "2bw": WeightPolicy(BATCH, stashed=True),
    # Chen et al. 2018, SpecTrain (arXiv:1809.02839), section 4
    "spectrain": WeightPolicy(predicts=True, half_depth=True, smoothed=True),
    # Guan et al. 2023, PipeOptim (arXiv:2312.00839); what its released code does differs
    "pipeoptim": WeightPolicy(predicts=True),
    "pipeoptim-lookahead": WeightPolicy(predicts=True, extra=1, momentum_first=True),
}
WEIGHT_POLICIES: dict[str, WeightPolicy] = _Policies(_POLICIES)
"""By name. "flush" updates once, after all micro-batches, and needs none of this. Raises PlanError for other names."""


def policy_of(name: str) -> WeightPolicy:
    """The policy of this name; raises PlanError."""
    return WEIGHT_POLICIES[name]
