"""Transient memory of every kind of op of a stage, from what each of its layers takes while it runs alone.

While one layer of a stage runs, stashes of later ones are not there yet, in a backward not any more, and gradients are
there on the two sides of this layer only. So less is needed than the stage's whole stash, the tensors at its ends and
the largest workspace of a layer, which is all that is known where layers say no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from .kept_twice import KeptTwice
from .layer import Layer, Workspaces


def stage_workspaces(layers: Sequence[Layer], twice: Iterable[KeptTwice], taken: int, given: int) -> Workspaces:
    """Bytes of a stage of these layers, in the order in which they run, beyond stash, received and sent tensors.

    taken, given: bytes of what it takes from other stages, and gives each of them; gradients are as large.
    """
    pairs = list(twice)
    needed = inner_workspaces(layers, pairs)
    if needed is None:
        return Workspaces(*[max(layer.workspace_bytes for layer in layers)] * len(Workspaces._fields))
    more = max(0, _held(layers, pairs)[-1] - _stashed(layers, pairs)[-1])  # an I makes room for what a W needs
    return Workspaces(
        forward=max(0, needed.forward - given),
        remake=needed.remake,
        backward=max(0, needed.backward - taken - given),
        inputs=max(0, needed.inputs - more - taken - given),
        weights=needed.weights,
    )


def inner_workspaces(layers: Sequence[Layer], twice: Iterable[KeptTwice]) -> Workspaces | None:
    """What these layers take as one (`Layer.workspaces`); None where some layer does not say it."""
    pairs = list(twice)
    stash, held = _stashed(layers, pairs), _held(layers, pairs)
    needed = []
    for k, layer in enumerate(layers):
        if (own := layer.workspaces) is None:
            return None
        remake = own.remake if k + 1 == len(layers) else max(own.remake, own.forward)
        later, held_later = stash[-1] - stash[k + 1], held[-1] - held[k + 1]
        inputs = own.inputs - later + held_later
        needed.append((own.forward - later, remake - later, own.backward - later, inputs, own.weights))
    return Workspaces(*(max(0, *column) for column in zip(*needed, strict=True)))


def _stashed(layers: Sequence[Layer], twice: Sequence[KeptTwice]) -> list[int]:
    """Bytes of the stashes of the layers before each."""
    return _sums(layers, twice, lambda layer: layer.stash_bytes, lambda pair: pair.bytes)


def _held(layers: Sequence[Layer], twice: Sequence[KeptTwice]) -> list[int]:
    """The same of what they hold from I to W."""
    return _sums(layers, twice, lambda layer: layer.weight_stash_bytes, lambda pair: pair.weight_bytes)


def _sums(
    layers: Sequence[Layer],
    twice: Sequence[KeptTwice],
    of_layer: Callable[[Layer], int],
    of_pair: Callable[[KeptTwice], int],
) -> list[int]:
    own = {layer.name: of_layer(layer) for layer in layers}
    for pair in twice:
        if pair.first in own and pair.second in own:
            own[pair.second] -= of_pair(pair)
    return list(accumulate(own.values(), initial=0))
