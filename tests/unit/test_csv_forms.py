"""CSV with any separator, decimal commas and mapped columns: the pings of the JSON that the rows
were, whichever way they are read."""

import csv
import io

import numpy as np
import pytest

from udp_stream.pings.decode import PingDecoder, PingRules, originals
from udp_stream.pings.json import (
    PLAIN as PLAIN_FORM,
)
from udp_stream.pings.json import (
    exchanged,
    mapped_form,
    without_speeds,
)
from udp_stream.pings.mapping import FeedMapping
from udp_stream.sources.rows import opened_table

RULES = PingRules(max_kmh=65, reject_above_kmh=200)
HEADER = [
    "id",
    "license_plate",
    "observationDateTime",
    "speed",
    "location.coordinates.0",
    "location.coordinates.1",
]
ROW = ["x", "A1", "2022-01-01T10:10:35+05:30", "12.5", "72.5", "21.25"]


def table(lines, form=PLAIN_FORM):
    ping_format, runs = opened_table("f.csv", iter([lines]), form)
    return ping_format, [line for run in runs for line in run]


def decoded(ping_format, lines):
    pings, refusals = PingDecoder(RULES, ping_format).decode(lines)
    names = [pings.plates[at] for at in pings.plate.tolist()]
    columns = (pings.time_ms, pings.lat, pings.lon, pings.speed, pings.message, pings.position)
    rows = list(zip(names, *(column.tolist() for column in columns), strict=True))
    return rows, [(one.message, one.position, one.reason, one.path) for one in refusals]


LENIENT = FeedMapping(plate="license_plate", time_format="%Y-%m-%dT%H:%M:%S%z")
FORMS = {
    "contract": PLAIN_FORM,
    "exchanged": exchanged(PLAIN_FORM),
    "speedless": without_speeds(PLAIN_FORM),
    "mapped": mapped_form(LENIENT),
    "two plates": mapped_form(FeedMapping(plate=("id", "license_plate"), speed="")),
    "two times": mapped_form(
        FeedMapping(time=("observationDateTime", "id"), time_format="%Y-%m-%d %H%M")
    ),
    "ago": mapped_form(
        FeedMapping(time="speed", speed="", time_format="seconds_ago", message_time="id")
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("count", [500, pytest.param(15_000, marks=pytest.mark.soak)])
def test_a_block_gives_the_pings_of_its_rows_as_json_one_by_one(count, form):
    rng = np.random.default_rng(11)
    odd = ["", '"', 'a"b', "a\\b", "é", "\x00", "nan", "1_0", "+5", " 7", "7 ", "1,5", "1.5", "-0", "1e5", "01",
           "[1, 2]", "%s", "\r", "1\t2", "null", "\x7f", "\u2028", "\xa0", "\ufeff", "Ж", "Point", "1e999",
           "[1]", "[1, 2, null]", "[1,2],[3,4]", '["1", 2]', "2022-01-01", "1010"]  # fmt: skip
    done = 0
    accepted = 0
    while done < count:
        delimiter = str(rng.choice([",", ";"]))
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        size = int(rng.integers(1, 60))
        in_array = rng.random() < 0.3
        header = [*HEADER[:4], "location.coordinates"] if in_array else list(HEADER)
        if is_typed := rng.random() < 0.3:
            header.append("location.type")
        for _ in range(size):
            row = [*ROW[:4], "[72.5, 21.25]"] if in_array else list(ROW)
            if is_typed:
                row.append("Point")
            if rng.random() < 0.3:
                row[rng.integers(len(row))] = (
                    odd[rng.integers(len(odd))] if rng.random() < 0.99 else "x" * 200_000
                )
            writer.writerow(row[: rng.integers(5, 7)] if rng.random() < 0.1 else row)
        lines = [line.encode("utf-8") for line in out.getvalue().split("\n") if line]
        if rng.random() < 0.2:
            lines[rng.integers(len(lines))] = bytes(rng.choice(list(b'a,;"\xff\r1'), 12).tolist())
        ping_format, rows = table([delimiter.join(header).encode(), *lines], form)
        assert rows == lines
        singly = [one for line in lines for one in ping_format.as_json([line])]
        assert ping_format.as_json(lines) == singly
        together = decoded(ping_format, lines)
        alone = [decoded(form.format, ping_format.as_json([line])) for line in lines]
        assert together[0] == [
            (*row[:5], at, row[6]) for at, (found, _) in enumerate(alone) for row in found
        ]
        assert together[1] == [
            (at, *refusal[1:]) for at, (_, refused) in enumerate(alone) for refusal in refused
        ]
        assert list(
            originals(lines, PingDecoder(RULES, ping_format).decode(lines)[1], ping_format)
        ) == [lines[at] for at, *_ in together[1]]
        accepted += len(together[0])
        done += size
    assert accepted > count / 3 or form in (FORMS["ago"], FORMS["two times"])
