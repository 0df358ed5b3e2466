"""The best partition of a layer graph that is no chain, with a proof: what `contraflow partition` runs.

`published.solve` takes a file or a model (`instance`), makes a `problem` of it and counts the answer anew (`costs`);
`search` finds and proves it, by the dynamic programme over order ideals (`ideals`) or by CP-SAT (`model`, within the
`windows` that the best known partition leaves). Imports the problem's room and formats only. Begin with `published`.
"""

from .costs import count, loads
from .ideals import narrow_order, random_order
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
from .problem import GraphProblem, Group, Tensor
from .published import PublishedCut, solve
from .search import Effort, cut_graph

__all__ = [
    "BANDWIDTH",
    "Devices",
    "Effort",
    "GraphProblem",
    "Group",
    "Instance",
    "LayerInstance",
    "NodeBlock",
    "OBJECTIVES",
    "Objective",
    "PublishedCut",
    "Tensor",
    "configure",
    "count",
    "cut_graph",
    "loads",
    "narrow_order",
    "objective_of",
    "random_order",
    "solve",
    "unit_of",
]
