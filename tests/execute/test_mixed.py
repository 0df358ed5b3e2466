"""Mixed precision: the run equals one process under autocast, within the planned memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from runs import (
    SAMPLES,
    STEPS,
    Case,
    assert_equals_reference,
    assert_within_plan,
    in_threads,
    planned,
    truth,
)
from torch import Tensor, nn
from traced_stages import traced

from contraflow.executor.basics.errors import RunError
from contraflow.executor.basics.training import Training
from contraflow.executor.oracle.reference import train_reference
from contraflow.executor.run.launch import execute
from contraflow.executor.stage.precision import build_lowered
from contraflow.models import resolve
from contraflow.models.protocol import LayerSpec
from contraflow.planner.graph import static_bytes
from contraflow.planner.plan import Plan
from contraflow.planner.problem.workload import Workload
from contraflow.planner.simulate import simulate

mixed = partial(Case, precision="mixed")
IN_ORDER = mixed("zb-v", "mlp-deep", 2, 4, "adam")
TWO_WAYS = mixed("chimera", "gpt-tiny", 2, 4)


RECOMPUTED = mixed("1f1b", "resnet-tiny", 2, 4, stash="recompute")
OFFLOADED = mixed("gpipe", "resnet-tiny", 2, 4, stash="offload")


@pytest.mark.parametrize("case", [IN_ORDER, RECOMPUTED, OFFLOADED], ids=["v", "recomputed", "offloaded"])
def test_mixed_equals_single_process_within_the_planned_memory(case: Case) -> None:
    """Where gradients are summed in the order of one process, to float32's tolerance."""
    result = in_threads(case)
    assert_equals_reference(case, result)
    assert_within_plan(result)
    assert result.state is not None
    assert {t.dtype for t in result.state.values() if t.is_floating_point()} == {torch.float32}


def test_replicas_in_mixed_precision_equal_single_process_to_its_rounding() -> None:
    """Two directions, gradients reduced in float32: losses within 1e-3, every tensor's update within two hundredths.

    Replicas sum in another order, which float32 rounds otherwise. Where a master then lies on the other side of the
    middle between two bfloat16 numbers, its copy differs by 2^-8 of its size, far more than float32's round-off.
    """
    result = in_threads(TWO_WAYS)
    expected = truth(TWO_WAYS.model, 4, TWO_WAYS.optimizer, TWO_WAYS.dtype)
    assert result.losses == pytest.approx(expected.losses, abs=1e-3)
    assert_within_plan(result)
    begun = train_reference(resolve(TWO_WAYS.model), 1, 1, steps=0, dtype=TWO_WAYS.dtype, precision="mixed").state
    assert result.state is not None
    for name, reference in expected.state.items():
        update = (reference - begun[name]).norm().item()
        difference = (result.state[name] - reference).norm().item()
        assert difference <= 0.02 * update + 1e-6, f"{name}: differs by {difference:g} after an update of {update:g}"


def test_float16_trains_with_a_dynamic_loss_scale() -> None:
    """The same plan in the other 16-bit type, its scale and its losses those of torch.amp.GradScaler."""
    training = Training(loss_scale="dynamic", scale_interval=4)
    result = in_threads(IN_ORDER, training=training, dtype=torch.float16)
    expected = train_reference(
        resolve(IN_ORDER.model), 4, SAMPLES, "adam", STEPS, dtype=torch.float16, precision="mixed", training=training
    )
    assert result.loss_scales == expected.loss_scales
    assert result.losses == pytest.approx(expected.losses, abs=1e-5)


def test_a_resumed_run_goes_on_from_the_masters(tmp_path: Path) -> None:
    """Saved in float32: two steps and three equal five, bit by bit, though most copies would have lost the updates."""
    first = in_threads(IN_ORDER, steps=2, checkpoint=tmp_path)
    rest = in_threads(IN_ORDER, steps=3, checkpoint=tmp_path, resume=True)
    whole = in_threads(IN_ORDER)
    assert first.losses + rest.losses == whole.losses
    assert rest.state is not None
    assert whole.state is not None
    assert all(torch.equal(rest.state[name], tensor) for name, tensor in whole.state.items())


# ---------------------------------------------------------------- bytes and types


def test_adam_takes_eighteen_bytes_a_parameter() -> None:
    """Two for the copy, four each for the gradient's sum, the master and both moments; Megatron-LM's main gradients."""
    workload = Workload(4, "adam", "mixed")
    assert 2 + workload.gradient_bytes(2) + workload.optimizer_bytes(2) == 18
    assert Workload(4, "adam").gradient_bytes(4) + Workload(4, "adam").optimizer_bytes(4) == 12
    for parts in static_bytes(planned(IN_ORDER), simulate(planned(IN_ORDER)).costs):
        assert parts["gradients"] == 2 * parts["parameters"]


def test_a_profile_in_16_bit_is_what_runs() -> None:
    """Half the bytes of parameters and activations; BatchNorm's statistics stay float32."""
    small, full = (planned(Case("gpipe", "resnet-tiny", 2, 4, precision=p)).problem.model for p in ("mixed", "fp32"))
    for a, b in zip(small.layers, full.layers, strict=True):
        assert 2 * a.parameter_bytes == b.parameter_bytes
        assert 2 * a.output_bytes == b.output_bytes
        assert a.buffer_bytes == b.buffer_bytes
    assert sum(x.stash_bytes for x in small.layers) < 0.6 * sum(x.stash_bytes for x in full.layers)


class Positions(nn.Module):
    """Adds a float32 table: what follows is float32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 8))
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.norm(x + self.table))
        return y


def test_a_layer_norm_of_float32_has_float32_parameters() -> None:
    """On a CPU as autocast has it on CUDA; the program then equals eager torch, and its output is 16 bit again."""
    module, masters = build_lowered(LayerSpec("positions", Positions), 0, 1, torch.bfloat16)
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert {m.dtype for m in masters.values()} == {module.table.dtype} == {torch.float32}
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    program = traced([module], [1], x, half=torch.bfloat16)
    program.self_check([module], x)
    assert program.output_spec.dtype == torch.bfloat16


# ---------------------------------------------------------------- profile and plan that do not fit


def test_a_float32_profile_in_a_mixed_plan_is_refused() -> None:
    """And the other way round: both numbers, and what to do."""
    plan = planned(Case("gpipe", "mlp-tiny", 2, 4))
    workload = replace(plan.problem.workload, precision="mixed")
    with pytest.raises(RunError, match=r"'layer0' was profiled with 8320 .* not 4160: profile with --precision bf16"):
        _refused(plan, workload)
    plan = planned(mixed("gpipe", "mlp-tiny", 2, 4))
    with pytest.raises(RunError, match=r"'layer0' was profiled in 16 bit, 4160 .* not 8320: plan with --precision mix"):
        _refused(plan, replace(workload, precision="fp32"))


def _refused(plan: Plan, workload: Workload) -> None:
    other = replace(plan, problem=replace(plan.problem, workload=workload))
    execute(other.with_forecast(simulate(other).forecast()), 1, transport="threads")


def test_types_that_do_not_fit_the_plans_precision_are_refused() -> None:
    """Float64 of a mixed plan, bfloat16 of one in fp32."""
    with pytest.raises(RunError, match="mixed precision runs in bfloat16 or float16, not float64"):
        execute(planned(IN_ORDER), 1, dtype=torch.float64)
    with pytest.raises(RunError, match="in fp32 and cannot run in bfloat16: plan with --precision mixed"):
        execute(planned(Case("gpipe", "mlp-tiny", 2, 4)), 1, dtype=torch.bfloat16)
