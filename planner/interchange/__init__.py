"""Plans for other runtimes: torch's schedules as CSV, out and in, and Megatron's flags.

What a runtime cannot express is an error that names the op, or is said to be lost. Imports lowering and schedules. One
file a runtime; begin with `torch_csv.py`.
"""

from .expressible import InterchangeError
from .megatron import to_megatron
from .torch_csv import read_torch_csv, to_torch_csv, torch_orders

__all__ = ["InterchangeError", "read_torch_csv", "to_megatron", "to_torch_csv", "torch_orders"]
