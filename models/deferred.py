"""Modules built without memory: what makes their tensors is recorded, and done when a tensor is asked for.

As in torchdistx's deferred_init: a rank that needs the tensors of its stages makes no others. Values are those of a
build in memory, bit by bit: buffers are computed really, and draws that nobody asks for are drawn once and thrown away,
one tensor at a time, so that those behind them are right.
"""

from __future__ import annotations

import builtins
import copy
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from .seeding import RANDOM_LOCK

_READS = {"_local_scalar_dense", "equal", "is_nonzero"}
_AS_NUMBERS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)


class NotDeferred(Exception):
    """A construction that cannot be recorded: it is done in memory."""


@dataclass(frozen=True, eq=False)
class _Place:
    """A tensor by its storage."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class _Values:
    """A tensor that was made elsewhere."""

    tensor: Tensor


@dataclass(eq=False)
class _Made:
    """One operator; `seeded`: the generator's state that the user gave before it, or the number of the draw after whose
    it was put back, -1 for that of the start; `before`, `after`: where it draws from, and where that leads.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: list[_Place]
    draws: bool
    seeded: Tensor | int | None = None
    before: Tensor | None = None
    after: Tensor | None = None

    def takes(self) -> Iterator[_Place]:
        """The tensors that it takes."""
        found: list[_Place] = []
        tree_map_only(_Place, found.append, (self.args, self.kwargs))
        return iter(found)


@dataclass(eq=False)
class Record:
    """How the tensors of a construction come to be, in order; `start`: the generator's state before it.

    `given`: tensors whose values are read from somewhere in the end, by their storage.
    """

    start: Tensor
    made: list[_Made] = field(default_factory=list)
    writers: dict[int, list[int]] = field(default_factory=dict)
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    given: dict[int, Callable[[], Tensor]] = field(default_factory=dict)
    drawn: int = 0

    def __post_init__(self) -> None:
        self.state = self._reached = self.start
        self._marks = {_digest(self.start): -1}

    def place(self, tensor: Tensor) -> _Place:
        """Where a tensor without memory lies."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise NotDeferred("a tensor that does not lie in memory row by row")
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = storage
        lies = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), int(tensor.storage_offset())
        return _Place(storage._cdata, *lies, tensor.dtype)

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An operator has been run without memory. Raises NotDeferred."""
        draws = torch.Tag.nondeterministic_seeded in func.tags
        given: list[Tensor] = []
        tree_map_only(Tensor, given.append, (args, kwargs))
        if func._schema.is_mutable and any(not isinstance(t, FakeTensor) for t in given):
            raise NotDeferred("an operator writes to a tensor made elsewhere")
        if draws and (len(given) > 1 or kwargs.get("generator") is not None):
            raise NotDeferred("values are drawn by others or by a generator of its own")
        taken_args, taken_kwargs = tree_map_only(Tensor, self._taken, (args, kwargs))
        gives: list[_Place] = []
        tree_map_only(FakeTensor, lambda t: gives.append(self.place(t)), out)
        one = _Made(func, taken_args, taken_kwargs, gives, draws)
        if draws:
            one.seeded = self._given_since()
            self._mark(len(self.made))
        number = len(self.made)
        self.made.append(one)
        for storage in {p.storage for p in (*gives, *(one.takes() if func._schema.is_mutable else ()))}:
            self.writers.setdefault(storage, []).append(number)

    def _given_since(self) -> Tensor | int | None:
        """The state that the generator was given since the last draw; the number of a draw if it had it after that."""
        with _disable_current_modes():
            now = torch.get_rng_state()
            return None if torch.equal(now, self.state) else self._marks.get(_digest(now), now)

    def _mark(self, number: int) -> None:
        """Leaves the generator in a state that it had nowhere else, so that the same seed given again is seen."""
        with _disable_current_modes():
            torch.rand(number + 1)
            while (digest := _digest(torch.get_rng_state())) in self._marks:
                torch.rand(1)
            self._marks[digest], self.state = number, torch.get_rng_state()

    def _taken(self, tensor: Tensor) -> Any:
        """Of what was made elsewhere, and may be written to there, its values of now."""
        if isinstance(tensor, FakeTensor):
            return self.place(tensor)
        with _disable_current_modes():
            return _Values(tensor.detach().clone())

    def give(self, tensor: Tensor, read: Callable[[], Tensor]) -> None:
        """A tensor of the construction gets its values from there: all of its storage. Raises NotDeferred."""
        if not tensor.is_contiguous() or tensor.storage_offset() or not self.known(tensor):
            raise NotDeferred("a part of a tensor is read")
        self.given[self.place(tensor).storage] = read

    def known(self, tensor: Tensor) -> bool:
        """Whether its values can be made."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self.writers

    def values(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """The tensors with memory; those that share it do so. Nobody else's, and made anew by every call."""
        places = [self.place(tensor) for tensor in tensors]
        with RANDOM_LOCK, _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            needed = self._needed({place.storage for place in places} - self.given.keys())
            last = max((k for k in needed if self.made[k].draws), default=-1)
            passed = {k for k in range(self.drawn, last + 1) if self.made[k].draws}
            there: dict[int, torch.UntypedStorage] = {}
            for number in sorted(needed | passed):
                one = self.made[number]
                if one.draws:
                    self._seed(one)
                if number in needed:
                    _run(one, there)
                else:
                    one.func(*_scratch(one.args), **_scratch(one.kwargs))
                if number in passed:
                    self._reached = one.after = torch.get_rng_state()
                    self.drawn = number + 1
            for storage in {place.storage for place in places} & self.given.keys():
                there[storage] = self.given[storage]().contiguous().untyped_storage()
            return [_lying(place, there) for place in places]

    def _seed(self, one: _Made) -> None:
        """What the operator draws comes from where it did in the construction."""
        if one.before is None:
            one.before = self._reached if one.seeded is None else self._state_of(one.seeded)
        torch.set_rng_state(one.before)

    def _state_of(self, seeded: Tensor | int) -> Tensor:
        if isinstance(seeded, Tensor):
            return seeded
        found = self.start if seeded < 0 else self.made[seeded].after
        assert found is not None  # draws are made in order
        return found

    def _needed(self, storages: set[int]) -> set[int]:
        found: set[int] = set()
        waiting, seen = list(storages), set(storages)
        while waiting:
            for number in self.writers.get(waiting.pop(), ()):
                if number not in found:
                    found.add(number)
                    more = {place.storage for place in self.made[number].takes()} - seen
                    seen |= more
                    waiting += more
        return found


