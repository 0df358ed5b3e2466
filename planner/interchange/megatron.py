"""A plan's cut as Megatron's flags; Megatron Bridge takes the same layout string.

Megatron orders ops itself: 1F1B, or interleaved where a rank has several stages. So a plan's own order is lost; what
that costs is said beside the flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ..basics import ScheduleError, format_bytes, format_seconds, one_line
from ..graph import KEEP, RECOMPUTE, SELECTIVE, Candidate, stash_policy
from ..lower import assemble
from ..plan import Kind, Op, Pipeline, Plan
from ..schedules import Layout, whole_laps
from .expressible import InterchangeError, require_flush, require_next

RUNTIME = "Megatron"
_OPTIMIZERS = {"sgd": "sgd", "momentum": "sgd", "adam": "adam", "adamw": "adam"}


def to_megatron(plan: Plan) -> str:
    """Flags, one a line, then what is lost as comments.

    The first layer is taken for Megatron's embedding, the last for its loss, and layers of one block ("block3.mlp") for
    one decoder layer. Raises InterchangeError for stages that Megatron cannot lay out so.
    """
    require_flush(plan, RUNTIME)
    require_next(plan, RUNTIME)
    groups = _groups(plan)
    ranks = len(groups[0])
    parts, decoders = _parts(plan)
    flags = [
        ("--pipeline-model-parallel-size", str(ranks)),
        ("--pipeline-model-parallel-layout", f'"{_joined(parts)}"'),
        ("--num-layers", str(decoders)),
        *_work(plan),
    ]
    lines = [" ".join(filter(None, flag)) for flag in flags]
    return "\n".join([*lines, *(f"# {text}" for text in _lost(plan, groups, len(plan.stages) // ranks))]) + "\n"


def _groups(plan: Plan) -> list[tuple[int, ...]]:
    """The devices of each data-parallel group by pipeline rank: stage s runs on rank s modulo their number."""
    routes: dict[tuple[int, ...], int] = {}
    for number, pipeline in enumerate(plan.pipelines):
        if pipeline.forward != pipeline.backward:
            raise InterchangeError(f"pipeline {number} runs backwards on other devices, {RUNTIME} where forwards ran")
        routes[pipeline.forward] = routes.get(pipeline.forward, 0) + len(pipeline.micro_batches)
    if len(set(routes.values())) > 1:
        raise InterchangeError(f"{RUNTIME} gives every replica as many micro-batches, the plan {[*routes.values()]}")
    groups = []
    for route in routes:
        ranks = tuple(dict.fromkeys(route))
        for stage, device in enumerate(route):
            if device != ranks[stage % len(ranks)]:
                raise InterchangeError(
                    f"stage {stage} is on device {device}: {RUNTIME} puts it on device {ranks[stage % len(ranks)]}, "
                    f"of rank {stage % len(ranks)}"
                )
        groups.append(ranks)
    taken = [device for ranks in groups for device in ranks]
    if len(taken) > len(set(taken)):
        raise InterchangeError(f"pipelines share devices: {RUNTIME} has one direction, and replicas apart")
    if len(set(map(len, groups))) > 1:
        raise InterchangeError(f"{RUNTIME} has as many ranks in every replica, the plan {[*map(len, groups)]}")
    return groups


def _parts(plan: Plan) -> tuple[list[str], int]:
    """Every stage in Megatron's letters, and how many decoder layers there are."""
    names = [name for stage in plan.stages for name in stage]
    blocks = [name.split(".")[0] for name in names]
    parts, seen, decoders = [], set[str](), 0
    for number, stage in enumerate(plan.stages):
        mine = list(dict.fromkeys(name.split(".")[0] for name in stage if name not in (names[0], names[-1])))
        for block in mine:
            if block in seen:
                cut = f"{one_line(block, 40)!r} is cut before stage {number}"
                raise InterchangeError(f"{cut}: {RUNTIME} cuts between decoder layers (profile --layers block)")
        seen.update(mine)
        decoders += len(mine)
        body = f"t*{len(mine)}" if len(mine) > 1 else "t" * len(mine)
        parts.append("E" * (names[0] in stage) + body + "L" * (names[-1] in stage))
    if len(names) < 3 or blocks[0] in seen or blocks[-1] in seen:
        found = one_line(", ".join(names), 80)
        raise InterchangeError(f"{RUNTIME} wants an embedding, decoder layers and a loss, not {found}")
    return parts, decoders


def _joined(parts: Sequence[str]) -> str:
    """Stages separated by |, equal ones in a row written once: "Et|(t*2|)*3tL"."""
    text = ""
    for part, alike in groupby(parts[:-1]):
        count = len(list(alike))
        text += f"({part}|)*{count}" if count > 1 else f"{part}|"
    return text + parts[-1]


