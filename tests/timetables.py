"""Timetables (GTFS) that tests make: stops on a line of cells, and what is asked for beside them."""

import csv
import io
import zipfile
from pathlib import Path

STOPS = [
    ("a", "Main St", 21.17, 72.80),
    ("b", "Kadam / 2nd", 21.17, 72.83),
    ("c", "Far End", 21.17, 72.86),
]
"""Id, name and position."""

HEADS = {
    "stops.txt": "stop_id,stop_name,stop_lat,stop_lon,location_type,parent_station",
    "routes.txt": "route_id,route_short_name,route_long_name",
    "trips.txt": "route_id,service_id,trip_id,direction_id,shape_id",
    "stop_times.txt": "trip_id,stop_id,stop_sequence",
    "calendar.txt": "service_id,monday,tuesday,wednesday,thursday,friday,saturday,sunday",
    "calendar_dates.txt": "service_id,date,exception_type",
    "shapes.txt": "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence",
}


def table(file, rows):
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return f"{HEADS[file]}\r\n{out.getvalue()}".encode()


def files_of(stops=STOPS, routes=(("7", "7", ""),), trips=None, calls=None, **more):
    """The texts of the files, by their names. By default the route's trips call at all stops, both
    ways."""
    trips = trips or [("7", "daily", "out", 0, ""), ("7", "daily", "back", 1, "")]
    if calls is None:
        ways = {0: [stop[0] for stop in stops], 1: [stop[0] for stop in stops][::-1]}
        calls = [(trip[2], stop, at) for trip in trips for at, stop in enumerate(ways[trip[3]])]
    tables = {"stops": stops, "routes": routes, "trips": trips, "stop_times": calls} | more
    return {
        f"{name}.txt": table(f"{name}.txt", rows)
        for name, rows in tables.items()
        if rows is not None
    }


def zipped(path, files, within="", **flags):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, text in files.items():
            out.writestr(f"{within}{name}", text, **flags)
    return path


def in_folder(folder, files):
    Path(folder).mkdir(exist_ok=True)
    for name, text in files.items():
        Path(folder, name).write_bytes(text)
    return folder
