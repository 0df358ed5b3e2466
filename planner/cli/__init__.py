"""The commands that need no torch: plan, check, show, compare, partition, calibrate.

Each reads its input, calls one function of a room and prints the answer; no rule of planning is here. Imports every
room by its face, the solver when a search begins. Begin with `commands.py`; `common.py` is what all share, the
executor's commands too.
"""

from .common import A_FILE, OutputFile, SecondsLimit, print_json, say, stop
from .signals import EndingSignals

__all__ = [
    "A_FILE",
    "EndingSignals",
    "OutputFile",
    "SecondsLimit",
    "print_json",
    "say",
    "stop",
]
