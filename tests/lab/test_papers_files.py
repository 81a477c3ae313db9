"""The papers' data in their own files, small ones that the tests make by their documentation."""

import gzip
import struct

import numpy as np
import pytest

from lab.data import Images, PointCloud
from lab.papers import read_papers_data, sorted_out
from udp_stream.base.errors import UsageError

COLLISIONS = """\
CRASH DATE,CRASH TIME,BOROUGH,ZIP CODE,LATITUDE,LONGITUDE,LOCATION,COLLISION_ID
09/11/2021,2:39,BROOKLYN,11208,40.667202,-73.8665,"(40.667202, -73.8665)",4455765
03/26/2022,11:45,,,,,,4513547
06/29/2022,6:55,QUEENS,11356,40.7833,-73.8427,"(40.7833, -73.8427)",4541903
12/14/2021,8:13,,,0,0,"(0.0, 0.0)",4486609
"""


def taxi(number, minutes, lat=39.92):
    rows = (
        f"{number},2008-02-02 15:{minute:02}:08,116.{51000 + minute},{lat}" for minute in minutes
    )
    return "\n".join(rows) + "\n"


def idx(images):
    count, rows, columns = images.shape
    return struct.pack(">4I", 2051, count, rows, columns) + images.astype(np.uint8).tobytes()


def read(path):
    return read_papers_data(path, np.random.default_rng(1))


def test_a_folder_of_taxis_is_where_each_was_when(tmp_path):
    (tmp_path / "1.txt").write_text(taxi(1, [36, 46, 56]))
    (tmp_path / "2.txt").write_text(taxi(2, [37], lat=39.93) + "2,2008-02-02 16:00:00,0.0,0.0\n")
    (tmp_path / "3.txt").write_text("")
    found = read(tmp_path)
    assert found.plate.tolist() == [0, 0, 0, 1] and np.diff(found.time_ms).tolist() == [
        600_000,
        600_000,
        -1_140_000,
    ]
    north = (found.where[3, 1] - found.where[0, 1]) / 16
    assert north == pytest.approx(1110, abs=5)  # a hundredth of a degree, in metres
    plates, _ = found.at(int(found.time_ms.max()) + 1)
    assert plates.tolist() == [0]  # the other one's position is too old


@pytest.mark.parametrize("is_zipped", [False, True])
def test_collisions_are_points_that_do_not_move(tmp_path, is_zipped):
    path = tmp_path / ("crashes.csv.gz" if is_zipped else "crashes.csv")
    path.write_bytes(gzip.compress(COLLISIONS.encode()) if is_zipped else COLLISIONS.encode())
    found = read(path)
    assert isinstance(found, PointCloud) and found.name == "crashes" and found.where.shape == (2, 2)
    assert sorted_out([found]) == ((), (found,), None)


def test_images_are_searched_and_each_seventh_is_asked_about(tmp_path):
    pixels = np.random.default_rng(2).integers(0, 256, (70, 28, 28))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
    found = read(tmp_path / "train-images-idx3-ubyte.gz")
    assert isinstance(found, Images) and (found.searched.shape, found.asked.shape) == (
        (60, 784),
        (10, 784),
    )
    assert (found.asked[0] == pixels[6].ravel()).all()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("short.idx", idx(np.zeros((3, 28, 28)))[:-1], "3 images"),
        ("few.idx", idx(np.zeros((3, 28, 28))), "at least 7"),
        ("1.txt", b"1,2008-02-02 15:36:08,116.5\n", "row 1"),
        ("1.txt", b"1,02/02/2008,116.5,39.9\n", "time"),
        ("none.csv", b"LATITUDE,LONGITUDE\n,\n", "place"),
        ("empty.txt", b"", "expected T-Drive"),
        ("torn.gz", b"\x1f\x8b\x08\x00torn", "read"),
    ],
)  # fmt: skip
def test_other_files_are_refused_with_their_name_and_the_rule(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=said) as error:
        read(tmp_path / name)
    assert name in str(error.value)
