"""Does a list of layers hold all of the module that it was taken from? What it leaves out would not be trained."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

NAMED = 4
"""So many names are told."""


@contextmanager
def modules_made() -> Iterator[list[nn.Module]]:
    """The modules that are given others as parts by this thread, while it lasts."""
    thread, found = threading.get_ident(), dict[int, nn.Module]()

    def note(parent: nn.Module, _: str, part: nn.Module | None) -> None:
        if threading.get_ident() == thread:
            found[id(parent)] = parent

    handle = register_module_module_registration_hook(note)
    made: list[nn.Module] = []
    try:
        yield made
    finally:
        handle.remove()
        made += found.values()


def left_out(made: Iterable[nn.Module], layers: Iterable[nn.Module]) -> str | None:
    """What modules that have parts in the layers hold beside them: names and elements in a line; None: nothing.

    `made`: the modules that may be the ones the layers were taken from.
    """
    owned = {id(tensor) for layer in layers for _, tensor in _tensors(layer)}
    missing: dict[int, tuple[str, Tensor]] = {}
    for module in made:
        named = list(_tensors(module))
        if any(id(tensor) in owned for _, tensor in named):
            for name, tensor in named:
                known = missing.get(id(tensor))
                if id(tensor) not in owned and (known is None or len(name) > len(known[0])):
                    missing[id(tensor)] = name, tensor
    if not missing:
        return None
    names = sorted(name for name, _ in missing.values())
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    count = sum(tensor.numel() for _, tensor in missing.values())
    return f"{', '.join(names[:NAMED])}{more} ({count:,} elements)"


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
