"""Costs of layers and machines: measured under load, or estimated for a device that is not here; machines too.

Makes what model.json and cluster.toml hold. Imports stage programs, places and wires, and knows no plan. Begin with
`profile.py`; `team.py` has it measure as a rank of a team, `analytic.py`, `roofline.py` and `kernels.py` are for
presets, `environment.py` for bug reports.
"""

from .analytic import PRECISIONS, analytic_profile
from .environment import report
from .machine import measure_machine
from .profile import cores, default_load, profile_model

__all__ = [
    "PRECISIONS",
    "analytic_profile",
    "cores",
    "default_load",
    "measure_machine",
    "profile_model",
    "report",
]
