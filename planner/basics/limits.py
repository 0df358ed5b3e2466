"""How much a file may ask for: far above any use, and below what would hang or fill a machine."""

from __future__ import annotations

MOST_FILE_BYTES = 1 << 30
MOST_TABLE_FILE_BYTES = 1 << 22
"""Of a cluster.toml: TOML is read a letter at a time."""
MOST_LEVELS = 100
"""Lists and objects inside one another."""
MOST_NAME = 1 << 14
"""Letters of a name."""
MOST_DEVICES = 1 << 14
LEAST_CORES = 1e-6
"""Of a node: shares of few cores for many devices are fractions of one."""
MOST_LAYERS = 100_000
MOST_EDGES = 1_000_000
MOST_STAGES = 1 << 13
MOST_MICRO_BATCHES = 1_000_000
MOST_OPS = 10_000_000
"""Operations of a plan or a run; so many passes (stages times micro-batches) at most, too."""
MOST_SEARCHED_PASSES = 1_500_000
"""Stages times micro-batches of what is searched: 2,048 stages with 512 micro-batches are two thirds of it."""
MOST_SEARCHED_LAYERS = 4096
"""Of a model that is cut into stages: what its intervals cost is tabulated, the square of it."""
MOST_BYTES = 1 << 53
"""Of a size, and of all layers of a model together: as far as float64 counts exactly."""
MOST_COUNTED_BYTES = 1 << 61
"""Of all that a step moves and holds: the search adds it up in 64 bits."""
MOST_MEMORY_BYTES = 1 << 60
"""Of a device or a host."""
UNLIMITED_BYTES = 1 << 59
"""Of a device: what may hold as much has no limit."""
MOST_STEP_BYTES = 1 << 60
"""Of the tensors of all micro-batches: sums of them fit 63 bits."""
MOST_SECONDS = 1e12
LEAST_NUMBER = 1e-100
"""Of what is not nothing: ratios of numbers stay finite."""
MOST_RATE = 1e30
"""Bytes or floating-point operations a second."""
LEAST_RATE = 1e-6
MOST_SPEED = 1e9
"""Of a device against the one that was measured; one over it is the least."""
