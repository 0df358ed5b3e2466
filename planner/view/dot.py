"""Graphs as DOT text for Graphviz: `dot -Tsvg`. Nodes are numbered, so that a name is only ever a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .names import plain

if TYPE_CHECKING:
    from .graphs import Graph


def to_dot(graph: Graph) -> str:
    """The graph as DOT text, its groups as clusters."""
    number = {node: k for k, node in enumerate(graph)}
    lines = [
        "digraph plan {",
        f"  graph [label={_quoted([graph.graph['title']])}, labelloc=t, rankdir=LR, fontname=Helvetica];",
        '  node [shape=box, style="filled,rounded", fontname=Helvetica, fontsize=11, penwidth=0];',
        "  edge [fontname=Helvetica, fontsize=9, arrowsize=0.7];",
    ]
    for k, (group, text) in enumerate(graph.graph["groups"].items()):
        members = [node for node in graph if graph.nodes[node]["group"] == group]
        lines += [
            f"  subgraph cluster_{k} {{",
            f'    graph [label={_quoted(text)}, labelloc=t, style=rounded, color="#8b95a3", fontsize=11];',
            *(f"    n{number[node]} [{_node(graph.nodes[node])}];" for node in members),
            "  }",
        ]
    for source, target, edge in graph.edges(data=True):
        lines.append(f"  n{number[source]} -> n{number[target]} [{', '.join(_edge(edge))}];")
    return "\n".join([*lines, "}", ""])


def _node(node: dict[str, Any]) -> str:
    return f'label={_quoted(node["label"])}, fillcolor="{node["fill"]}", fontcolor="{node["ink"]}"'


def _edge(edge: dict[str, Any]) -> Iterator[str]:
    yield f'color="{edge["stroke"]}"'
    if edge["label"]:
        yield f"label={_quoted(edge['label'])}"
        yield f'fontcolor="{edge["stroke"]}"'
    if edge["dashed"]:
        yield "style=dashed"


def _quoted(lines: Iterable[str]) -> str:
    r"""A label of these lines. In one, \N and the like and &lt; and the like mean something: backslash and & do not."""
    return '"' + r"\n".join(_escaped(plain(line)) for line in lines) + '"'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
