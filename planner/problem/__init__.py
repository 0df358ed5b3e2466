"""What is asked: the model as a graph of layers, the cluster, the workload, the space; what training needs of them.

Data, validated when it is made, and the files it comes from. Imports the basics. Begin with `model_graph.py`,
`cluster.py` and `workload.py`; `stage_costs.py` is what layers cost once they are stages.
"""

from .cluster import Cluster, NodeGroup
from .family import ModelFamily, Point, choose_ways
from .given_stages import Stages, merged, stages_of
from .kept_twice import KeptTwice, twice_inside
from .layer import WORKSPACES, Layer
from .link import Link
from .mean_speeds import at_speeds, compared, speed_notes
from .model_graph import ModelGraph, SharedParameters, speeds_to_dict
from .overhead import EXPECTED, NO_OVERHEAD, OVERHEADS, Overhead
from .presets import PRESETS, DeviceType
from .stage_costs import StageCosts
from .ties import returned_bytes, steps_sent
from .weight_policy import BATCH, CURRENT, ENTRY, FLUSH, WEIGHT_POLICIES, WeightPolicy, policy_of
from .workload import (
    MOST_SLOWER,
    OPTIMIZER_STATES,
    PRECISIONS,
    STEP_COUNTERS,
    UNFUSED,
    Across,
    SearchSpace,
    Workload,
    part_bytes,
)

__all__ = [
    "Across",
    "BATCH",
    "CURRENT",
    "ENTRY",
    "Cluster",
    "DeviceType",
    "EXPECTED",
    "FLUSH",
    "KeptTwice",
    "Layer",
    "Link",
    "MOST_SLOWER",
    "ModelFamily",
    "ModelGraph",
    "NodeGroup",
    "NO_OVERHEAD",
    "OVERHEADS",
    "OPTIMIZER_STATES",
    "Overhead",
    "PRECISIONS",
    "PRESETS",
    "STEP_COUNTERS",
    "Point",
    "SearchSpace",
    "SharedParameters",
    "StageCosts",
    "Stages",
    "UNFUSED",
    "WEIGHT_POLICIES",
    "WORKSPACES",
    "WeightPolicy",
    "Workload",
    "at_speeds",
    "compared",
    "merged",
    "stages_of",
    "choose_ways",
    "part_bytes",
    "policy_of",
    "returned_bytes",
    "speed_notes",
    "speeds_to_dict",
    "steps_sent",
    "twice_inside",
]
