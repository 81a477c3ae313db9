"""The papers' data sets in their own files, as a user has them: T-Drive, NYMVC and MNIST, told apart by content.

Formats by their documentation: T-Drive (Microsoft Research, 2011), lines `taxi,YYYY-MM-DD HH:MM:SS,longitude,latitude`,
a file for each taxi; NYMVC (NYC Open Data, Motor Vehicle Collisions), CSV with columns LATITUDE and LONGITUDE; MNIST,
the IDX form of images (magic number 2051, count, rows, columns, a byte a pixel). Each may be gzipped.
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
from udp_stream.errors import UsageError
from udp_stream.queries.plane import Plane

IDX_IMAGES, ASKED_SHARE = 2051, 7
"""The magic number of MNIST's images; of images in one file each seventh is asked about, as in theirs (10,000)."""

COLLISIONS = 200_000
"""As many of NYMVC's rows as the paper has, drawn."""

DRIVE_FORM = "taxi,YYYY-MM-DD HH:MM:SS,longitude,latitude"

Found = Trajectories | PointCloud | Images


def read_papers_data(path: Path, rng: np.random.Generator) -> Found:
    """What a file, or a folder of T-Drive's files, holds. UsageError for anything else."""
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.is_file() and one.suffix in (".txt", ".csv", ".gz"))
        return _drive(path.name or "t-drive", [(str(one), _bytes_of(one)) for one in files], path)
    data, name = _bytes_of(path), path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    if data[:4] == struct.pack(">I", IDX_IMAGES):
        return _images(name, data, path)
    head = data[:4096].decode("utf-8-sig", "replace").partition("\n")[0].upper()
    if "LATITUDE" in head and "LONGITUDE" in head:
        return _collisions(name, data, path, rng)
    return _drive(name, [(str(path), data)], path)


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
    pixels: NDArray[np.uint8] = np.frombuffer(data, np.uint8, offset=16).reshape(count, rows * columns)
    is_asked = np.arange(count) % ASKED_SHARE == ASKED_SHARE - 1
    if not is_asked.any():
        raise UsageError(f"{path}: expected at least {ASKED_SHARE} images, got {count}")
    return Images(name, pixels[~is_asked], pixels[is_asked])


def _collisions(name: str, data: bytes, path: Path, rng: np.random.Generator) -> PointCloud:
    rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig", "replace")))
    names = {str(column).strip().upper(): column for column in rows.fieldnames or ()}
    at = [(row[names["LATITUDE"]], row[names["LONGITUDE"]]) for row in rows]
    lat, lon = _placed([one for one, _ in at], [one for _, one in at])
    if not lat.size:
        raise UsageError(f"{path}: expected rows with LATITUDE and LONGITUDE, and none has a place")
    chosen = np.sort(rng.choice(lat.size, min(COLLISIONS, lat.size), replace=False))
    where = _in_plane(lat[chosen], lon[chosen])
    return PointCloud(name, np.arange(chosen.size), np.zeros(chosen.size, np.int64), where)


def _drive(name: str, files: Sequence[tuple[str, bytes]], path: Path) -> Trajectories:
    parts = [part for file, data in files if (part := _drive_rows(file, data)) is not None]
    if not parts:
        others = "NYMVC's CSV with LATITUDE and LONGITUDE, or MNIST's images"
        raise UsageError(f"{path}: expected T-Drive's lines ({DRIVE_FORM}), {others}")
    taxis, times, lat, lon = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Trajectories(name, np.unique(taxis, return_inverse=True)[1], times, _in_plane(lat, lon))


def _drive_rows(
    file: str, data: bytes
) -> tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]] | None:
    """Taxis, times (ms on Beijing's clock), latitudes, longitudes; None of an empty file, as some taxis have."""
    lines = [line.split(",") for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return None
    if wrong := next((number for number, line in enumerate(lines, 1) if len(line) != 4), 0):
        raise UsageError(f"{file}: line {wrong}: expected {DRIVE_FORM}, got {len(lines[wrong - 1])} fields")
    try:
        times = np.array([line[1].strip() for line in lines], "datetime64[ms]").astype(np.int64)
    except ValueError as error:
        raise UsageError(f"{file}: expected {DRIVE_FORM}, got a time of another form") from error
    lat, lon, is_place = _numbers([line[3] for line in lines], [line[2] for line in lines])
    return np.array([line[0].strip() for line in lines])[is_place], times[is_place], lat[is_place], lon[is_place]


def _placed(lat: Sequence[str], lon: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    north, east, is_place = _numbers(lat, lon)
    return north[is_place], east[is_place]


def _numbers(
    lat: Sequence[str], lon: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Both in degrees, and whether they are a place: numbers on earth, and not (0, 0)."""
    north, east = (np.array([_number(text) for text in column], np.float64) for column in (lat, lon))
    is_place = (np.abs(north) <= 80) & (np.abs(east) <= 180) & ((north != 0) | (east != 0))
    return north, east, is_place


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _in_plane(lat: NDArray[np.float64], lon: NDArray[np.float64]) -> NDArray[np.int64]:
    plane = Plane(round(float(np.median(lat)), 2), round(float(np.median(lon)), 2))
    return plane.quanta(lat, lon)


def sorted_out(found: Sequence[Found]) -> tuple[tuple[Trajectories, ...], tuple[Trajectories, ...], Images | None]:
    """What moves, what does not, and the images, of which there is one set. UsageError for two."""
    images = [one for one in found if isinstance(one, Images)]
    if len(images) > 1:
        raise UsageError(f"expected one set of images, got {len(images)}")
    still = tuple(one for one in found if isinstance(one, PointCloud))
    moving = tuple(one for one in found if isinstance(one, Trajectories) and not isinstance(one, PointCloud))
    return moving, still, images[0] if images else None
