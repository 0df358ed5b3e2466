"""The operation graph, declared once: ops and what each costs, holds, sends and waits for; op lists as columns.

`policies.py` is the table of stash policies, `traffic.py` the only enumeration of messages, `versions.py` which
weights a pass reads. Search, simulator, checker, pictures and executor read it and state none of it again. Imports
plans and problems. Begin with `policies.py` and `candidate.py`.
"""

from ..problem import StageCosts
from .candidate import Candidate, regroup, require_policies, stash_policies, weights_offloaded
from .columns import NOWHERE, Flags, Floats, Ints, Ops
from .homes import Homes, copied_bytes, parameter_returns
from .kernel import run_jobs, run_many
from .machine import Machine
from .needs import OF_A_PASS, Needs, Precedences, Why, needs_of, users_of
from .policies import (
    BUILT_IN,
    INCOMING,
    KEEP,
    OFFLOAD,
    OFFLOAD_WEIGHTS,
    POLICIES,
    RECOMPUTE,
    SELECTIVE,
    SHIP,
    STASH,
    Content,
    Hold,
    StashPolicy,
    Where,
    register,
    ship_target,
    stash_policy,
)
from .reductions import (
    beside_step_s,
    gather_seconds,
    predict_seconds,
    reduce_seconds,
    ring,
    step_seconds,
    sum_seconds,
    tie_seconds,
    update_seconds,
)
from .replicas import forward_devices, holders, static_bytes, training_bytes
from .structured import Structured, beside_layers_s, costs_of, route, update_ends, update_size
from .traffic import (
    Messages,
    Traffic,
    activations,
    crossing,
    gradients,
    messages,
    parameter_bytes,
    parameters,
    shipped,
    stash_hops,
)
from .updates import on_lists, require_sound, with_returns, with_steps, with_updates
from .versions import Versions, asynchronous, kept_versions
from .workspaces import PREDICTED_AT_ONCE, predict_workspace, step_workspace

__all__ = [
    "Candidate",
    "Content",
    "Flags",
    "Floats",
    "Hold",
    "Homes",
    "INCOMING",
    "Ints",
    "KEEP",
    "Machine",
    "Messages",
    "NOWHERE",
    "Needs",
    "OFFLOAD",
    "OF_A_PASS",
    "OFFLOAD_WEIGHTS",
    "Ops",
    "BUILT_IN",
    "POLICIES",
    "PREDICTED_AT_ONCE",
    "Precedences",
    "RECOMPUTE",
    "SELECTIVE",
    "SHIP",
    "STASH",
    "StageCosts",
    "StashPolicy",
    "Structured",
    "Traffic",
    "Versions",
    "Where",
    "Why",
    "activations",
    "asynchronous",
    "beside_layers_s",
    "beside_step_s",
    "update_ends",
    "copied_bytes",
    "costs_of",
    "crossing",
    "forward_devices",
    "gather_seconds",
    "gradients",
    "holders",
    "kept_versions",
    "messages",
    "needs_of",
    "on_lists",
    "parameter_bytes",
    "parameter_returns",
    "parameters",
    "predict_seconds",
    "predict_workspace",
    "reduce_seconds",
    "register",
    "regroup",
    "require_policies",
    "require_sound",
    "ring",
    "route",
    "run_jobs",
    "run_many",
    "ship_target",
    "shipped",
    "stash_hops",
    "stash_policies",
    "stash_policy",
    "static_bytes",
    "step_seconds",
    "step_workspace",
    "sum_seconds",
    "tie_seconds",
    "training_bytes",
    "update_seconds",
    "update_size",
    "users_of",
    "weights_offloaded",
    "with_returns",
    "with_steps",
    "with_updates",
]
