"""The GPUs of this machine: what torch and nvidia-smi say, and the links between them and to the host, measured.

Run on a machine with one GPU (docs/cuda.md); names, topologies and sharing are tested on the CPU.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...planner.problem import PRESETS, DeviceType, Link
from ..basics import RunError

COPIED_BYTES = 256 << 20
SMALL_BYTES = 4
SMI_S = 10.0


@dataclass(frozen=True)
class Gpus:
    """Equal GPUs of one node: kind, links between neighbours and to the host, how many share one of the latter."""

    count: int
    kind: DeviceType
    link: Link
    host_link: Link
    hosts_shared_by: int
    remarks: tuple[str, ...]


def found_gpus(rounds: int) -> Gpus:
    """What is here. Raises RunError: no GPU, or different ones."""
    if not torch.cuda.is_available():
        raise RunError("torch sees no CUDA device here: --device cpu measures processes")
    properties = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
    names = {found.name for found in properties}
    if len(names) > 1:
        raise RunError(f"GPUs of different kinds in one node are not detected: {', '.join(sorted(names))}")
    kind = kind_of(properties[0].name, min(found.total_memory for found in properties))
    pairs = [(k, k ^ 1) for k in range(len(properties)) if k ^ 1 < len(properties)]
    alone = _seconds(_both_ways(0), rounds)
    together = _seconds([copy for k in range(len(properties)) for copy in _both_ways(k)], rounds)
    shared = shared_by(together / alone, len(properties))
    small_s = _seconds(_both_ways(0, SMALL_BYTES), rounds)
    return Gpus(
        len(properties),
        kind,
        _between(pairs, rounds) if pairs else Link(),
        Link(COPIED_BYTES / (alone - small_s if alone > 2 * small_s else alone), small_s),
        shared,
        (f"{len(properties)} x {properties[0].name}, measured while all were at it.", *topology()),
    )


def kind_of(name: str, total_bytes: int) -> DeviceType:
    """The preset of a device's name, of which the memory tells variants apart; else a kind of its own."""
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    for preset, kind in PRESETS.items():
        model = preset.rsplit("-", 1)[0].upper()
        if model in words and abs(kind.memory_bytes - total_bytes) < 0.1 * kind.memory_bytes:
            return kind
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "gpu"
    return DeviceType(plain, total_bytes)


def shared_by(ratio: float, count: int) -> int:
    """Neighbours that share a host link, when copies of all take `ratio` times one's: the nearest divisor of count."""
    return min((k for k in range(1, count + 1) if count % k == 0), key=lambda k: abs(k - ratio))


def topology() -> tuple[str, ...]:
    """Rows of `nvidia-smi topo -m`, as remarks; none where it is not there."""
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        told = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told.stdout)
    rows = [" ".join(re.sub(r"[^ -~]+", " ", line).split()) for line in plain.splitlines()]
    return tuple(row for row in rows if re.match(r"GPU\d+ (?!GPU)", row))


def _between(pairs: Sequence[tuple[int, int]], rounds: int) -> Link:
    """Copies from each to its neighbour, all at once."""

    def copies(count: int) -> list[Callable[[], object]]:
        return [_copy(_bytes(count, source), _bytes(count, target)) for source, target in pairs]

    small_s = _seconds(copies(SMALL_BYTES), rounds)
    large_s = _seconds(copies(COPIED_BYTES), rounds)
    return Link(COPIED_BYTES / (large_s - small_s if large_s > 2 * small_s else large_s), small_s)


def _both_ways(device: int, count: int = COPIED_BYTES) -> list[Callable[[], object]]:
    """To the host and back at once, as stashes move: the ways share a link's switches and the host's memory."""
    here = [torch.empty(count, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [_bytes(count, device) for _ in range(2)]
    ways = ((there[0], here[0]), (here[1], there[1]))
    return [partial(_beside, torch.cuda.Stream(device), _copy(*way)) for way in ways]  # type: ignore[no-untyped-call]


def _beside(stream: torch.cuda.Stream, copy: Callable[[], object]) -> None:
    with torch.cuda.stream(stream):
        copy()


def _bytes(count: int, device: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=f"cuda:{device}")


def _copy(source: Tensor, target: Tensor) -> Callable[[], object]:
    return partial(target.copy_, source, non_blocking=True)


def _seconds(copies: Sequence[Callable[[], object]], rounds: int) -> float:
    """Seconds until all copies have ended: the lower quartile, since others only ever add."""
    laps = []
    for _ in range(rounds + 1):
        for k in range(torch.cuda.device_count()):
            torch.cuda.synchronize(k)
        start = time.perf_counter()
        for copy in copies:
            copy()
        for k in range(torch.cuda.device_count()):
            torch.cuda.synchronize(k)
        laps.append(time.perf_counter() - start)
    return statistics.quantiles(laps[1:], n=4, method="inclusive")[0]
