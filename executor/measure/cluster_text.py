"""A cluster of one sort of nodes as people read and change it: cluster.toml."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...planner.problem import PRESETS, Cluster, Link


def cluster_toml(cluster: Cluster, remarks: Iterable[str] = ()) -> str:
    """cluster.toml, the remarks before it; what is as it is without a word is not said."""
    (group,) = cluster.nodes
    kind, preset = group.device, PRESETS.get(group.device.name)
    lines = [f"# {remark}" for remark in remarks]
    lines += [f"told_apart = {cluster.told_apart:.4g}"] * (cluster.told_apart > 0)
    lines += ["[[nodes]]"]
    lines += [f"count = {group.count}"] * (group.count > 1)
    lines += [f"devices = {group.devices}", f'device = "{kind.name}"']
    if group.cores is not None:
        lines.append(f"cores = {group.cores:.4g}")
    lines += [f"link = {_link(group.link)}"] * (group.devices > 1)
    if group.host_memory_bytes is not None:
        lines.append(f'host_memory = "{group.host_memory_bytes}B"')
    if group.host_link != Link():
        shared = f"shared_by = {group.host_link_shared_by}" if group.host_link_shared_by > 1 else ""
        lines.append(f"host_link = {_link(group.host_link, shared)}")
    if group.count > 1:
        lines += ["", "[network]", f'bandwidth = "{_rate(cluster.network.bandwidth)}"']
        lines.append(f'latency = "{_time(cluster.network.latency_s)}"')
    if kind != preset:
        lines += ["", f'[devices."{kind.name}"]', f'memory = "{kind.memory_bytes}B"']
        if kind.memory_bandwidth is not None:
            lines.append(f'memory_bandwidth = "{_rate(kind.memory_bandwidth)}"')
    if cluster.overhead is not None:
        lines += ["", "[overhead]"]
        lines += [f'{key} = "{_time(seconds)}"' for key, seconds in cluster.overhead.to_dict().items()]
    return "\n".join(lines) + "\n"


def _link(link: Link, more: str = "") -> str:
    """An inline table; what is infinite is not said."""
    rates = {"bandwidth": link.bandwidth, "reduce_bandwidth": link.reduce_bandwidth}
    said = [f'{key} = "{_rate(rate)}"' for key, rate in rates.items() if rate is not None and math.isfinite(rate)]
    said += [f'latency = "{_time(link.latency_s)}"', *([more] if more else [])]
    said += [f"cores = {link.cores:.3g}"] * (link.cores > 0)
    return f"{{{', '.join(said)}}}"


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.4g}GB/s" if bandwidth >= 1e9 else f"{bandwidth / 1e6:.4g}MB/s"


def _time(seconds: float) -> str:
    """Three digits, and no exponent."""
    count = 1e6 * seconds
    return f"{count:.0f}us" if count >= 100 else f"{count:.3g}us" if count >= 1e-3 else "0us"
