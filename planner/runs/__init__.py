"""What runs did: their traces as files, layer costs calibrated by them, and forecasts held against them.

Read without torch. Imports plans, graph and forecast. Begin with `trace.py`, then `comparison.py`.
"""

from .calibration import Measured, calibrate, measured
from .comparison import Comparison, compare_run
from .trace import DeviceTrace, LaneTrace, OpTrace, RunTrace, plan_fingerprint
from .trace_file import load_trace, save_trace

__all__ = [
    "Comparison",
    "DeviceTrace",
    "LaneTrace",
    "Measured",
    "OpTrace",
    "RunTrace",
    "calibrate",
    "compare_run",
    "load_trace",
    "measured",
    "plan_fingerprint",
    "save_trace",
]
