"""`python -m benchmarks.rooms [FOLDER]`: the house in figures, and its rooms with what each imports, from the sources.

A room is a package, a part of `adapters`, `cli/main.py`, or `streams`. Its floor is the longest road of imports below
it.
"""

from __future__ import annotations

import ast
import tokenize
from graphlib import TopologicalSorter
from pathlib import Path

from benchmarks.__main__ import say
from benchmarks.words import words

LONG = 110

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def modules_of(root: Path) -> dict[str, Path]:
    """Every module of the program by its dotted name."""
    paths = [*(root / "udp_stream").rglob("*.py"), *(root / "streams").rglob("*.py")]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def room_of(module: str) -> str:
    """`udp_stream.adapters.ledgers.opening` is in `adapters.ledgers`, `udp_stream.units` in itself."""
    parts = module.split(".")
    if parts[0] == "streams":
        return "streams"
    deep = parts[1:2] == ["adapters"] or parts[1:3] in (["cli", "commands"], ["cli", "main"])
    return ".".join(parts[1:3] if deep else parts[1:2])


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & modules.keys()


def rooms(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Each room and the rooms that it imports from; the package itself is none."""
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        if room := room_of(module):
            below = {room_of(other) for other in imports_of(path, modules)} - {room, ""}
            graph.setdefault(room, set()).update(below)
    return graph


def floors(graph: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room; graphlib.CycleError if some import each other."""
    found: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        found[room] = 1 + max((found[below] for below in graph.get(room, ())), default=-1)
    return found


def examples(modules: dict[str, Path]) -> tuple[int, int]:
    """Public functions and classes of modules, and how many of them show an example that runs, or in a method."""
    public = shown = 0
    for path in modules.values():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
                public += 1
                parts = [node, *(part for part in node.body if isinstance(part, DEFINITIONS))]
                shown += any(">>> " in (ast.get_docstring(part) or "") for part in parts)
    return public, shown


def comment_lines(path: Path) -> int:
    """Lines that have a comment."""
    with path.open("rb") as file:
        return sum(token.type == tokenize.COMMENT for token in tokenize.tokenize(file.readline))


def figures(modules: dict[str, Path]) -> dict[str, str]:
    """Rows of the table in docs/architecture.md, as they are there."""
    graph = rooms(modules)
    floor = floors(graph)
    lines = {module: path.read_text("utf-8").splitlines() for module, path in modules.items()}
    total = sum(map(len, lines.values()))
    sizes: dict[str, int] = {}
    for module, text in lines.items():
        sizes[room_of(module)] = sizes.get(room_of(module), 0) + len(text)
    largest = max(sizes, key=sizes.__getitem__)
    public, shown = examples(modules)
    return {
        "rooms": f"{len(graph)}",
        "floors": f"{max(floor.values()) + 1}",
        "arrows": f"{sum(map(len, graph.values()))}",
        "arrows upwards": f"{sum(floor[below] >= floor[room] for room in graph for below in graph[room])}",
        "largest room": f"{100 * sizes[largest] / total:.0f} % (`{largest}`)",
        "lines": f"{total:,}",
        "longest file": f"{max(map(len, lines.values()))} lines",
        "public functions and classes of modules with an example": f"{100 * shown / public:.0f} %",
        "lines with a comment": f"{100 * sum(map(comment_lines, modules.values())) / total:.1f} %",
        f"lines over {LONG} columns (the limit is 120)": (
            f"{sum(len(line) > LONG for text in lines.values() for line in text):,}"
        ),
    }


def main() -> None:
    modules = modules_of(Path(*words(__doc__, "FOLDER", "?")))
    for row, figure in figures(modules).items():
        print(f"| {row} | {figure} |")
    graph = rooms(modules)
    floor = floors(graph)
    for room in sorted(graph, key=lambda one: (-floor[one], one)):
        say(f"{floor[room]:>2} {room}", ", ".join(sorted(graph[room])) or "-")


if __name__ == "__main__":
    main()
