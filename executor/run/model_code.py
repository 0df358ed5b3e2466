"""What a process sees of a model's code: how its layers are made, and which sources it has loaded."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType

import torch
from torch import nn

from ...models import LayeredModel
from ...models.protocol import build_shapes

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_OURS = __name__.partition(".executor.")[0]


def layer_digests(model: LayeredModel) -> dict[str, str]:
    """By layer: a hash of its modules' classes, options, parameters' and buffers' names, shapes and types.

    Layers are built without memory (on the meta device) where their builders allow it. Values are not part of it.
    """
    found = {}
    for spec in model.layers:
        found[spec.name] = _digest("\n".join(_described(build_shapes(spec))).encode())
    return found


def _described(module: nn.Module) -> Iterator[str]:
    yield _ADDRESS.sub("", repr(module))
    for path, part in module.named_modules():
        kind = type(part)
        yield f"{path}: {kind.__module__}.{kind.__qualname__} {part.training}"
        for name, value in sorted(vars(part).items()):
            if not name.startswith("_"):
                yield f"{path}.{name} = {_value(value)}"
    for group, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in sorted(tensors):
            yield f"{group} {name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"


def _value(value: object) -> str:
    """An option of a module in words that are the same in every process."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, FunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return type(value).__qualname__


def source_digests() -> dict[str, str]:
    """By module: a hash of the source file of all that is loaded and neither Python's nor an installed package's.

    Contraflow's own sources are among them wherever they are.
    """
    found = {}
    library = f"{Path(os.__file__).parent}{os.sep}"
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and _is_own(name, path, library):
            with suppress(OSError):
                found[name] = _digest(Path(path).read_bytes())
    return found


def _is_own(name: str, path: str, library: str) -> bool:
    if name.partition(".")[0] == _OURS:
        return True
    return not path.startswith(library) and not any(part in path for part in _INSTALLED)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
