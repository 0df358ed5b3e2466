"""Op lists to times and exact memory: jobs with durations, precedences and resources, and what each changes in memory.

The only source of forecasts: whatever a solver claims is simulated here. Imports the operation graph. Begin with
`timeline.py` (one simulated step), then `jobs.py` (what becomes a job) and `events.py` (what allocates and frees,
when). `planner.simulate` gives it to others as forecasts of plans.
"""

from .curves import jobs_of_ops
from .events import CATEGORIES, CLOSE
from .idle import Cause, IdleSpan, idle_spans, seconds_by_cause
from .jobs import Jobs, build, build_columns
from .many import with_seconds
from .op_memory import Taken, bytes_taken, copied_to_host, most_host_bytes
from .tensors import Held, held_tensors
from .timeline import Deadlock, Timeline, simulate_orders, timeline_of
from .version_copies import most_copies

__all__ = [
    "CATEGORIES",
    "CLOSE",
    "Cause",
    "Deadlock",
    "Held",
    "IdleSpan",
    "Jobs",
    "Taken",
    "Timeline",
    "build",
    "build_columns",
    "bytes_taken",
    "copied_to_host",
    "held_tensors",
    "idle_spans",
    "jobs_of_ops",
    "most_copies",
    "most_host_bytes",
    "seconds_by_cause",
    "simulate_orders",
    "timeline_of",
    "with_seconds",
]
