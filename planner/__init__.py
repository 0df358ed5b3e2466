"""Planning: costs in, a plan and a bound out. Knows neither torch nor the executor.

    from contraflow.planner import ModelGraph, Cluster, Workload, SearchSpace, plan, evaluate

The functions `plan`, `check` and `simulate` hide the modules of the same names, which are therefore all loaded here;
`from contraflow.planner.plan import Op` works as usual. The solver, networkx and the compiler load on first use.
"""

from .basics import InputError
from .check import Violation, check
from .plan import Forecast, Plan
from .plan_file import load_plan, save_plan
from .problem import Cluster, Layer, Link, ModelFamily, ModelGraph, SearchSpace, Workload
from .search import Choice, Effort, Progress, Result, Shortage, plan, plan_family
from .simulate import evaluate, simulate


def _drawn(plan: Plan) -> str:
    from .view import notebook

    return notebook(plan)


Plan.drawn = _drawn

__all__ = [
    "Choice",
    "Cluster",
    "Effort",
    "Forecast",
    "InputError",
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
    "evaluate",
    "load_plan",
    "plan",
    "plan_family",
    "save_plan",
    "simulate",
]
