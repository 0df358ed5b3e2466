"""Transient memory of every kind of op of a stage, from what each of its layers takes while it runs alone.

While one layer of a stage runs, stashes of later ones are not there yet, in a backward not any more, and gradients are
there on the two sides of this layer only. So less is needed than the stage's whole stash, the tensors at its ends and
the largest workspace of a layer, which is all that is known where layers say no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from .kept_twice import KeptTwice
from .layer import Layer, Workspaces

LOSS_BYTES = 8
"""Of the gradient of a loss, at most: one number, which no stage sends."""


class Ends(NamedTuple):
    """Bytes of what a stage takes from other stages, and gives each of them; gradients are as large.

    data: of what it takes from outside the model. outside: by layer, all that it takes from beyond the stage. tied: of
    parameters that several of its layers share; the gradient that one has of them is there until the others' is.
    """

    taken: Sequence[int]
    given: int
    data: int
    outside: Sequence[int]
    tied: int

    def received(self, stash: int) -> int:
        """Of what it takes, what counts beside its stash while it runs: what is larger than that."""
        return sum(max(0, size - stash) for size in (*self.taken, self.data))


def stage_workspaces(layers: Sequence[Layer], twice: Iterable[KeptTwice], ends: Ends) -> Workspaces:
    """Bytes of a stage of these layers, in the order in which they run, beyond stash, received and sent tensors.

    A tensor that it takes counts as a part of its stash, whether it is or not, as far as that is as large.
    """
    pairs = list(twice)
    needed = inner_workspaces(layers, pairs, ends)
    if needed is None:
        return Workspaces(*[max(layer.workspace_bytes for layer in layers)] * len(Workspaces._fields))
    stash, held, both = _stashed(layers, pairs)[-1], _held(layers, pairs)[-1], sum(ends.taken) + ends.given
    received = ends.received(stash)
    return Workspaces(
        forward=max(0, needed.forward + needed.unsaved - ends.given - received),
        remake=max(0, needed.remake + needed.unsaved - received),
        backward=max(0, needed.backward - both),
        inputs=max(0, needed.inputs - max(0, held - stash) - both),  # an I makes room for what a W needs
        weights=needed.weights,
        unsaved=needed.unsaved,
    )


def inner_workspaces(layers: Sequence[Layer], twice: Iterable[KeptTwice], ends: Ends) -> Workspaces | None:
    """What these layers take as one (`Layer.workspaces`); None where some layer does not say it.

    The gradient of what a stage gives is there until its backward has ended.
    """
    if any(layer.unsaved_input_bytes is None for layer in layers):
        return None
    pairs = list(twice)
    stash, held = _stashed(layers, pairs), _held(layers, pairs)
    needed, unsaved = [], 0
    for k, (layer, from_others) in enumerate(zip(layers, ends.outside, strict=True)):
        if (own := layer.workspaces) is None:
            return None
        last = k + 1 == len(layers)
        later, held_later = stash[-1] - stash[k + 1], held[-1] - held[k + 1]
        theirs, coming = min(own.unsaved, from_others), 0 if last else ends.given or LOSS_BYTES
        unsaved += theirs
        forward, remake = (size + own.unsaved - theirs - later for size in (own.forward, own.remake))
        backward, inputs = own.backward + coming + ends.tied - later, own.inputs + coming - later + held_later
        weights = own.weights + ends.tied
        needed.append((forward, remake if last else max(forward, remake), backward, inputs, weights))
    forward, remake, backward, inputs, weights = (max(0, *column) for column in zip(*needed, strict=True))
    return Workspaces(forward, remake, backward, inputs, weights, unsaved)


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
