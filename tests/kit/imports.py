"""The picture of imports: modules, edges, circles and floors, with imports inside functions and for types alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[2]


def modules_of(root: Path, rooms: tuple[str, ...] = ("planner", "executor", "models")) -> dict[str, Path]:
    """Every module by its dotted name below `root`; a room's face by the name of the room."""
    found = {}
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _targets(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules that a module names in its relative imports: `from .a import b` is of `a.b` where that is a module."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
        source = ".".join(part for part in base if part)
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            target = inner if inner in modules else source
            if target in modules and target != name:
                yield target


@dataclass(frozen=True)
class ImportGraph:
    """Who imports whom; `edges` go from the importer."""

    edges: frozenset[tuple[str, str]]
    modules: frozenset[str]

    @classmethod
    def of(cls, root: Path = ROOT) -> ImportGraph:
        """Of the package in a folder."""
        modules = modules_of(root)
        edges = ((name, target) for name, path in modules.items() for target in _targets(name, path, modules))
        return cls(frozenset(edges), frozenset(modules))

    @cached_property
    def _graph(self) -> nx.DiGraph:
        graph = nx.DiGraph()
        graph.add_nodes_from(self.modules)
        graph.add_edges_from(self.edges)
        return graph

    @property
    def circles(self) -> list[list[str]]:
        """Groups of modules that reach one another, each sorted."""
        return sorted(sorted(group) for group in nx.strongly_connected_components(self._graph) if len(group) > 1)

    @property
    def depth(self) -> int:
        """Floors: modules on the longest way down. Only where there are no circles."""
        return 1 + int(nx.dag_longest_path_length(self._graph))
