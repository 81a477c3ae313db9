"""Structs made from paths: a typed decoder then reads the mapped fields of an object, and skips all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from udp_stream.pings.mapping import Path

Row = msgspec.Struct
"""A ping as a decoder makes it: nested structs with the fields of the mapping, whatever they are called."""


@dataclass(frozen=True, slots=True)
class Node:
    """An object or an array of the form: its struct, and for each of its fields a node, a leaf's number, or None.

    >>> node_of([(("id",), 0)], (str,)).children
    (0,)
    """

    struct: type[Row]
    children: tuple[Node | int | None, ...]


def node_of(paths: Sequence[tuple[Path, int]], types: Sequence[object], depth: int = 0) -> Node:
    """The tree of these paths, of which each ends in a leaf with its number; `types` are those of the leaves.

    >>> tree = node_of([(("id",), 0), (("at", 1), 1)], (str, float))
    >>> getters_of(tree), msgspec.json.decode(b'{"id": "A1", "at": [72.8, 21.1]}', type=tree.struct).f1.f1
    ({0: 'f0', 1: 'f1.f1'}, 21.1)
    """
    groups: dict[str | int, list[tuple[Path, int]]] = {}
    for path, leaf in paths:
        groups.setdefault(path[depth], []).append((path, leaf))
    is_array = any(isinstance(key, int) for key in groups)
    keys: list[str | int] = list(range(1 + max(int(key) for key in groups))) if is_array else list(groups)
    fields: list[tuple[str, Any]] = []
    children: list[Node | int | None] = []
    for at, key in enumerate(keys):
        group = groups.get(key, [])
        if not group:
            children.append(None)
            fields.append((f"f{at}", Raw))
        elif len(group[0][0]) == depth + 1:
            leaf = group[0][1]
            children.append(leaf)
            fields.append((f"f{at}", types[leaf]))
        else:
            child = node_of(group, types, depth + 1)
            children.append(child)
            fields.append((f"f{at}", child.struct))
    rename = None if is_array else {f"f{at}": str(key) for at, key in enumerate(keys)}
    struct = msgspec.defstruct("Mapped", fields, array_like=is_array, rename=rename, gc=False)
    return Node(struct, tuple(children))


def getters_of(node: Node, prefix: str = "") -> dict[int, str]:
    """The dotted attribute of each leaf.

    >>> getters_of(node_of([(("id",), 0)], (str,)))
    {0: 'f0'}
    """
    found: dict[int, str] = {}
    for at, child in enumerate(node.children):
        if isinstance(child, Node):
            found |= getters_of(child, f"{prefix}f{at}.")
        elif child is not None:
            found[child] = f"{prefix}f{at}"
    return found


def built(node: Node, values: Sequence[object]) -> Row:
    """A row of these values, as a decoder would have made it.

    >>> built(node_of([(("id",), 0)], (str,)), ["A1"]).f0
    'A1'
    """
    made = [
        built(child, values) if isinstance(child, Node) else Raw(b"null") if child is None else values[child]
        for child in node.children
    ]
    return node.struct(*made)
