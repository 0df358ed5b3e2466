"""The picture of imports as numbers: modules, arrows, circles, floors; and lines.

    python .ci/house.py [CHECKOUT]...

An arrow goes from a module to the one that defines what it imports, also where that comes through a room's face
(`__init__.py`), inside a function or for types alone. A room is a folder. Circles are strongly connected parts of more
than one module or room, floors the longest way down through what is left when each circle counts as one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx

PACKAGE = "contraflow"
PARTS = ("planner", "executor", "models")


@dataclass(frozen=True)
class House:
    """The modules of a checkout by their dotted names, without the package's, and who imports whom."""

    root: Path

    @cache  # noqa: B019 - a house is looked at once
    def files(self) -> dict[str, Path]:
        """Every module's file; a package has the name of its folder."""
        paths = [self.root / "__main__.py", *(p for part in PARTS for p in (self.root / part).rglob("*.py"))]
        return {".".join(_parts(path.relative_to(self.root))): path for path in sorted(paths)}

    def is_face(self, module: str) -> bool:
        """Whether the module is a folder's `__init__.py`."""
        return self.files()[module].name == "__init__.py"

    @cache  # noqa: B019
    def tree(self, module: str) -> ast.Module:
        """A module's syntax."""
        return ast.parse(self.files()[module].read_text())

    @cache  # noqa: B019
    def imported(self, module: str) -> tuple[tuple[str, str | None], ...]:
        """Every import as (module, name in it or None), of this package only."""
        tree = self.tree(module)
        pairs = [pair for node in ast.walk(tree) for pair in self._pairs(module, node)]
        faces = {name: f"{base}.{name}".strip(".") for base, name in pairs if name is not None}
        faces = {name: face for name, face in faces.items() if face in self.files() and self.is_face(face)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in faces:
                pairs.append((faces[node.value.id], node.attr))
        return tuple(pairs)

    def _pairs(self, module: str, node: ast.AST) -> Iterator[tuple[str, str | None]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(f"{PACKAGE}."):
                    yield alias.name.removeprefix(f"{PACKAGE}."), None
        elif isinstance(node, ast.ImportFrom):
            base = self._base(module, node)
            if base is not None:
                yield from ((base, alias.name) for alias in node.names)

    def _base(self, module: str, node: ast.ImportFrom) -> str | None:
        """The module that a `from ... import` names; None for those of others."""
        if not node.level:
            name = node.module or ""
            return name.removeprefix(PACKAGE).removeprefix(".") if name.split(".")[0] == PACKAGE else None
        inside = module.split(".") if self.is_face(module) else module.split(".")[:-1]
        above = inside[: len(inside) - node.level + 1]
        return ".".join([*above, *(node.module or "").split(".")]).strip(".")

    @cache  # noqa: B019
    def home(self, base: str, name: str | None) -> str | None:
        """The module that defines what `from base import name` brings, faces looked through; None where none does."""
        if name is not None and (inner := f"{base}.{name}".strip(".")) in self.files():
            return inner
        if base not in self.files():
            return None
        if name is not None and self.is_face(base):
            tree = self.tree(base)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        source = self._base(base, node)
                        if (alias.asname or alias.name) == name and source is not None and source != base:
                            return self.home(source, alias.name)
        return base

    @cache  # noqa: B019
    def arrows(self) -> networkx.DiGraph[str]:
        """Who uses what, faces left out except where they define something themselves."""
        graph: networkx.DiGraph[str] = networkx.DiGraph()
        graph.add_nodes_from(self.files())
        for module in self.files():
            for base, name in self.imported(module):
                home = self.home(base, name)
                if home is not None and home != module and not self._shows(module, name):
                    graph.add_edge(module, home)
        return graph

    def _shows(self, module: str, name: str | None) -> bool:
        """Whether a face only shows a name, and does nothing with it."""
        return self.is_face(module) and name is not None and name not in self._used(module)

    @cache  # noqa: B019
    def _used(self, module: str) -> frozenset[str]:
        """Names that a module's own code reads; of a star, everything."""
        tree = self.tree(module)
        return frozenset({"*", *(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))})

    def rooms(self) -> networkx.DiGraph[str]:
        """Arrows between folders; what lies beside the rooms of a part is a room of its own."""
        graph: networkx.DiGraph[str] = networkx.DiGraph()
        room = {m: m if self.is_face(m) or m.count(".") < 2 else m.rpartition(".")[0] for m in self.files()}
        graph.add_nodes_from(room.values())
        graph.add_edges_from({(room[a], room[b]) for a, b in self.arrows().edges if room[a] != room[b]})
        return graph

    def reached(self, roots: set[str]) -> set[str]:
        """What the roots use, they themselves included. A face that is used is; what it shows besides is not."""
        found: set[str] = set()
        for root in roots & set(self.files()):
            found |= {root} | networkx.descendants(self.arrows(), root)
        return found


def circles(graph: networkx.DiGraph[str]) -> list[tuple[str, ...]]:
    """Parts in which everybody imports everybody, the largest first."""
    found = [tuple(sorted(part)) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    return sorted(found, key=lambda part: (-len(part), part))


def floors(graph: networkx.DiGraph[str]) -> int:
    """Modules on the longest way down, a circle counting as one."""
    return int(networkx.dag_longest_path_length(networkx.condensation(graph))) + 1


def lines(folder: Path) -> int:
    """Of all Python files in a folder."""
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


def _parts(path: Path) -> list[str]:
    parts = [*path.parts[:-1], path.stem]
    return parts[:-1] if path.stem == "__init__" else parts


def main(checkouts: list[str]) -> None:
    """Prints the numbers of every checkout."""
    for checkout in checkouts or ["."]:
        house = House(Path(checkout).resolve())
        print(f"{checkout}:")
        for what, graph in (("modules", house.arrows()), ("rooms", house.rooms())):
            parts = circles(graph)
            largest = f", the largest of {len(parts[0])}" if parts else ""
            print(
                f"  {len(graph)} {what}, {graph.number_of_edges()} arrows, {len(parts)} circles{largest}, "
                f"{floors(graph)} floors"
            )
        counted = {part: lines(house.root / part) for part in (*PARTS, "tests")}
        print("  lines: " + ", ".join(f"{part} {count}" for part, count in counted.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
