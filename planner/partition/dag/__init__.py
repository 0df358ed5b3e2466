"""The best partition of a layer graph that is no chain, with a proof: what `contraflow partition` runs.

`published.solve` takes a file or a model (`instance`), makes a `problem` of it and counts the answer anew (`costs`);
`search` finds and proves it, by the dynamic programme over order ideals (`ideals`) or by CP-SAT (`model`, within the
`windows` that the best known partition leaves). Imports the problem's room and formats only. Begin with `published`.
"""

from .costs import count, loads
from .instance import (
    BANDWIDTH,
    OBJECTIVES,
    Devices,
    Instance,
    LayerInstance,
    NodeBlock,
    Objective,
    configure,
    objective_of,
    unit_of,
)
from .published import PublishedCut, solve

__all__ = [
    "BANDWIDTH",
    "Devices",
    "Instance",
    "LayerInstance",
    "NodeBlock",
    "OBJECTIVES",
    "Objective",
    "PublishedCut",
    "configure",
    "count",
    "loads",
    "objective_of",
    "solve",
    "unit_of",
]
