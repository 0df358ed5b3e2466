"""Where the search gives stages a forward and a backward device each, and ships stashes: where that may pay."""

from __future__ import annotations

import math

from ...graph import SHIP
from ...partition import Chain, compositions
from ...plan import Problem
from ...problem import SearchSpace
from .effort import SIZE
from .shapes import binding, policies


def pays(problem: Problem, space: SearchSpace) -> bool:
    """Whether stashes on other devices may pay: allowed, priced, and some device cannot hold all stashes.

    What has no price is not assumed to be free: every link between devices needs a bandwidth.
    """
    cluster = problem.cluster
    links = [group.link for group in cluster.nodes if group.devices > 1]
    links += [cluster.network] if len(cluster.node_groups) > 1 else []
    priced = bool(links) and all(math.isfinite(link.bandwidth) for link in links)
    return space.separate_backward and priced and binding(problem)


def searchable(problem: Problem) -> bool:
    """Whether the candidates can be listed and their models built."""
    devices, layers = len(problem.cluster), len(Chain.of(problem))
    small = (
        devices <= min(SIZE.two_device_devices, layers)
        and 2 * problem.workload.micro_batches * devices <= SIZE.two_device_ops
    )
    return small and compositions(layers, devices, SIZE.two_device_cuts) is not None


def stash_choices(problem: Problem, space: SearchSpace) -> frozenset[str]:
    """What may happen to the stashes of a stage, moving to its backward device and shipping there and back included."""
    return frozenset(["keep", SHIP, *policies(problem, space)])
