"""Published files as models: PipeDream profiles, dnn-partitioning and Piper instances (docs/formats.md).

One file a format, recognised by its content; every mistake is an error of one line. Imports the problem. Begin with
`read` here; who adds a format adds a file and a line in `_published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..basics import reading
from ..problem import ModelFamily, ModelGraph
from . import dnn_partitioning, pipedream, piper
from .dnn_partitioning import PlacementInstance
from .pipedream import PipeDreamProfile
from .piper import Mode as PiperMode
from .piper import PiperInstance
from .published import FormatError, as_format

Published = PipeDreamProfile | PlacementInstance | PiperInstance

__all__ = [
    "FormatError",
    "PipeDreamProfile",
    "PiperInstance",
    "PiperMode",
    "PlacementInstance",
    "Published",
    "load_family",
    "load_graph",
    "read",
]


def read(path: str | Path) -> Published:
    """What a published file says, its format recognised by its content; raises FormatError, one line."""
    with as_format():
        text = reading.read_text(path)
        if _profile(text):
            return pipedream.load(path)
        found = _published(reading.parse_json(text, reading.file_name(path)), Path(path).stem)
    if found is None:
        raise FormatError(f"{reading.file_name(path)} is no PipeDream profile, dnn-partitioning or Piper instance")
    return found


def load_graph(path: str | Path) -> Published | ModelGraph:
    """What a model.json or a published file says; raises InputError, one line."""
    found = _load(path)
    return ModelGraph.from_dict(found) if isinstance(found, dict) else found


def load_family(path: str | Path) -> ModelFamily:
    """The models in a family's file; of a model.json or a published file, its one. Raises InputError, one line."""
    found = _load(path)
    return ModelFamily.from_dict(found) if isinstance(found, dict) else ModelFamily((found.model,))


def _load(path: str | Path) -> Published | dict[str, Any]:
    """A published file, or the content of one of ours."""
    text = reading.read_text(path)
    if _profile(text):
        return pipedream.load(path)
    content = reading.parse_json(text, reading.file_name(path))
    found = _published(content, Path(path).stem)
    return reading.mapping(content, "a model", what="a JSON object") if found is None else found


def _profile(text: str) -> bool:
    return not text.lstrip().startswith(("{", "[")) and pipedream.looks_like(text)


def _published(content: object, name: str) -> PlacementInstance | PiperInstance | None:
    """The instance in a JSON file, None when it is neither format."""
    if not isinstance(content, dict) or "format" in content or "layers" in content:
        return None
    if _has(content, {"maxFPGAs", "maxCPUs", "maxSizePerFPGA"}, {"fpgaLatency", "cpuLatency", "isBackwardNode"}):
        return dnn_partitioning.parse(content, name)
    if _has(content, {"maxDevices", "maxMemoryPerDevice", "mbsInBatch"}, {"TMPCs"}):
        return piper.parse(content, name)
    return None


def _has(content: Mapping[str, Any], top: set[str], node: set[str]) -> bool:
    """Does the file have a key of a format, at the top or in its first node?"""
    nodes = content.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else {}
    return bool(top & content.keys() or node & first.keys())
