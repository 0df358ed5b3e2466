"""What a plan is made of, as networkx graphs: the layers in their stages, and the devices with what goes between them.

Every node and edge carries figures and what a picture needs: `label` (lines of text, a tuple), `fill`, `ink`, `group`;
`stroke` and `dashed` of an edge. The graph itself has a `title` and `groups`: for every group its lines of text. The
third graph, of the operations, is in `op_graph`; `dot` writes any of them as text, `draw_*` lay them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..basics import InputError, format_bytes, format_seconds, percent
from ..graph import StageCosts, costs_of, holders, messages, ring, route, stash_policy, update_size
from ..plan import RECEIVES, SENDS, Kind, Pipeline, Plan
from .names import plain
from .palette import direction, flat
from .text import device_limit

if TYPE_CHECKING:
    import networkx

    from ..forecast import Timeline

    Graph: TypeAlias = networkx.MultiDiGraph[Any]

MOST_BOXES = 600
"""So many boxes a picture of layers holds at most."""
_FOLD_ABOVE = 40  # layers; beyond that, runs of layers inside a stage become one box
BOX, BOX_INK, EDGE = "#eef0f3", "#1f2733", "#8b95a3"
CROSSING = "#1667a6"


def title_of(plan: Plan) -> str:
    """What every picture of a plan is called."""
    source = plan.provenance.source or "plan"
    return plain(f"{plan.problem.model.name}: {source}, {len(plan.stages)} stages on {len(plan.orders)} devices")


# ---------------------------------------------------------------- layers


def layer_graph(plan: Plan) -> Graph:
    """The layer graph cut into stages. Groups are stages.

    Nodes: `layers` (their names; several where a run of them is drawn as one), `forward_s`, `backward_s`. Edges:
    `crossing`, `bytes` a micro-batch, and `tensor`, equal for edges that one message serves. In a model of more than 40
    layers, runs of layers inside a stage become one node. Raises InputError above 600 nodes even so.
    """
    import networkx

    model = plan.problem.model
    home = {name: number for number, stage in enumerate(plan.stages) for name in stage}
    runs = _runs(plan, home) if len(model.layers) > _FOLD_ABOVE else [[layer.name] for layer in model.layers]
    if len(runs) > MOST_BOXES:
        raise InputError(f"the layer graph has {len(runs)} boxes, a picture holds {MOST_BOXES}")
    costs = costs_of(plan)
    graph: Graph = networkx.MultiDiGraph(
        title=f"{title_of(plan)}: layers",
        groups={s: _stage_lines(plan, costs, s) for s in range(len(plan.stages))},
    )
    node_of: dict[str, int] = {}
    for number, names in enumerate(runs):
        node_of |= dict.fromkeys(names, number)
        members = [model.layers[model.index[name]] for name in names]
        forward, backward = sum(x.forward_s for x in members), sum(x.backward_s for x in members)
        called = plain(names[0]) if len(names) == 1 else f"{plain(names[0])} … {plain(names[-1])} ({len(names)})"
        graph.add_node(
            number, layers=tuple(names), forward_s=forward, backward_s=backward, group=home[names[0]], fill=BOX,
            ink=BOX_INK, label=(called, f"F {format_seconds(forward)}, B {format_seconds(backward)}"),
        )  # fmt: skip
    for source, target in model.edges:
        a, b = node_of[source], node_of[target]
        crossing = home[source] != home[target]
        if a != b:
            size = model.carried_bytes(source, [target])
            graph.add_edge(
                a, b, crossing=crossing, bytes=size, tensor=(source, home[target]), dashed=False,
                stroke=CROSSING if crossing else EDGE, label=(format_bytes(size),) if crossing else (),
            )  # fmt: skip
    return graph


def _runs(plan: Plan, home: dict[str, int]) -> list[list[str]]:
    """The layers in topological order, those that follow only one another inside a stage together."""
    import networkx

    model = plan.problem.model
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(layer.name for layer in model.layers)
    graph.add_edges_from(model.edges)
    runs: dict[str, list[str]] = {}  # by last layer
    for name in networkx.lexicographical_topological_sort(graph, key=lambda name: model.index[name]):
        before = list(graph.predecessors(name))
        alone = len(before) == 1 and graph.out_degree(before[0]) == 1 and home[before[0]] == home[name]
        runs[name] = [*(runs.pop(before[0]) if alone else []), name]
    return list(runs.values())


def _stage_lines(plan: Plan, costs: StageCosts, stage: int) -> tuple[str, ...]:
    count = len(plan.stages[stage])
    return (
        f"stage {stage}, {count} layer{'s' * (count != 1)}",
        f"F {format_seconds(costs.forward_s[stage])}, B {format_seconds(costs.backward_s[stage])}",
        f"parameters {format_bytes(int(costs.parameter_bytes[stage]))}",
        f"stash {format_bytes(int(costs.stash_bytes[stage]))}",
        *_homes(plan, stage),
    )


def _homes(plan: Plan, stage: int) -> Iterator[str]:
    """On which devices a stage runs; a line for each pair of them."""
    pairs = sorted({(p.forward[stage], p.backward[stage]) for p in plan.pipelines})
    both = [forward for forward, backward in pairs if forward == backward]
    if both:
        yield f"on device{'s' * (len(both) != 1)} {', '.join(map(str, both))}"
    for forward, backward in pairs:
        if forward != backward:
            yield f"F on device {forward}, B on {backward}"


# ---------------------------------------------------------------- placement


@dataclass(frozen=True)
class Role:
    """What a device does for a stage: "F", "B" or "FB", in pipelines of one direction (0 down, 1 up)."""

    stage: int
    does: str
    hue: int


FLOWS = ("activations", "gradients", "stashes", "parameters", "gradient sums", "to the host", "from the host")
_SENT = {Kind.SEND_F: FLOWS[0], Kind.SEND_B: FLOWS[1], Kind.SEND_S: FLOWS[2], Kind.SEND_P: FLOWS[3]}
_STROKES = {"stashes": "#2c7a61", "parameters": "#3d4754", "gradient sums": "#8a5fa8", "to the host": "#2c7a61",
            "from the host": "#57a88c"}  # fmt: skip
HUES = ("#1667a6", "#c26a12")


def placement_graph(plan: Plan, timeline: Timeline) -> Graph:
    """Devices and hosts with what goes between them in a step. Groups are the cluster's nodes.

    Nodes ("device", d): `roles`, `busy` (share of the step), `peak_bytes`, `limit_bytes`. Nodes ("host", n), where
    stashes go there: `peak_bytes`, `limit_bytes` (None: none). Edges: `flow` (one of FLOWS), `bytes` and `count` of
    messages a step, `hue`: direction of the pipelines. Gradient sums are what a ring moves over each of its links.
    """
    import networkx

    cluster, forecast = plan.problem.cluster, timeline.forecast()
    groups = {n: (f"node {n}",) for n in range(len(cluster.node_groups))}
    graph: Graph = networkx.MultiDiGraph(title=f"{title_of(plan)}: placement", groups=groups)
    for d, device in enumerate(cluster.devices):
        found, limit = forecast.devices[d], device_limit(plan, d)
        roles = _roles(plan, d)
        use = f"{format_bytes(found.peak_bytes)} of {format_bytes(limit)}"
        graph.add_node(
            ("device", d), group=device.node, roles=roles, busy=1 - found.bubble, peak_bytes=found.peak_bytes,
            limit_bytes=limit, fill=BOX, ink=BOX_INK,
            label=(f"device {d}", *_role_lines(roles), f"busy {percent(1 - found.bubble)}", use),
        )  # fmt: skip
    flows = _flows(plan, timeline.costs)
    used = {end for flow in flows for end in flow[:2]}
    for n, memory in enumerate(timeline.host_memory):
        if ("host", n) in used:
            limit_bytes = cluster.node_groups[n].host_memory_bytes
            of = "" if limit_bytes is None else f" of {format_bytes(limit_bytes)}"
            graph.add_node(
                ("host", n), group=n, peak_bytes=memory.peak_bytes, limit_bytes=limit_bytes, fill="#dff0ea",
                ink=BOX_INK, label=(f"host memory of node {n}", f"{format_bytes(memory.peak_bytes)}{of}"),
            )  # fmt: skip
    for (source, target, flow, hue), (size, count) in flows.items():
        graph.add_edge(
            source, target, flow=flow, hue=hue, bytes=size, count=count, label=(f"{flow} {format_bytes(size)}",),
            stroke=_STROKES.get(flow, HUES[hue]), dashed=flow in ("gradients", "from the host"),
        )  # fmt: skip
    return graph


def _roles(plan: Plan, device: int) -> tuple[Role, ...]:
    found: dict[tuple[int, int], set[str]] = {}
    for p in plan.pipelines:
        hue = direction(p, len(plan.orders))
        for does, devices in (("F", p.forward), ("B", p.backward)):
            for stage in (s for s, home in enumerate(devices) if home == device):
                found.setdefault((stage, hue), set()).add(does)
    return tuple(
        Role(stage, "".join(does for does in "FB" if does in mine), hue)
        for (stage, hue), mine in sorted(found.items(), key=lambda item: (item[0][1], item[0][0]))
    )


def _role_lines(roles: tuple[Role, ...]) -> Iterator[str]:
    """A line for each direction and each of forward, backward and both."""
    for hue, way in enumerate(("down", "up")):
        for does in ("FB", "F", "B"):
            stages = ", ".join(str(role.stage) for role in roles if (role.hue, role.does) == (hue, does))
            if stages:
                yield f"{'F and B' if does == 'FB' else does} of {stages} ({way})"


def _flows(plan: Plan, costs: StageCosts) -> dict[tuple[Any, Any, str, int], tuple[int, int]]:
    """Bytes and messages a step by (source, target, flow, direction)."""
    found: dict[tuple[Any, Any, str, int], tuple[int, int]] = {}

    def add(source: tuple[str, int], target: tuple[str, int], flow: str, hue: int, size: int, count: int = 1) -> None:
        had = found.get((source, target, flow, hue), (0, 0))
        found[source, target, flow, hue] = had[0] + size, had[1] + count

    hues = [direction(p, len(plan.orders)) for p in plan.pipelines]
    pipeline = route(plan)
    for message in messages(plan, costs):
        kind, m = message.send.kind, message.send.micro_batch
        hue = hues[pipeline[m]] if kind in (Kind.SEND_F, Kind.SEND_B) else 0
        add(("device", message.source), ("device", message.target), _SENT[kind], hue, message.bytes)
    updates = plan.problem.workload.micro_batches // update_size(plan)
    for stage, devices in holders(plan).items():
        trained, workload = int(costs.trained_bytes[stage]), plan.problem.workload
        turns = [("gradient sums", (1 if workload.sharded else 2) * workload.gradient_bytes(trained))]
        turns += [("parameters", trained)] if workload.sharded else []
        for what, count in turns:
            for a, b in ring(devices) if len(devices) > 1 and count else ():
                share = round((len(devices) - 1) * count / len(devices))
                add(("device", a), ("device", b), what, 0, updates * share, updates)
    for p, row in zip(plan.pipelines, plan.stash, strict=True):
        for stage, policy in enumerate(row):
            if stash_policy(policy).hosted and p.micro_batches:
                weights = int(costs.trained_bytes[stage]) if stash_policy(policy).versioned else 0
                _add_copies(plan, p, stage, int(costs.stash_bytes[stage]) + weights, add)
    return found


def _add_copies(plan: Plan, p: Pipeline, stage: int, size: int, add: Any) -> None:
    count = len(p.micro_batches)
    host = ("host", plan.problem.cluster.devices[p.forward[stage]].node)
    add(("device", p.forward[stage]), host, "to the host", 0, size * count, count)
    add(host, ("device", p.backward[stage]), "from the host", 0, size * count, count)


def op_fill(kind: Kind, hue: int) -> tuple[str, str]:
    """Fill and ink of an op in a graph: the timeline's colours, without its hatches."""
    return ("#ffffff", BOX_INK) if kind in SENDS | RECEIVES | {Kind.FREE} else flat(kind, hue)
