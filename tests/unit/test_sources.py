"""Recorded pings come out of files as messages, whatever the form; nothing is judged, and nothing
is lost."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from udp_stream.base.errors import UsageError
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.json import JSON
from udp_stream.sources import files as sources
from udp_stream.sources.files import read_messages


def ping(number: int) -> dict[str, Any]:
    return {
        "license_plate": f"GJ00TEST{number:02}",
        "observationDateTime": "2022-01-01T10:10:35+05:30",
        "location": {"type": "Point", "coordinates": [72.5, 21.25 + number]},
        "speed": number,
    }


PINGS = [ping(number) for number in range(5)]
LINES = [json.dumps(one).encode() for one in PINGS]
NDJSON = b"\n".join(LINES)
CSV = b"""id,license_plate,observationDateTime,location.type,location.coordinates,speed
x,GJ00TEST00,2022-01-01T10:10:35+05:30,Point,"[72.5, 21.25]",0
x,GJ00TEST01,2022-01-01T10:10:35+05:30,Point,"[72.5, 22.25]",1
,GJ00TEST02,2022-01-01T10:10:35+05:30,,"[72.5, 23.25]",2
y,GJ00TEST03,2022-01-01T10:10:35+05:30,Point,"[72.5, 24.25]",3.0
y,GJ00TEST04,2022-01-01T10:10:35+05:30,Point,"[72.5, 25.25]",4e0
"""
FORMS = {
    "lines": NDJSON,
    "crlf": NDJSON.replace(b"\n", b"\r\n") + b"\r\n",
    "blank": b"\n \r\n\n" + NDJSON.replace(b"\n", b"\n\n \t\n") + b"\n\n",
    "marked": b"\xef\xbb\xbf" + NDJSON,
    "array": json.dumps(PINGS).encode(),
    "array_of_lines": b"[\n" + b",\n".join(LINES) + b"\n]\n",
    "array_pretty": json.dumps(PINGS, indent=2).encode(),
    "array_marked": b"\xef\xbb\xbf\n" + json.dumps(PINGS, indent="\t").encode(),
    "envelope": json.dumps({"type": "urn:dx:rs:success", "results": PINGS}).encode() + b"\n",
    "envelope_pretty": json.dumps({"results": PINGS, "title": "x"}, indent=4).encode(),
    "csv": CSV,
    "csv_marked": b"\xef\xbb\xbf" + CSV.replace(b"\n", b"\r\n"),
}


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def flat(path: str, batch: int = 3) -> list[bytes]:
    batches = list(read_messages(path, batch))
    assert all(len(some) == batch for some in batches[:-1])
    assert all(0 < len(some) <= batch for some in batches[-1:])
    return [message for some in batches for message in some]


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("packed", ["plain", "gzip", "gzip_members", "named_gz_but_plain"])
@pytest.mark.parametrize("block", [1, 7, 2**18])
def test_every_form_gives_a_message_per_ping(
    tmp_path: Path, limits, content: bytes, packed: str, block: int
) -> None:
    limits(sources, _BLOCK_BYTES=block)
    name = "pings" + (
        ".csv" if content in (FORMS["csv"], FORMS["csv_marked"]) and block == 7 else ""
    )
    if packed == "gzip":
        content, name = gzip.compress(content), f"{name}.gz"
    elif packed == "gzip_members":
        content = (
            gzip.compress(content[:100])
            + gzip.compress(b"")
            + b"\0" * 9
            + gzip.compress(content[100:])
            + b"\0" * 9
        )
    elif packed == "named_gz_but_plain":
        name = f"{name}.gz"
    pings, refusals = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON).decode(
        flat(write(tmp_path / name, content))
    )
    assert not refusals
    assert set(pings.position.tolist()) == {-1}
    assert [pings.plates[plate] for plate in pings.plate.tolist()] == [
        one["license_plate"] for one in PINGS
    ]
    assert pings.lat.tolist() == [21.25, 22.25, 23.25, 24.25, 25.25]
    assert (pings.speed / 4096).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        (b"", []),
        (b"\n \n", []),
        (b"\xef\xbb\xbf", []),
        (b"[]", []),
        (LINES[0] + b"\n", [LINES[0]]),
        (b"nonsense\n" + NDJSON, [b"nonsense", *LINES]),
        (LINES[0][:50] + b"\n" + NDJSON, [LINES[0][:50], *LINES]),
        (b'"{\\"lic\n' + NDJSON, [b'"{\\"lic', *LINES]),
        (NDJSON[:-20], [*LINES[:-1], LINES[-1][:-20]]),
        (json.dumps(LINES[0].decode()).encode(), [json.dumps(LINES[0].decode()).encode()]),
        (b'{\n"results": 5}', [b'{\n"results": 5}']),
        (
            b'{"results": [1],\n"license_plate": "A"}',
            [b'{"results": [1],\n"license_plate": "A"}'],
        ),  # a ping has a plate
        (b"[[1],\n2]", [b"[1]", b"2"]),
        (b"[1]\n[2]\n", [b"[1]", b"[2]"]),
        (b"[1,\n2]\n[3]\n", [b"[1,", b"2]", b"[3]"]),
        (b"[" * 5000 + b"\n1\n", [b"[" * 5000, b"1"]),
    ],
)
def test_odd_files_are_passed_on_piece_by_piece(
    tmp_path: Path, content: bytes, messages: list[bytes]
) -> None:
    assert flat(write(tmp_path / "odd.json", content)) == messages


@pytest.mark.parametrize("cut", [3, 12, 2000, -1])
def test_gzip_cut_short_gives_what_it_had_and_then_says_so(tmp_path: Path, cut: int) -> None:
    content = random.Random(1).randbytes(4000).hex(sep="\n", bytes_per_sep=20).encode()
    path = write(tmp_path / "cut.gz", gzip.compress(content)[:cut])
    got: list[bytes] = []
    with pytest.raises(UsageError, match=r"cut\.gz:"):
        for some in read_messages(path, 7):
            got += some
    assert got == content.split(b"\n")[: len(got)]
    assert (
        len(got) in {3: [0], 12: [0], 2000: range(50, 100), -1: [199]}[cut]
    )  # whole lines only, of 200


def test_lines_too_long_are_cut_off_and_the_next_is_whole(tmp_path: Path, limits) -> None:
    limits(sources, MAX_LINE_BYTES=100)
    content = b"a" * 99 + b"\n" + b"b" * 100 + b"\n" + b"c" * 5000 + b"\n" + b"d\n" + b"e" * 101
    for block in (1, 64, 100):
        limits(sources, _BLOCK_BYTES=block)
        lengths = [(line[:1], len(line)) for line in flat(write(tmp_path / "x.ndjson", content))]
        whole_lines = [(b"a", 99), (b"b", 100), (b"c", 100), (b"d", 1), (b"e", 100)]
        assert lengths == whole_lines


@pytest.mark.parametrize("content", [NDJSON, gzip.compress(NDJSON), FORMS["array_pretty"], CSV])
def test_standard_input_is_read_as_it_comes(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """From a pipe that gives little at a time, and whose length nobody knows."""
    reader, writer = os.pipe()

    def trickle() -> None:
        with os.fdopen(writer, "wb", buffering=0) as pipe:
            for first in range(0, len(content), 33):
                pipe.write(content[first : first + 33])

    thread = threading.Thread(target=trickle)
    thread.start()
    told: list[tuple[int, int | None]] = []
    with os.fdopen(reader, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        messages = [
            message
            for some in read_messages("-", progress=lambda *count: told.append(count))
            for message in some
        ]
    thread.join()
    assert [json.loads(message)["speed"] for message in messages] == [0, 1, 2, 3, 4]
    assert told[-1] == (len(content), None)


@pytest.mark.parametrize("form", ["x.ndjson", "x.ndjson.gz", "x.json", "x.csv"])
def test_frames_are_cut_by_number_whatever_the_digits_of_speeds(tmp_path: Path, form: str) -> None:
    """A frame is what the clock of a file hears at once, so it decides which pings are late."""
    head = "license_plate,observationDateTime,location.coordinates.0,location.coordinates.1,speed\n"

    def frames(speed: str) -> list[list[str]]:
        plates = [f"P{number:05}" for number in range(9000)]
        pings = [
            f'{{"license_plate": "{plate}", "speed": {speed if at % 3 else 20}}}'
            for at, plate in enumerate(plates)
        ]
        rows = [
            f"{plate},2022-01-01T10:10:35Z,72.5,21.25,{speed if at % 3 else 20}"
            for at, plate in enumerate(plates)
        ]
        content = {"csv": head + "\n".join(rows), "json": f"[{','.join(pings)}]"}.get(
            form[2:], "\n".join(pings)
        )
        packed = gzip.compress(content.encode()) if form.endswith("gz") else content.encode()
        return [
            [json.loads(one)["license_plate"] for one in some]
            for some in read_messages(write(tmp_path / form, packed))
        ]

    assert frames("7") == frames("42." + "123456789" * 20)
    assert [len(frame) for frame in frames("7")] == [4096, 4096, 808]
