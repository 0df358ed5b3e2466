"""The families of constraints of the exact model, in the order in which they are put together: its table of contents.

Each takes the variables and adds what it demands of them; none reads another. Devices, directions and stash choices
are literals of the variables, so that a family speaks of them once.
"""

from collections.abc import Callable

from ..variables import Variables
from .devices import ops_run_on_their_devices, step_is_no_shorter_than_any_load
from .links import stashes_travel, tensors_travel
from .memory import at_most_so_many_in_flight, host_memory, parameters_stay, stashes_are_held
from .precedence import backward_after_forward, remake_before_backward, step_ends_after_reductions
from .resources import memories_suffice, one_at_a_time
from .symmetry import devices_are_numbered, directions_are_numbered, first_in_first_out

Family = Callable[[Variables], None]

FAMILIES: tuple[Family, ...] = (
    directions_are_numbered,
    devices_are_numbered,
    ops_run_on_their_devices,
    backward_after_forward,
    remake_before_backward,
    stashes_travel,
    tensors_travel,
    step_ends_after_reductions,
    step_is_no_shorter_than_any_load,
    first_in_first_out,
    at_most_so_many_in_flight,
    stashes_are_held,
    parameters_stay,
    host_memory,
    one_at_a_time,
    memories_suffice,
)

__all__ = ["FAMILIES", "Family"]
