"""A city of thousands of cells: records of a day's slots dealt out to them, and a timetable with a
stop in each."""

import json
import random

import h3

from tests.timetables import files_of, zipped
from udp_stream.windows.grid import HEXAGONS


def many_cells(day, file, number, slots):
    """Records of so many cells of H3 8 in these slots, after those of the day; gives the cells."""
    middle = h3.latlng_to_cell(
        *reversed(day.estimates[next(iter(day.estimates))]["hat"]["center"]), 8
    )
    cells = sorted(h3.grid_disk(middle, 41))[:number]
    with file.open("wb") as out:
        for number, slot in enumerate(slots):
            mine = [
                one
                for (start, _), one in [*day.estimates.items(), *day.releases.items()]
                if start == slot
            ]
            for i, cell in enumerate(cells):
                of_cell = mine[(i * 7 + number) % (len(mine) // 2)]["hat"]["cell"]
                for records in (day.estimates, day.releases):
                    if record := records.get((slot, of_cell)):
                        lat, lon = h3.cell_to_latlng(cell)
                        hat = record["hat"] | {"cell": cell, "resolution": 8, "center": [lon, lat]}
                        out.write(json.dumps(record | {"hat": hat}).encode() + b"\n")
    return cells


def many_lines(path, cells, number):
    """A timetable of so many lines through these cells, each of 150 points, with a stop in each
    cell."""
    rng = random.Random(1)
    stops = [
        (str(at), f"Crossing {at}", *reversed(HEXAGONS.center_of(int(cell, 16))))
        for at, cell in enumerate(cells)
    ]
    shapes = []
    for line in range(number):
        lat, lon = rng.choice(stops)[2:]
        for at in range(150):
            lat, lon = lat + rng.gauss(0, 0.0015), lon + rng.gauss(0, 0.0015)
            shapes.append((f"s{line}", round(lat, 5), round(lon, 5), at))
    routes = [(str(n), str(n), "") for n in range(number // 2)]
    trips = [(str(line // 2), "daily", f"t{line}", line % 2, f"s{line}") for line in range(number)]
    calls = [(f"t{at % number}", stop[0], at) for at, stop in enumerate(stops)]
    return zipped(path, files_of(stops, routes, trips, calls, shapes=shapes))