def _work(plan: Plan) -> Iterator[tuple[str, str]]:
    model, workload = plan.problem.model, plan.problem.workload
    ways = dict(model.ways)
    if max(ways.get("tensor", 1), ways.get("sequence", 1)) > 1:
        yield "--tensor-model-parallel-size", str(model.team)
    if ways.get("sequence", 1) > 1:
        yield "--sequence-parallel", ""
    if ways.get("expert", 1) > 1:
        yield "--expert-model-parallel-size", str(model.team)
    yield "--micro-batch-size", str(model.micro_batch_size)
    yield "--global-batch-size", str(model.micro_batch_size * workload.micro_batches)
    yield "--optimizer", _OPTIMIZERS.get(workload.optimizer, workload.optimizer)
    if workload.precision == "mixed":
        yield "--bf16", ""
    if workload.sharded:
        yield "--use-distributed-optimizer", ""
    tied = {layer for group in model.shared for layer in group.layers}
    ends = plan.stages[0][0], plan.stages[-1][-1]
    if not tied.issuperset(ends):
        yield "--untie-embeddings-and-output-weights", ""
    if _policy(plan) == SELECTIVE:
        yield "--recompute-granularity selective", ""
    elif _policy(plan) == RECOMPUTE:
        yield "--recompute-granularity full", ""
        yield "--recompute-method uniform", ""
        yield "--recompute-num-layers", "1"


def _remade(plan: Plan) -> list[bool]:
    return [stash_policy(policy).remade for row in plan.stash for policy in row]


def _policy(plan: Plan) -> str:
    """What the runtime does to every stash."""
    rows = {stash_policy(policy) for row in plan.stash for policy in row}
    if any(row.remade and not row.partial for row in rows):
        return RECOMPUTE
    return SELECTIVE if any(row.partial for row in rows) else KEEP


def _lost(plan: Plan, groups: Sequence[tuple[int, ...]], chunks: int) -> Iterator[str]:
    """What the flags do not say, a sentence each."""
    remade = _remade(plan)
    kinds = {op.kind for order in plan.orders for op in order}
    layout = _own_order(plan, groups, chunks)
    yield f"lost: the order of operations; {RUNTIME} runs {'its own' if layout is None else layout.name}"
    if Kind.W in kinds:
        yield f"lost: split backwards; {RUNTIME} runs whole ones"
    if any(remade) and not all(remade):
        yield f"lost: which stashes are recomputed, {sum(remade)} of {len(remade)} choices; {RUNTIME} recomputes all"
    if _policy(plan) == SELECTIVE:
        yield f"lost: what of a stash is recomputed; {RUNTIME} recomputes attention's scores"
    if kinds & {Kind.OFFLOAD, Kind.SEND_S}:
        yield "lost: stashes that leave their device; the memory they free is not there"
    step_s = None if plan.forecast is None else plan.forecast.step_s
    if layout is None:
        yield f"its order does not exist for these micro-batches: {RUNTIME} refuses them"
    elif step_s is not None:
        yield (
            f"forecast: a step of the plan {format_seconds(step_s)}, of this cut in {RUNTIME}'s order "
            + _step_as_run(plan, groups, layout)
        )


def _own_order(plan: Plan, groups: Sequence[tuple[int, ...]], chunks: int) -> Layout | None:
    """What the runtime makes of a group's micro-batches; None: it does not exist for so many."""
    try:
        return whole_laps(len(groups[0]), plan.problem.workload.micro_batches // len(groups), chunks)
    except ScheduleError:
        return None


def _step_as_run(plan: Plan, groups: Sequence[tuple[int, ...]], layout: Layout) -> str:
    """Step and largest peak of the cut in the runtime's own order, all stashes alike."""
    ranks, share = len(groups[0]), plan.problem.workload.micro_batches // len(groups)
    policy = _policy(plan)
    pipelines, orders = [], [list[Op]() for _ in plan.problem.cluster.devices]
    for group, devices in enumerate(groups):
        route = tuple(devices[s % ranks] for s in range(len(plan.stages)))
        pipelines.append(Pipeline(route, route, tuple(range(group * share, (group + 1) * share))))
        for device, order in zip(devices, layout.orders, strict=True):
            for op in order:
                mine = op._replace(micro_batch=op.micro_batch + group * share)
                again = [mine._replace(kind=Kind.R)] if stash_policy(policy).remade and op.kind is Kind.B else []
                orders[device] += [*again, mine]
    rows = tuple((policy,) * len(plan.stages) for _ in pipelines)
    found = assemble(Candidate(plan.problem, plan.stages, tuple(pipelines), rows), orders).forecast
    assert found is not None
    return f"{format_seconds(found.step_s)}, at most {format_bytes(max(found.peak_bytes))} a device"
