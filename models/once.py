"""A user's function makes all layers in one call: whoever asks for one of them gets a copy of what that call made.

The call is made without memory where it can be recorded (see `deferred`): each copy has its own tensors' alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from .deferred import Record, filled, recorded, require_known
from .seeding import RANDOM_LOCK, generator_states, seeded

Factory = Callable[[], Any]
"""Returns layers in order: modules, or pairs of a name and a module."""


class Built(NamedTuple):
    """What a function makes, how its tensors come to be (None: they have memory), and whether it draws."""

    made: Any
    record: Record | None
    drew: bool


@runtime_checkable
class Drawn(Protocol):
    """A function that says itself what it makes under a seed."""

    def under(self, seed: int) -> Built:
        """What it makes."""


_OUTLINES: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by function: what it made, without memory


@dataclass
class _Kept:
    """What functions have made, by function and seed, while somebody keeps it; guarded by RANDOM_LOCK."""

    keepers: int
    made: dict[tuple[int, int], tuple[Factory, Built]]


_KEPT = _Kept(0, {})


@contextmanager
def kept() -> Iterator[None]:
    """While it lasts, a function is called once for a seed: all that it made stays in this process's memory."""
    with RANDOM_LOCK:
        _KEPT.keepers += 1
    try:
        yield
    finally:
        with RANDOM_LOCK:
            _KEPT.keepers -= 1
            if not _KEPT.keepers:
                _KEPT.made.clear()


def forget() -> None:
    """Frees what nobody keeps but the first to do so: the layers that were asked for are built."""
    with RANDOM_LOCK:
        if _KEPT.keepers <= 1:
            _KEPT.made.clear()


def keep(factory: Factory, seed: int, made: Built) -> None:
    """This is what the function makes under that seed; copied before it is used, while anybody keeps it."""
    with RANDOM_LOCK:
        if _KEPT.keepers:
            _KEPT.made[id(factory), seed] = factory, made


def _made_by(factory: Factory, seed: int) -> Built:
    with RANDOM_LOCK:
        if (id(factory), seed) in _KEPT.made:
            return _KEPT.made[id(factory), seed][1]
        made = factory.under(seed) if isinstance(factory, Drawn) else build(factory, seed)
        keep(factory, seed, made)
        return made


def build(factory: Factory, seed: int) -> Built:
    """What the function makes under that seed: without memory, where nothing in it speaks against that."""
    try:
        with drawing(seed):
            before = generator_states()
            made, record = recorded(factory)
            drew = bool(record.made) or generator_states() != before
        if isinstance(made, list | tuple | nn.Sequential):
            require_known(filter(_is_module, map(module_of, made)), record)
        return Built(made, record, drew)
    except Exception:  # what is wrong with it, is wrong in memory too, and said there
        with drawing(seed):
            before = generator_states()
            made = factory()
            return Built(made, None, generator_states() != before)


def _is_module(made: object) -> bool:
    return isinstance(made, nn.Module)


def drawing(seed: int) -> AbstractContextManager[None]:
    """Where the values of all layers that a function makes are drawn."""
    return seeded("parameters", seed, 0)


def module_of(entry: Any) -> nn.Module:
    """What a model function returns for a layer is a module, or a pair of its name and it."""
    module: nn.Module = entry[1] if isinstance(entry, (list, tuple)) else getattr(entry, "module", entry)
    return module


@dataclass(frozen=True)
class PartOf:
    """Layer `index` of what a function returns; called, it makes another one by a call of its own."""

    factory: Factory
    index: int

    def __call__(self) -> nn.Module:
        return module_of(self.factory()[self.index])

    def under(self, seed: int) -> nn.Module:
        """The layer with the values of that seed, nobody else's: a copy where the call's layers are kept."""
        made, record, _ = _made_by(self.factory, seed)
        module = module_of(made[self.index])
        try:
            return copy.deepcopy(module) if record is None else filled(module, record)
        except Exception:  # what cannot be copied is made again
            with drawing(seed):
                return self()

    def shapes(self) -> nn.Module:
        """The layer without memory, nobody else's; where that is not known, whatever a call makes of it."""
        known = outline(self.factory)
        return self() if known is None else copy.deepcopy(module_of(known[self.index]))


def outline(factory: Factory) -> Sequence[Any] | None:
    """What the function made when it was called first, on the meta device; None: not called yet, or not to be copied.

    What is one tensor in several layers is so here.
    """
    if factory not in _OUTLINES:
        return None
    known: Sequence[Any] = _OUTLINES[factory]
    return known


def note_outline(factory: Factory, made: Sequence[Any]) -> None:
    """Keeps the outline of what the function made."""
    with suppress(Exception), _WithoutMemory():  # a function or module of a kind that does not allow it
        _OUTLINES[factory] = copy.deepcopy(list(made), _emptied(map(module_of, made)))


def _emptied(modules: Iterator[nn.Module]) -> dict[int, Any]:
    """By the id of every parameter: one without memory in its place, as `copy.deepcopy` takes it."""
    found: dict[int, Any] = {}
    for module in modules:
        for parameter in module.parameters():
            found[id(parameter)] = nn.Parameter(_empty(parameter), parameter.requires_grad)
    return found


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


class _WithoutMemory(TorchFunctionMode):
    """Copies of tensors are on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        return memo.setdefault(id(tensor), _empty(tensor))
