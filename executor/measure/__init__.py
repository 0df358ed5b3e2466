"""Costs of layers and machines: measured under load, or estimated for a device that is not here; machines too.

Makes what model.json and cluster.toml hold. Imports stage programs, places and wires, and knows no plan. Begin with
`profile.py`; `team.py` has it measure as a rank of a team, `analytic.py`, `roofline.py` and `kernels.py` are for
presets, `environment.py` for bug reports. All but the last load torch, when they are asked for.
"""

from typing import TYPE_CHECKING, Any

from .environment import report

if TYPE_CHECKING:
    from .analytic import PRECISIONS, analytic_profile
    from .detect import detect_cluster
    from .profile import default_load, profile_model

__all__ = [
    "PRECISIONS",
    "analytic_profile",
    "default_load",
    "detect_cluster",
    "profile_model",
    "report",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import analytic, detect, profile

    return next(vars(module)[name] for module in (analytic, profile, detect) if name in vars(module))
