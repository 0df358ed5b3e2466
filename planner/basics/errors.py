"""What the planner raises on bad input: every class is a ValueError whose message fits one line."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from a file, a flag or a caller; the message names what is wrong and where."""


class ModelError(InputError):
    """A model graph that cannot be planned: the message names the layer."""


class ClusterError(InputError):
    """A cluster description that makes no sense: the message names the node or device."""


class WorkloadError(InputError):
    """A workload or search space that makes no sense."""


class PlanError(InputError):
    """A plan file that cannot be read as a plan."""


class ScheduleError(InputError):
    """A named schedule that does not exist for these devices, stages and micro-batches."""
