"""What carries messages between ranks."""

from .choice import carried
from .groups import reduce_groups, stage_on_two_devices, statistics_group, tie_group
from .job_store import JobStore
from .loopback import all_here, listen_locally, local_store
from .threads import Hub
from .transport import BACKSTOP_S, GlooTransport, Handle, Transport

__all__ = [
    "BACKSTOP_S",
    "GlooTransport",
    "Handle",
    "Hub",
    "JobStore",
    "Transport",
    "all_here",
    "carried",
    "listen_locally",
    "local_store",
    "reduce_groups",
    "stage_on_two_devices",
    "statistics_group",
    "tie_group",
]
