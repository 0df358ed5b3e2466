"""Training in plain torch, one process and one micro-batch after another: what every run must come to.

Nothing of the executor takes part but its conventions: which data and random numbers a micro-batch gets, and 16-bit
layers under autocast. Without a flush, which version of the weights a pass reads follows from the papers' rules and the
places of STEPs in op lists; older weights are put into torch's parameters behind autograd's back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from contraflow.executor.basics.training import Training
from contraflow.executor.stage.precision import autocasting, build_lowered, half_of, wide
from contraflow.executor.stage.random_state import layer_seed
from contraflow.executor.step.evaluation import evaluation_seed
from contraflow.models import Dataset, LayeredModel, derive_seed
from contraflow.models.attention import Attention
from contraflow.planner.plan import Kind, Plan

SEED = 0
Name = tuple[int, str]
"""(layer, parameter), a tied one under its first member."""


@dataclass
class Plain:
    """As the parts of a `RunResult` have it.

    undetermined: entries of tensors whose gradient is zero whatever the weights, so that all that an optimizer which
    divides by the gradient's size has to go by is round-off: key biases, which the softmax over the keys forgets.
    """

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    evaluations: dict[int, float] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)
    undetermined: dict[str, slice] = field(default_factory=dict)


# ------------------------------------------------------------------ versions


@dataclass(frozen=True)
class Reads:
    """What the passes of an update read: (updates taken before, updates predicted beyond) by (stage, micro-batch)."""

    forward: Mapping[tuple[int, int], tuple[int, int]]
    backward: Mapping[tuple[int, int], tuple[int, int]]

    @classmethod
    def of(cls, plan: Plan, update: int) -> Reads:
        """By the rules of the plan's weight policy, from where its lists have the new weights."""
        forward: dict[tuple[int, int], tuple[int, int]] = {}
        backward: dict[tuple[int, int], tuple[int, int]] = {}
        newest, first_user = _newest(plan)
        entered = {m: version for (stage, m), (version, _) in newest.items() if stage == 0}
        for (stage, m), (version, sent_to) in newest.items():
            own, further = m // update, stage // 2 if plan.weights == "spectrain" else 0
            if plan.weights == "vertical":
                version = entered[m]
            elif plan.weights == "2bw":
                version = min(entered[k] for k in range(own * update, (own + 1) * update))
            ahead = 0
            if plan.weights in ("spectrain", "pipeoptim", "pipeoptim-lookahead"):
                user = m if sent_to is None else first_user[stage, sent_to, version]
                ahead = user // update - version + further + (plan.weights == "pipeoptim-lookahead")
                ahead = 0 if sent_to is not None and version == 0 else ahead
            stashed = plan.weights in ("stash", "vertical", "2bw")
            forward[stage, m] = version, ahead
            backward[stage, m] = (version, 0) if stashed else (own, further)
        return cls(forward, backward)


Newest = dict[tuple[int, int], tuple[int, int | None]]


def _newest(plan: Plan) -> tuple[Newest, dict[tuple[int, int, int], int]]:
    """Updates a forward's device has of its stage, and the device if they are sent there; who uses them there first."""
    trained = {(s, d) for p in plan.pipelines if p.micro_batches for s, d in enumerate(p.backward)}
    newest: Newest = {}
    first_user: dict[tuple[int, int, int], int] = {}
    for device, order in enumerate(plan.orders):
        found: dict[int, int] = {}
        for op in order:
            here = (op.stage, device) in trained
            if op.kind is (Kind.STEP if here else Kind.RECV_P):
                found[op.stage] = found.get(op.stage, 0) + 1
            elif op.kind is Kind.F:
                version = found.get(op.stage, 0)
                newest[op.stage, op.micro_batch] = version, None if here else device
                if not here:
                    first_user.setdefault((op.stage, device, version), op.micro_batch)
    return newest, first_user


# ------------------------------------------------------------------ training


