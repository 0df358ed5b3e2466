"""What carries messages between ranks: threads, gloo, NCCL, or host buffers beside any of them.

Imports places. Begin with `transport.py`, the interface and gloo; `choice.py` says which one a rank gets. A new
transport is one file here and one line there (docs/extending.md).
"""

from .choice import said, transport_for
from .groups import reduce_groups, stage_on_two_devices, statistics_group, tie_group
from .job_store import JobStore
from .loopback import all_here, listen_locally, local_store
from .seat import Seat
from .threads import Hub
from .transport import BACKSTOP_S, GlooTransport, Handle, Transport

__all__ = [
    "BACKSTOP_S",
    "GlooTransport",
    "Handle",
    "Hub",
    "JobStore",
    "Seat",
    "Transport",
    "all_here",
    "listen_locally",
    "local_store",
    "reduce_groups",
    "said",
    "transport_for",
    "stage_on_two_devices",
    "statistics_group",
    "tie_group",
]
