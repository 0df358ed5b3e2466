"""Where stages may get two devices each and stashes be shipped, and which policies of users' own may be used."""

from __future__ import annotations

import math

from ...graph import BUILT_IN, OFFLOAD, POLICIES, RECOMPUTE, SELECTIVE, SHIP, stash_policy
from ...partition import Chain, compositions
from ...plan import Problem
from ...problem import SearchSpace
from .effort import SIZE
from .shapes import binding, policies
from .shapes import priced as priced_policies


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


def registered(problem: Problem, space: SearchSpace) -> list[str]:
    """Rows that may be used beside those of `policies`: selective recomputation, where layers say what of their stashes
    it drops, and rows that a user has added to the table of stash policies.

    What makes a stash again is recomputation to the space, what copies it to the host is offloading, what names a
    device is shipping. Of users' rows no bound speaks but those that hold for every plan.
    """
    rows = [row for row in POLICIES.values() if row.name not in BUILT_IN and (not row.partial or _parts(problem))]
    if not rows or not binding(problem):
        return []
    known, ships = set(priced_policies(problem, space)), pays(problem, space)
    return [
        row.name
        for row in rows
        if not row.versioned
        and not (row.remade and RECOMPUTE not in known)
        and not (row.hosted and OFFLOAD not in known)
        and not (row.shipped and not ships)
    ]


def _parts(problem: Problem) -> bool:
    return any(layer.selective_bytes for layer in problem.model.layers)


def unknown(problem: Problem, space: SearchSpace) -> list[str]:
    """Of those, the rows of whose memory the bounds know nothing."""
    return [name for name in registered(problem, space) if name != SELECTIVE]


def remaking(problem: Problem, space: SearchSpace) -> list[str]:
    """Ours that make stashes again where they were made."""
    return [policy for policy in (*policies(problem, space), *registered(problem, space)) if policy in _REMAKING]


_REMAKING = (RECOMPUTE, SELECTIVE)


def unaddressed(problem: Problem, space: SearchSpace) -> list[str]:
    """What may be done with a stash besides keeping it, ours and users', but for what names a device."""
    added = (name for name in registered(problem, space) if not stash_policy(name).names_device)
    return [*policies(problem, space), *added]