def train(plan: Plan, model: LayeredModel, data: Dataset, steps: int, dtype: torch.dtype, training: Training) -> Plain:
    """Steps (of a plan without a flush: updates, in runs of as many as its lists have) as the plan's run takes them."""
    workload = plan.problem.workload
    size = workload.micro_batches if plan.weights == "flush" else workload.update_every
    assert size is not None
    trainer = _Trainer(plan, model, data, dtype, training.of_run(workload.optimizer, steps), size)
    found, updates = Plain(), workload.micro_batches // size
    for step in range(steps):
        if step % updates == 0:
            trainer.begin(step)
        found.losses.append(trainer.accumulate(step))
        norm = trainer.step(step)
        found.grad_norms += [] if norm is None else [norm]
        if training.evaluate_every and (step + 1) % training.evaluate_every == 0:
            found.evaluations[step + 1] = trainer.evaluate()
    found.state = trainer.state()
    found.undetermined = trainer.key_biases()
    return found


@dataclass(frozen=True)
class _Version:
    """Weights, what the optimizer knew when it had made them, and how often it had stepped."""

    weights: Mapping[Name, Tensor]
    states: Mapping[Name, Mapping[str, Tensor]]
    gradients: Mapping[Name, Tensor]
    taken: int


class _Trainer:
    def __init__(
        self, plan: Plan, model: LayeredModel, data: Dataset, dtype: torch.dtype, training: Training, size: int
    ) -> None:
        self.plan, self.model, self.data, self.dtype, self.training, self.size = (
            plan,
            model,
            data,
            dtype,
            training,
            size,
        )
        self.reads = None if plan.weights == "flush" else Reads.of(plan, size)
        built = [build_lowered(spec, SEED, k, dtype) for k, spec in enumerate(model.layers)]
        self.layers = [layer for layer, _ in built]
        self.first = _first_members(model)
        self.names = {(k, n) for k, layer in enumerate(self.layers) for n, _ in layer.named_parameters()}
        self.weights: dict[Name, Tensor] = {}
        self.kinds: dict[Name, torch.dtype] = {}
        for k, (layer, masters) in enumerate(built):
            for name, parameter in layer.named_parameters():
                self.kinds[k, name] = parameter.dtype
                if (k, name) not in self.first:
                    value = masters.get(name, parameter.detach())
                    self.weights[k, name] = value.clone().requires_grad_(parameter.requires_grad)
        self.trained = [name for name, value in self.weights.items() if value.requires_grad]
        self.optimizer = _optimizer(plan.problem.workload.optimizer, [self.weights[n] for n in self.trained], training)
        self.route = {m: k for k, p in enumerate(plan.pipelines) for m in p.micro_batches}
        ends = [0]
        for names in plan.stages:
            ends.append(ends[-1] + len(names))
        self.stages = [range(a, b) for a, b in zip(ends, ends[1:], strict=False)]
        self.taken, self.run, self.versions = 0, 0, list[_Version]()
        self.gradients: dict[Name, Tensor] = {}

    def begin(self, step: int) -> None:
        """A run from an empty pipeline: of updates before it nobody remembers the gradients."""
        self.run, self.versions = step, []
        self.gradients = {name: torch.zeros_like(self.weights[name]) for name in self.trained}
        self._keep()

    def _keep(self) -> None:
        states = {
            name: {k: v.detach().clone() for k, v in self.optimizer.state[self.weights[name]].items() if v is not None}
            for name in self.trained
        }
        weights = {name: value.detach().clone() for name, value in self.weights.items()}
        gradients = {name: value.clone() for name, value in self.gradients.items()}
        self.versions.append(_Version(weights, states, gradients, self.taken))

    # -------------------------------------------------------------- passes

    def accumulate(self, step: int) -> float:
        """The gradients of one step; the mean loss over its samples."""
        self.optimizer.zero_grad()
        most = self.size * self.plan.problem.model.micro_batch_size
        samples = most if self.training.mini_batch is None else self.training.mini_batch
        samples = getattr(self.data, "samples", lambda step, most: most)(step, samples)
        full, total = self.plan.problem.model.micro_batch_size, 0.0
        for k in range(self.size):
            count = full if k + 1 < self.size else samples - (self.size - 1) * full
            total += self._micro_batch(step, k, count, count / samples)
        return total

    def _micro_batch(self, step: int, k: int, count: int, share: float) -> float:
        m = k if self.reads is None else (step - self.run) * self.size + k
        inputs, targets = self.data.batch(SEED, step, k, count)
        seed, x = derive_seed(SEED, step, k), _as(inputs, self.dtype)
        wanted = _as(targets, wide(self.dtype))
        entered, left, read = list[Tensor](), list[Tensor](), list[dict[Name, Tensor]]()
        for stage in range(len(self.stages)):
            x = x.detach()
            if stage and x.is_floating_point():
                x.requires_grad_()
            forward, backward = self._versions_of(stage, m)
            values = self._values(stage, forward)
            entered.append(x)
            found = self._forward(stage, values, x, wanted, seed)
            remade = backward[0], 0  # what is made again is not predicted
            if self.reads is not None and self._remade(stage, m) and forward != remade:
                values = self._values(stage, remade)
                left.append(self._forward(stage, values, x, wanted, seed, counted=False))
            else:
                left.append(found)
            read.append(values)
            x = found
        loss = x.item()
        gradient = torch.full((), share * float(self.training.loss_scale), dtype=x.dtype)
        for stage in reversed(range(len(self.stages))):
            self._put(read[stage], self._values(stage, self._versions_of(stage, m)[1]))
            gradient = self._backward(stage, left.pop(), entered[stage], read[stage], gradient)
        return share * loss

    def _versions_of(self, stage: int, m: int) -> tuple[tuple[int, int], tuple[int, int]]:
        if self.reads is None:
            return (0, 0), (0, 0)
        return self.reads.forward[stage, m], self.reads.backward[stage, m]

    def _remade(self, stage: int, m: int) -> bool:
        return self.plan.stash[self.route[m]][stage] == "recompute"

    def _values(self, stage: int, version: tuple[int, int]) -> dict[Name, Tensor]:
        """Leaves for a pass of a stage, of this version predicted so far ahead."""
        named = [(k, n) for k in self.stages[stage] for n, _ in self.layers[k].named_parameters()]
        found: dict[Name, Tensor] = {}
        for name in named:
            kept = self.first.get(name, name)
            if kept not in found:
                value = self._value(kept, version).to(self.kinds[name], copy=True)
                found[kept] = value.requires_grad_(self.weights[kept].requires_grad)
        return found

    def _value(self, name: Name, version: tuple[int, int]) -> Tensor:
        if self.reads is None:
            return self.weights[name].detach()
        known, ahead = self.versions[version[0]], version[1]
        value = known.weights[name]
        if not ahead or name not in self.trained:
            return value
        rate = self.training.rate(self.run + version[0])
        return value - ahead * rate * self._direction(name, known)

    def _direction(self, name: Name, known: _Version) -> Tensor:
        """What the optimizer would apply next, as far as it is known (SpecTrain: the mean of past gradients)."""
        kind, options = self.plan.problem.workload.optimizer, self.training
        state, g = known.states[name], known.gradients[name]
        mean = state.get("momentum_buffer", torch.zeros_like(g))
        if kind.startswith("adam"):
            if not known.taken:
                return torch.zeros_like(g)
            first, second = options.betas
            if self.plan.weights == "spectrain":
                return state["exp_avg"]
            size = (state["exp_avg_sq"] / (1 - second**known.taken)).sqrt() + options.eps
            return state["exp_avg"] / (1 - first**known.taken) / size
        if kind == "rmsprop" and self.plan.weights != "spectrain":
            return g / (state.get("square_avg", torch.zeros_like(g)).sqrt() + options.eps)
        if kind in ("sgd", "rmsprop"):
            return g
        if self.plan.weights == "spectrain":
            return mean
        if kind == "nesterov" or self.plan.weights == "pipeoptim-lookahead":
            return g + options.momentum * mean
        return mean

    @staticmethod
    def _put(leaves: Mapping[Name, Tensor], values: Mapping[Name, Tensor]) -> None:
        """What autograd has saved of the parameters reads these values from now on."""
        for name, leaf in leaves.items():
            leaf.data.copy_(values[name].detach())

    def _forward(
        self, stage: int, values: Mapping[Name, Tensor], x: Tensor, wanted: Tensor, seed: int, counted: bool = True
    ) -> Tensor:
        """`counted`: running statistics count it."""
        half = half_of(self.dtype)
        with autocasting(half, x.device):
            for k in self.stages[stage]:
                own = {n: values[self.first.get((k, n), (k, n))] for n, _ in self.layers[k].named_parameters()}
                own |= {} if counted else {n: buffer.clone() for n, buffer in self.layers[k].named_buffers()}
                torch.default_generator.manual_seed(layer_seed(seed, k))
                x = functional_call(self.layers[k], own, (x,))
            if stage + 1 == len(self.stages):
                torch.default_generator.manual_seed(layer_seed(seed, -1))
                x = self.model.loss(x if half is None else x.float(), wanted)
        return x

    def _backward(
        self, stage: int, out: Tensor, entered: Tensor, read: Mapping[Name, Tensor], gradient: Tensor
    ) -> Tensor:
        """Adds up the parameters' gradients; returns that of the stage's input."""
        wanted = [name for name, leaf in read.items() if leaf.requires_grad]
        leaves = [read[name] for name in wanted] + ([entered] if entered.requires_grad else [])
        none = torch.zeros_like(entered) if entered.is_floating_point() else torch.zeros(())
        if not out.requires_grad or not leaves:
            return none
        found = torch.autograd.grad(out, leaves, gradient, allow_unused=True)
        for name, value in zip(wanted, found, strict=False):
            if value is not None:
                weight = self.weights[name]
                value = value.to(weight.dtype)
                weight.grad = value if weight.grad is None else weight.grad + value
        last = found[-1] if entered.requires_grad else None
        return none if last is None else last

    # -------------------------------------------------------------- steps

    def step(self, number: int) -> float | None:
        """Clips if asked to, steps and remembers; returns the norm if it was needed."""
        for name in self.trained:
            weight = self.weights[name]
            scale = float(self.training.loss_scale)
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad / scale
        norm = None
        if self.training.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_([self.weights[n] for n in self.trained], self.training.clip_norm).item()
        kind = self.plan.problem.workload.optimizer
        decay = self.training.weight_decay or 0.0
        for name in self.trained:
            weight = self.weights[name]
            assert weight.grad is not None
            self.gradients[name] = weight.grad + (0 if kind == "adamw" else decay * weight.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = self.training.rate(number)
        self.optimizer.step()
        self.taken += 1
        if self.reads is not None:
            self._keep()
        return norm

    def evaluate(self) -> float:
        """The mean loss of as many held-out micro-batches as a step has, in evaluation mode."""
        reads, self.reads = self.reads, None
        for layer in self.layers:
            layer.eval()
        losses = []
        with torch.no_grad():
            for k in range(self.size):
                inputs, targets = self.data.batch(evaluation_seed(SEED), 0, k, self.plan.problem.model.micro_batch_size)
                x, wanted = _as(inputs, self.dtype), _as(targets, wide(self.dtype))
                for stage in range(len(self.stages)):
                    x = self._forward(stage, self._values(stage, (0, 0)), x, wanted, 0)
                losses.append(x.item())
        for layer in self.layers:
            layer.train()
        self.reads = reads
        return sum(losses) / len(losses)

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers by checkpoint key."""
        names = [spec.name for spec in self.model.layers]
        found = {f"parameters/{names[k]}/{n}": value.detach() for (k, n), value in self.weights.items()}
        buffers = {
            f"buffers/{names[k]}/{n}": b for k, layer in enumerate(self.layers) for n, b in layer.named_buffers()
        }
        return found | buffers

    def key_biases(self) -> dict[str, slice]:
        """Entries by checkpoint key."""
        found = {}
        for spec, layer in zip(self.model.layers, self.layers, strict=True):
            for path, module in layer.named_modules():
                if isinstance(module, Attention):
                    width = module.qkv.out_features // 3
                    found[f"parameters/{spec.name}/{path}.qkv.bias"] = slice(width, 2 * width)
        return found


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _first_members(model: LayeredModel) -> dict[Name, Name]:
    """Every other member of a tie, and the first one."""
    numbers = {spec.name: k for k, spec in enumerate(model.layers)}
    found: dict[Name, Name] = {}
    for tie in model.ties:
        first, *others = [(numbers[layer], name) for layer, name in tie.members]
        found |= dict.fromkeys(others, first)
    return found


def _optimizer(kind: str, parameters: Iterable[Tensor], training: Training) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": training.rate(0)}
    if training.weight_decay is not None:
        options["weight_decay"] = training.weight_decay
    params = list(parameters)
    if kind == "rmsprop":
        return torch.optim.RMSprop(params, alpha=training.smoothing, eps=training.eps, **options)
    if kind in ("adam", "adamw"):
        made = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
        return made(params, betas=training.betas, eps=training.eps, **options)
    momentum = 0.0 if kind == "sgd" else training.momentum
    return torch.optim.SGD(params, momentum=momentum, nesterov=kind == "nesterov", **options)
