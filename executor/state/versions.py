"""Weight versions of one stage on one rank: the newest is stepped in place, older ones are copies while needed.

Version v has taken v updates since the pipeline was last empty. Which versions somebody reads after the STEP that
replaces them is in `planner.versions`; a copy lives from that STEP to the end of its last reader, as planned.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .weights import StageWeights


class StageVersions:
    """The versions of one stage within a run.

    Attributes:
        newest: number of the version that the parameters hold.
    """

    def __init__(self, weights: StageWeights) -> None:
        self.newest = 0
        self._weights = weights
        self._older: dict[int, Mapping[str, Tensor]] = {}

    def at(self, version: int) -> Mapping[str, Tensor]:
        """The parameters of a version; the newest is stepped in place later."""
        return self._weights.parameters if version == self.newest else self._older[version]

    def replace(self, keep: bool) -> None:
        """Before a STEP: what is the newest is it no longer; `keep`: somebody still reads it."""
        if keep:
            with torch.no_grad():
                changing = self._weights.trained or self._weights.changing  # stepped here, or received
                copies = {name: self._weights.parameters[name].clone() for name in changing}
            self._older[self.newest] = in_place_of(self._weights, copies)
        self.newest += 1

    def drop(self, version: int) -> None:
        """Nobody reads an older version any more."""
        del self._older[version]


def in_place_of(weights: StageWeights, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A stage's parameters with other values for those that are trained, under all names that they have."""
    others = {id(weights.parameters[name]): value for name, value in values.items()}
    return {name: others.get(id(tensor), tensor) for name, tensor in weights.parameters.items()}
