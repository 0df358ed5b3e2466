"""What is asked: the model as a graph of layers, the cluster, the workload; what training needs of them."""

from .cluster import Cluster, Link, NodeGroup
from .model_graph import Layer, ModelGraph
from .presets import PRESETS, DeviceType
from .stage_costs import StageCosts, StageEdge
from .ties import returned_bytes, steps_sent
from .weight_policy import BATCH, CURRENT, FLUSH, WEIGHT_POLICIES, WeightPolicy, policy_of
from .workload import OPTIMIZER_STATES, PRECISIONS, STEP_COUNTERS, UNFUSED, SearchSpace, Workload

__all__ = [
    "BATCH",
    "CURRENT",
    "Cluster",
    "DeviceType",
    "FLUSH",
    "Layer",
    "Link",
    "ModelGraph",
    "NodeGroup",
    "OPTIMIZER_STATES",
    "PRECISIONS",
    "PRESETS",
    "STEP_COUNTERS",
    "SearchSpace",
    "StageCosts",
    "StageEdge",
    "UNFUSED",
    "WEIGHT_POLICIES",
    "WeightPolicy",
    "Workload",
    "policy_of",
    "returned_bytes",
    "steps_sent",
]
