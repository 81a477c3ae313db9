"""`python -m benchmarks.rooms_picture docs/rooms.svg`: rooms by floor, their imports as lines, from the sources.

An import that follows from others on the way down is left out: what a room may use is everything that it reaches.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.rooms import floors, modules_of, rooms
from benchmarks.words import words

BOX, GAP, FLOOR, MARGIN = 116, 14, 74, 20
LEFT_OUT = {"adapters", "adapters.kafka_section", "adapters.text"}
"""The package itself, and two files of a few lines."""


def reaches(graph: dict[str, set[str]], room: str) -> set[str]:
    """Every room below this one."""
    below = set(graph.get(room, ()))
    return below.union(*(reaches(graph, other) for other in below)) if below else below


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports that do not follow from others."""
    return {
        room: {one for one in below if not any(one in reaches(graph, other) for other in below - {one})}
        for room, below in graph.items()
    }


def svg(graph: dict[str, set[str]]) -> str:
    """The picture."""
    floor = floors(graph)
    rows: dict[int, list[str]] = {}
    for room in sorted(graph):
        rows.setdefault(floor[room], []).append(room)
    width = max(len(row) for row in rows.values()) * (BOX + GAP) + 2 * MARGIN
    height = (max(rows) + 1) * FLOOR + MARGIN
    places: dict[str, tuple[float, float]] = {}
    for number, row in rows.items():
        first = (width - len(row) * (BOX + GAP) + GAP) / 2
        for i, room in enumerate(row):
            places[room] = first + i * (BOX + GAP), height - (number + 1) * FLOOR
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for room, below in sorted(reduced(graph).items()):
        x, y = places[room]
        for other in sorted(below):
            to_x, to_y = places[other]
            parts.append(
                f'<line x1="{x + BOX / 2:.0f}" y1="{y + 30:.0f}" x2="{to_x + BOX / 2:.0f}" y2="{to_y:.0f}" '
                'stroke="#9ab" stroke-width="1"/>'
            )
    for room, (x, y) in sorted(places.items()):
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="30" rx="4" fill="#eef4fa" stroke="#456"/>'
            f'<text x="{x + BOX / 2:.0f}" y="{y + 19:.0f}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def picture() -> str:
    """Of the sources in the working folder."""
    graph = {room: below - LEFT_OUT for room, below in rooms(modules_of(Path())).items() if room not in LEFT_OUT}
    return svg(graph)


if __name__ == "__main__":
    Path(words(__doc__, "FILE", 1)[0]).write_text(picture(), encoding="utf-8")
