"""Does a stage program compute what plain torch computes? Asked once, before training starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...models.wiring import Carried, carried, tensors_of
from .protocol import AnyProgram, gradients_of
from .random_state import own_random_state, reseed
from .tracing import StageLayers, named_buffers, named_parameters


class ProgramMismatch(RuntimeError):
    """A stage program that does not compute what its layers compute in plain torch."""


WAYS = ("", "split backward", "recomputed", "recomputed in part")
"""F and B; F, I and W; F without a stash, R and B; the same of a part of the stash."""


def check_program(
    program: AnyProgram,
    layers: StageLayers,
    x: Carried,
    target: Tensor | None,
    seed: int,
    ways: Sequence[str] = WAYS,
) -> None:
    """Compare output, gradients and buffers of F, B, I, W and R, as far as they can run, with eager autograd.

    Ways that differ do not keep the others from running: a team runs all or none.

    Raises:
        ProgramMismatch: names the stage, the first differing tensor and both numbers.
    """
    different: list[ProgramMismatch] = []
    expected_output, grad_output, expected = _eager(layers, x, target, seed)
    parameters = {name: tensor.detach() for name, tensor in named_parameters(layers.modules, layers.layer_ids).items()}
    can = {"recomputed": program.can_remake, "recomputed in part": program.selective_bytes > 0}
    for way in (way for way in ways if can.get(way, True)):
        own = named_buffers(layers.modules, layers.layer_ids)
        buffers = {name: tensor.detach().clone() for name, tensor in own.items()}
        sums = {name: torch.zeros_like(parameters[name]) for name in program.accumulator_names}
        if way == "recomputed":
            output = program.forward_only(parameters, buffers, x, target, seed)
            stash = program.remake(parameters, buffers, x, target, seed)
        elif way == "recomputed in part":
            output, kept = program.forward_part(parameters, buffers, x, target, seed)
            stash = program.remake_part(kept, parameters, buffers)
        else:
            output, stash = program.forward(parameters, buffers, x, target, seed)
        if way == "split backward":
            grad, weight_stash = program.backward_input(stash, parameters, grad_output)
            program.backward_weight(weight_stash, sums)
        else:
            grad = program.backward(stash, parameters, grad_output, sums)
        got = {f"gradient of {name}": tensor for name, tensor in sums.items()}
        got |= _numbered("gradient of the input", gradients_of(grad))
        got |= {f"buffer {name}": tensor for name, tensor in buffers.items()}
        label = f"{program.label}, {way}" if way else program.label
        try:
            compare(label, _numbered("output", expected_output), _numbered("output", tensors_of(output)))
            compare(label, expected, got)
        except ProgramMismatch as error:
            different.append(error)
    if different:
        raise different[0]


def _numbered(what: str, tensors: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """Those there are, by name: "output", or "output 0" and so on."""
    names = [what] if len(tensors) == 1 else [f"{what} {k}" for k in range(len(tensors))]
    return {name: tensor for name, tensor in zip(names, tensors, strict=True) if tensor is not None}


def _eager(
    layers: StageLayers, x: Carried, target: Tensor | None, seed: int
) -> tuple[tuple[Tensor, ...], Carried, dict[str, Tensor]]:
    """(outputs, the gradients they were given, gradients and buffers by name), on copies of what would change."""
    own = named_parameters(layers.modules, layers.layer_ids)
    parameters = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in own.items()}
    kept = named_buffers(layers.modules, layers.layer_ids)
    buffers = {name: tensor.detach().clone() for name, tensor in kept.items()}
    wanted = [flag and t.is_floating_point() for t, flag in zip(tensors_of(x), layers.wanted, strict=True)]
    xs = [t.detach().clone().requires_grad_(flag) for t, flag in zip(tensors_of(x), wanted, strict=True)]
    with own_random_state(xs[0].device), torch.enable_grad():
        outputs = tensors_of(
            layers.run({**parameters, **buffers}, carried(xs), target, lambda layer, _: reseed(seed, layer))
        )
        flagged = [tensor for tensor, flag in zip(outputs, layers.returned, strict=True) if flag]
        entering = [torch.randn_like(t.detach()) if t.is_floating_point() else torch.zeros_like(t) for t in flagged]
    leaves = {f"gradient of {name}": tensor for name, tensor in parameters.items() if tensor.requires_grad}
    asked = [t if flag else None for t, flag, any_ in zip(xs, wanted, layers.wanted, strict=True) if any_]
    leaves |= _numbered("gradient of the input", asked)
    grads: tuple[Tensor | None, ...] = ()
    roots = [(tensor, grad) for tensor, grad in zip(flagged, entering, strict=True) if tensor.requires_grad]
    if leaves and roots:
        given = [grad for _, grad in roots]
        grads = torch.autograd.grad([root for root, _ in roots], list(leaves.values()), given, allow_unused=True)
    expected = {name: grad for name, grad in zip(leaves, grads, strict=False) if grad is not None}
    expected |= {f"buffer {name}": tensor for name, tensor in buffers.items()}
    return tuple(tensor.detach() for tensor in outputs), carried(entering), expected


def compare(label: str, expected: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> None:
    """Raise at the first tensor that differs by more than round-off.

    Kernels may add in another order (atomics on a GPU), so floats may differ by 10 eps^(3/4) of the tensor's
    largest entry; gradients that cancel to nothing are measured against the largest of all.
    """
    if expected.keys() != got.keys():
        names = ", ".join(sorted(expected.keys() ^ got.keys()))
        raise ProgramMismatch(f"{label}: computed by one of program and eager torch only: {names}")
    floating = [tensor for tensor in expected.values() if tensor.is_floating_point() and tensor.numel()]
    largest = max((float(tensor.abs().max()) for tensor in floating), default=0.0)
    for name, want in expected.items():
        have = got[name]
        if have.shape != want.shape:
            raise ProgramMismatch(f"{label}: {name} has shape {tuple(have.shape)}, eager {tuple(want.shape)}")
        allowed = 0.0
        if want.is_floating_point() and want.numel():
            eps = torch.finfo(want.dtype).eps
            allowed = 10 * eps**0.75 * float(want.abs().max()) + 10 * eps * largest
        difference = (have.double() - want.double()).abs().flatten()
        wrong = ~(difference <= allowed)  # NaN is wrong too
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0])
            a, b = float(have.flatten()[index]), float(want.flatten()[index])
            raise ProgramMismatch(f"{label}: {name}[{index}] is {a!r}, eager torch has {b!r}")
