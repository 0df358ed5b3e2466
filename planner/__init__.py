"""Planning: costs in, a plan and a bound out. Knows neither torch nor the executor.

    from contraflow.planner import ModelGraph, Cluster, Workload, SearchSpace, plan, evaluate

The functions `plan`, `check` and `simulate` hide the modules of the same names, which are therefore all loaded here;
`from contraflow.planner.plan import Op` works as usual. The solver, networkx and the compiler load on first use.
"""

from .basics import InputError
from .check import Violation, check
from .interchange import InterchangeError, read_torch_csv, to_megatron, to_torch_csv
from .plan import Forecast, Plan
from .plan_file import load_plan, plan_from_dict, plan_to_dict, save_plan
from .problem import Cluster, Layer, Link, ModelFamily, ModelGraph, SearchSpace, Workload
from .search import (
    Choice,
    Compared,
    Contender,
    Effort,
    Frontier,
    FrontierPoint,
    Progress,
    Result,
    Shortage,
    compare,
    frontier,
    plan,
    plan_family,
    plan_layout,
)
from .simulate import Evaluations, evaluate, evaluate_many, evaluate_orders, simulate


def _drawn(plan: Plan) -> str:
    from .view import notebook

    return notebook(plan)


Plan.drawn = _drawn

__all__ = [
    "Choice",
    "Cluster",
    "Compared",
    "Contender",
    "Effort",
    "Evaluations",
    "Forecast",
    "Frontier",
    "FrontierPoint",
    "InputError",
    "InterchangeError",
    "Layer",
    "Link",
    "ModelFamily",
    "ModelGraph",
    "Plan",
    "Progress",
    "Result",
    "SearchSpace",
    "Shortage",
    "Violation",
    "Workload",
    "check",
    "compare",
    "evaluate",
    "evaluate_many",
    "evaluate_orders",
    "frontier",
    "load_plan",
    "plan",
    "plan_family",
    "plan_from_dict",
    "plan_layout",
    "plan_to_dict",
    "read_torch_csv",
    "save_plan",
    "simulate",
    "to_megatron",
    "to_torch_csv",
]
