"""The papers' data sets in their own files, as a user has them: T-Drive, NYMVC and MNIST, told
apart by content.

Formats by their documentation: T-Drive (Microsoft Research, 2011), lines `taxi,YYYY-MM-DD
HH:MM:SS,longitude,latitude`, a file for each taxi; NYMVC (NYC Open Data, Motor Vehicle Collisions),
CSV with columns LATITUDE and LONGITUDE; MNIST, the IDX form of images (magic number 2051, count,
rows, columns, a byte a pixel). Each may be gzipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.data import Images, PointCloud, Trajectories
from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.errors import UsageError
from udp_stream.queries.plane import Plane

IDX_IMAGES = 2051
REQUESTED_SHARE = 7
"""The magic number of MNIST's images; of images in a single file each seventh is asked about, as in
theirs (10,000)."""

COLLISIONS = 200_000
"""Rows of NYMVC that are drawn: as many as the paper has."""

DRIVE_FORM = "taxi,YYYY-MM-DD HH:MM:SS,longitude,latitude"

_TAXI = [("taxi", "U32"), ("time", "M8[ms]"), ("lon", "f8"), ("lat", "f8")]

Found = Trajectories | PointCloud | Images


def read_papers_data(path: Path, rng: np.random.Generator) -> Found:
    """Contents of a file, or of a folder of T-Drive's files. UsageError for anything else."""
    if path.is_dir():
        return _drive(path.name or "t-drive", path, sorted(path.rglob("*")))
    data = _bytes_of(path)
    name = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    if data[:4] == struct.pack(">I", IDX_IMAGES):
        return _images(name, data, path)
    head = data[:4096].decode("utf-8-sig", "replace").partition("\n")[0].upper()
    if "LATITUDE" in head and "LONGITUDE" in head:
        return _collisions(name, data, path, rng)
    return _drive(name, path, [path])


def _bytes_of(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: expected a file that can be read, got {error}") from error


def _images(name: str, data: bytes, path: Path) -> Images:
    count, rows, columns = struct.unpack(">3I", data[4:16]) if len(data) >= 16 else (0, 0, 0)
    if not count or len(data) != 16 + count * rows * columns:
        raise UsageError(
            f"{path}: expected {count} images of {rows} x {columns} bytes, got {max(0, len(data) - 16)} bytes"
        )
    if count < REQUESTED_SHARE:
        raise UsageError(f"{path}: expected at least {REQUESTED_SHARE} images, got {count}")
    pixels: NDArray[np.uint8] = np.frombuffer(data, np.uint8, offset=16).reshape(
        count, rows * columns
    )
    is_asked = np.arange(count) % REQUESTED_SHARE == REQUESTED_SHARE - 1
    return Images(name, pixels[~is_asked], pixels[is_asked])


def _collisions(name: str, data: bytes, path: Path, rng: np.random.Generator) -> PointCloud:
    rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig", "replace")))
    names = {str(column).strip().upper(): column for column in rows.fieldnames or ()}
    columns = [names["LATITUDE"], names["LONGITUDE"]]
    texts = [[_number(row[column]) for column in columns] for row in rows]
    places = _on_earth(np.array(texts).reshape(-1, 2))
    places = places[~np.isnan(places[:, 0])]
    if not places.size:
        raise UsageError(f"{path}: expected rows with LATITUDE and LONGITUDE, and none has a place")
    chosen = np.sort(rng.choice(len(places), min(COLLISIONS, len(places)), replace=False))
    return PointCloud(
        name, np.arange(chosen.size), np.zeros(chosen.size, np.int64), _in_plane(places[chosen])
    )


def _drive(name: str, path: Path, files: Sequence[Path]) -> Trajectories:
    """Trajectories of all files together: taxis, times (ms on Beijing's clock), and where they
    were."""
    found = []
    for file in files:
        if file != path and (file.suffix not in (".txt", ".csv", ".gz") or not file.is_file()):
            continue
        text = _bytes_of(file).decode("utf-8", "replace")
        try:
            if text.strip():  # some taxis have no line
                found.append(
                    np.loadtxt(io.StringIO(text), _TAXI, comments=None, delimiter=",", ndmin=1)
                )
        except ValueError as error:
            raise UsageError(f"{file}: expected lines {DRIVE_FORM}, got {error}") from error
    if not found:
        others = "NYMVC's CSV with LATITUDE and LONGITUDE, or MNIST's images"
        raise UsageError(f"{path}: expected T-Drive's lines ({DRIVE_FORM}), {others}")
    rows = np.concatenate(found)
    where = _on_earth(np.column_stack((rows["lat"], rows["lon"])))
    is_place = ~np.isnan(where[:, 0])
    plate = np.unique(rows["taxi"][is_place], return_inverse=True)[1]
    times = rows["time"][is_place].astype(np.int64)
    return Trajectories(name, plate, times, _in_plane(where[is_place]))


def _on_earth(places: Floats) -> Floats:
    """Latitudes and longitudes, degrees, shape (places, 2), with nan where no place is: not on
    earth, or (0, 0)."""
    is_none = ~(abs(places) <= (80, 180)).all(axis=1) | (places == 0).all(axis=1)
    return np.where(np.column_stack((is_none, is_none)), np.nan, places)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _in_plane(places: Floats) -> Integers:
    lat, lon = places.T
    return Plane(round(float(np.median(lat)), 2), round(float(np.median(lon)), 2)).quanta(lat, lon)


def sorted_out(
    found: Sequence[Found],
) -> tuple[tuple[Trajectories, ...], tuple[Trajectories, ...], Images | None]:
    """Trajectories that move, those that do not, and the images. UsageError for two sets of
    images."""
    images = [data for data in found if isinstance(data, Images)]
    if len(images) > 1:
        raise UsageError(f"expected one set of images, got {len(images)}")
    places = [data for data in found if isinstance(data, Trajectories)]
    still = tuple(place for place in places if isinstance(place, PointCloud))
    moving = tuple(place for place in places if not isinstance(place, PointCloud))
    return moving, still, images[0] if images else None
