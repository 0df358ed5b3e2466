"""Does a stage program compute what plain torch computes? Asked once, before training starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .protocol import AnyProgram
from .random_state import own_random_state, reseed
from .tracing import StageLayers, named_buffers, named_parameters


class ProgramMismatch(RuntimeError):
    """A stage program that does not compute what its layers compute in plain torch."""


WAYS = ("", "split backward", "recomputed")
"""F and B; F, I and W; F without a stash, R and B."""


def check_program(
    program: AnyProgram,
    layers: StageLayers,
    x: Tensor,
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
    for way in (way for way in ways if way != "recomputed" or program.can_remake):
        own = named_buffers(layers.modules, layers.layer_ids)
        buffers = {name: tensor.detach().clone() for name, tensor in own.items()}
        sums = {name: torch.zeros_like(parameters[name]) for name in program.accumulator_names}
        if way == "recomputed":
            output = program.forward_only(parameters, buffers, x, target, seed)
            stash = program.remake(parameters, buffers, x, target, seed)
        else:
            output, stash = program.forward(parameters, buffers, x, target, seed)
        if way == "split backward":
            grad, weight_stash = program.backward_input(stash, parameters, grad_output)
            program.backward_weight(weight_stash, sums)
        else:
            grad = program.backward(stash, parameters, grad_output, sums)
        got = {f"gradient of {name}": tensor for name, tensor in sums.items()}
        got |= {} if grad is None else {"gradient of the input": grad}
        got |= {f"buffer {name}": tensor for name, tensor in buffers.items()}
        label = f"{program.label}, {way}" if way else program.label
        try:
            compare(label, {"output": expected_output}, {"output": output})
            compare(label, expected, got)
        except ProgramMismatch as error:
            different.append(error)
    if different:
        raise different[0]


def _eager(
    layers: StageLayers, x: Tensor, target: Tensor | None, seed: int
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(output, the gradient it was given, gradients and buffers by name), on copies of what would change."""
    own = named_parameters(layers.modules, layers.layer_ids)
    parameters = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in own.items()}
    kept = named_buffers(layers.modules, layers.layer_ids)
    buffers = {name: tensor.detach().clone() for name, tensor in kept.items()}
    x = x.detach().clone().requires_grad_(layers.needs_input_grad)
    with own_random_state(x.device), torch.enable_grad():
        output = layers.run({**parameters, **buffers}, x, target, lambda layer, _: reseed(seed, layer))
        grad_output = torch.randn_like(output.detach())
    leaves = {f"gradient of {name}": tensor for name, tensor in parameters.items() if tensor.requires_grad}
    leaves |= {"gradient of the input": x} if layers.needs_input_grad else {}
    grads: tuple[Tensor | None, ...] = ()
    if leaves and output.requires_grad:
        grads = torch.autograd.grad([output], list(leaves.values()), [grad_output], allow_unused=True)
    expected = {name: grad for name, grad in zip(leaves, grads, strict=False) if grad is not None}
    expected |= {f"buffer {name}": tensor for name, tensor in buffers.items()}
    return output.detach(), grad_output, expected


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
