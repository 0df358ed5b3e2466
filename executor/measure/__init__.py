"""Costs of layers and machines, measured or estimated."""

from .analytic import EFFICIENCY, PRECISIONS, analytic_profile
from .environment import report
from .machine import measure_machine
from .profile import default_load, profile_model

__all__ = [
    "EFFICIENCY",
    "PRECISIONS",
    "analytic_profile",
    "default_load",
    "measure_machine",
    "profile_model",
    "report",
]