def _digest(state: Tensor) -> bytes:
    return blake2b(state.numpy().tobytes(), digest_size=16).digest()


def _state() -> Tensor:
    with _disable_current_modes():
        return torch.get_rng_state()


def _run(one: _Made, there: dict[int, torch.UntypedStorage]) -> None:
    args, kwargs = tree_map_only(_Place, lambda place: _lying(place, there), (one.args, one.kwargs))
    args, kwargs = tree_map_only(_Values, lambda made: made.tensor.clone(), (args, kwargs))
    out: list[Tensor] = []
    tree_map_only(Tensor, out.append, one.func(*args, **kwargs))
    for place, tensor in zip(one.out, out, strict=True):
        there[place.storage] = tensor.untyped_storage()


def _scratch(given: Any) -> Any:
    """Memory of the same shape, for draws that nobody wants."""
    return tree_map_only(_Place, lambda place: torch.empty_strided(place.size, place.stride, dtype=place.dtype), given)


def _lying(place: _Place, there: Mapping[int, torch.UntypedStorage]) -> Tensor:
    if place.storage not in there:
        raise NotDeferred("a tensor that nothing has made")
    return torch.empty(0, dtype=place.dtype).set_(there[place.storage], place.offset, place.size, place.stride)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what is run without memory, and computes numbers that the construction looks at."""

    def __init__(self, record: Record) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.partition("::")[2] in _READS:
            given = tree_map_only(FakeTensor, lambda tensor: self._record.values([tensor])[0], args)
            with _disable_current_modes():
                return func(*given, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self._record.note(func, args, kwargs or {}, out)
        return out


class _Numbers(TorchFunctionMode):
    """Lists, arrays and copies of tensors without memory."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _AS_NUMBERS and isinstance(args[0], FakeTensor):
            (value,) = self._record.values(args[:1])
            with _disable_current_modes():
                return func(value, *args[1:], **(kwargs or {}))
        if func is Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = _like(tensor, tensor.detach().clone())
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))


def _like(fake: Tensor, value: Tensor) -> Tensor:
    """The value as what the fake is."""
    if isinstance(fake, nn.Parameter):
        return nn.Parameter(value, fake.requires_grad)
    return value.requires_grad_(fake.requires_grad)


def recorded(make: Callable[[], Any]) -> tuple[Any, Record]:
    """What a function makes, with tensors of `FakeTensor` that have no memory, and how to come by their values.

    Draws start from the state of torch's default generator. Raises NotDeferred, or whatever the function raises.
    """
    with RANDOM_LOCK, _disable_current_modes(), _imports_in_memory(), ExitStack() as modes:
        record = Record(_state())
        for mode in (FakeTensorMode(allow_non_fake_inputs=True), _Recorder(record), _Numbers(record)):
            modes.enter_context(mode)
        made = make()
    return made, record


@contextmanager
def _imports_in_memory() -> Iterator[None]:
    """What is imported while it lasts is for good: its tensors have memory."""
    kept = builtins.__import__, importlib.import_module

    def there(name: str) -> bool:
        return name in sys.modules

    def plain(name: str, *rest: Any, **more: Any) -> Any:
        with nullcontext() if there(name) else _disable_current_modes():
            return kept[0](name, *rest, **more)

    def by_name(name: str, package: str | None = None) -> Any:
        with nullcontext() if there(name) else _disable_current_modes():
            return kept[1](name, package)

    builtins.__import__, importlib.import_module = plain, by_name
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = kept


def require_known(modules: Iterable[nn.Module], record: Record) -> None:
    """Raises NotDeferred: a parameter or buffer came to be in a way that was not seen."""
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if isinstance(tensor, FakeTensor) and not record.known(tensor):
                raise NotDeferred("a tensor that nothing has made")


def filled(module: nn.Module, record: Record) -> nn.Module:
    """A copy of a module, with memory for all its tensors; none of them is anybody else's."""
    fakes = {id(t): t for t in (*module.parameters(), *module.buffers()) if isinstance(t, FakeTensor)}
    with _Filling(record):
        memo = dict(zip(fakes, map(_like, fakes.values(), record.values(fakes.values())), strict=True))
        found: nn.Module = copy.deepcopy(module, memo)
    return found


def with_values(given: Any, record: Record | None) -> Any:
    """The same in which tensors have memory."""
    return given if record is None else tree_map_only(FakeTensor, lambda t: record.values([t])[0], given)


class _Filling(TorchFunctionMode):
    """Copies of tensors without memory have some."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = _like(tensor, self._record.values([tensor])[0])
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))
