"""What is partitioned, for which devices: files and models, each with an objective of its own (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ...basics import InputError
from ...formats import PipeDreamProfile, PiperInstance, PlacementInstance, Published
from ...problem import ModelGraph

BANDWIDTH = 1.25e9
"""Bytes a second between stages where nothing is said: the 10 Gbit/s of PipeDream's first cluster."""

Objective = Literal["overlap", "load"]
"""`overlap`: exactly so many stages, each the largest of its work and what crosses its cuts. `load`: at most so many,
each its work and everything that enters or leaves it."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True)
class LayerInstance:
    """A model and what to minimise on it."""

    model: ModelGraph
    objective: Objective = "overlap"


Instance = Published | LayerInstance


@dataclass(frozen=True)
class Devices:
    """What to partition for; None: as the file says.

    Attributes:
        count: accelerators; exactly so many stages under `overlap` without replicas, otherwise at most.
        bandwidth: bytes a second; dnn-partitioning files give transfer times instead.
        replicas, ways: of a stage at most. None: as many as help of a Piper instance; a PipeDream profile is cut into
            a straight pipeline.
    """

    count: int | None = None
    cpus: int | None = None
    limit_bytes: float | None = None
    bandwidth: float | None = None
    replicas: int | None = None
    ways: int | None = None

    @property
    def link_bandwidth(self) -> float:
        """Bytes a second where the file has nothing to say about it."""
        return BANDWIDTH if self.bandwidth is None else self.bandwidth


@dataclass(frozen=True)
class NodeBlock:
    """One stage in the file's own ids: who runs it, and the name of every node's mode where the file has modes.

    It is on `replicas` times `ways` devices: micro-batches are dealt to replicas, layers split between ways.
    """

    nodes: tuple[Hashable, ...]
    cpu: bool = False
    replicas: int = 1
    ways: int = 1
    modes: tuple[str, ...] = ()


def objective_of(instance: Instance) -> Objective:
    """The objective of an instance: a file's is its authors'."""
    if isinstance(instance, LayerInstance):
        return instance.objective
    return "overlap" if isinstance(instance, PipeDreamProfile) else "load"


def unit_of(instance: Instance) -> str:
    """The unit of the objective, "" where the file alone knows it."""
    if isinstance(instance, PiperInstance):
        return ""
    return "ms" if isinstance(instance, PlacementInstance) else "s"


def configure(instance: Instance, devices: Devices) -> Instance:
    """The instance with what the devices say in place of what its file says; raises InputError."""
    if (devices.count is not None and devices.count < 0) or (devices.cpus is not None and devices.cpus < 0):
        raise InputError("there cannot be fewer than no devices")
    _refuse_widths(instance, devices)
    if isinstance(instance, PlacementInstance):
        if devices.bandwidth is not None:
            raise InputError("a dnn-partitioning file gives transfer times: a bandwidth has no effect")
        return replace(
            instance,
            accelerators=instance.accelerators if devices.count is None else devices.count,
            cpus=instance.cpus if devices.cpus is None else devices.cpus,
            limit_bytes=instance.limit_bytes if devices.limit_bytes is None else devices.limit_bytes,
        )
    if devices.cpus:
        raise InputError("only dnn-partitioning files say what a CPU can do")
    if devices.link_bandwidth <= 0:
        raise InputError("a bandwidth must be above 0")
    if isinstance(instance, PiperInstance):
        return replace(
            instance,
            devices=instance.devices if devices.count is None else devices.count,
            limit_bytes=instance.limit_bytes if devices.limit_bytes is None else devices.limit_bytes,
            bandwidth=instance.bandwidth if devices.bandwidth is None else devices.bandwidth,
        )
    if devices.count is None:
        what = "model" if isinstance(instance, LayerInstance) else "PipeDream profile"
        raise InputError(f"a {what} does not say how many stages: give their number")
    return instance if isinstance(instance, LayerInstance) else instance.trained


def _refuse_widths(instance: Instance, devices: Devices) -> None:
    """Raises InputError for replicas or ways that the file says nothing about."""
    for what, given in (("replicas", devices.replicas), ("ways", devices.ways)):
        if given is not None and given < 1:
            raise InputError(f"a stage has at least one of its {what}, not {given}")
    if devices.replicas is not None and not isinstance(instance, (PipeDreamProfile, PiperInstance)):
        raise InputError("only PipeDream profiles and Piper instances have replicas of a stage")
    if devices.ways is not None and not isinstance(instance, PiperInstance):
        raise InputError("only Piper instances say what layers take that are split in several ways")
