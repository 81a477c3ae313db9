"""CSV with any separator, decimal commas and mapped columns: the JSON that the rows were, whichever
way it is read."""

import csv
import io
import json

import numpy as np
import pytest

from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.json import JSON, mapped_form
from udp_stream.pings.mapping import FeedMapping
from udp_stream.sources import rows as csv_rows
from udp_stream.sources.files import read_messages
from udp_stream.sources.rows import csv_batches

RULES = PingRules(max_kmh=65, reject_above_kmh=200)
PLAIN = FeedMapping()
HEADER = [
    "id",
    "license_plate",
    "observationDateTime",
    "speed",
    "location.coordinates.0",
    "location.coordinates.1",
]
ROW = ["x", "A1", "2022-01-01T10:10:35+05:30", "12.5", "72.5", "21.25"]
PING = {
    "license_plate": "A1",
    "observationDateTime": ROW[2],
    "location": {"coordinates": [72.5, 21.25]},
    "speed": 12.5,
}


def messages(lines, mapping=PLAIN):
    made = csv_batches("f.csv", iter([[line.encode() for line in lines]]), mapping)
    return [message for some in made for message in some]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("comma", [False, True])
@pytest.mark.parametrize("quoted", [False, True])
def test_separators_are_found_and_decimal_commas_read(delimiter, comma, quoted):
    row = [
        cell.replace(".", ",") if comma and delimiter != "," and at > 2 else cell
        for at, cell in enumerate(ROW)
    ]
    quote = (lambda cell: f'"{cell}"') if quoted else str
    lines = [delimiter.join(HEADER), *[delimiter.join(map(quote, row))] * 3]
    assert [json.loads(one) for one in messages(lines)] == [PING] * 3
    said = FeedMapping(delimiter=delimiter)
    assert messages(lines, said) == messages(lines)


def test_mapped_columns_become_the_json_that_the_mapping_reads(tmp_path):
    mapping = FeedMapping(plate="Bus No", time="time", longitude="pos.lon", latitude="pos.lat", speed="v (km/h)",
                          time_format="epoch_s")  # fmt: skip
    file = tmp_path / "feed.tsv"
    file.write_text(
        "v (km/h)\tBus No\ttime\tpos.lat\tpos.lon\n12,5\t007\t1641012035\t21,25\t72,5\n"
    )
    form = mapped_form(mapping)
    (batch,) = read_messages(str(file), form=form)
    pings, refusals = PingDecoder(RULES, form.format).decode(batch)
    assert not refusals and pings.plates == ("007",) and pings.time_ms.tolist() == [1641012035000]
    assert (pings.lon[0], pings.lat[0], pings.speed[0]) == (72.5, 21.25, 51200)


def test_a_word_for_a_missing_plate_is_refused_and_costs_no_other_row():
    words = ["NULL", "none", "N/A", "nan", "Unknown"]
    rows = [",".join([ROW[0], plate, *ROW[2:]]) for plate in [*words, "A1", "Nullarbor 7"]]
    pings, refusals = PingDecoder(RULES, JSON).decode(messages([",".join(HEADER), *rows]))
    assert pings.plates == ("A1", "Nullarbor 7")
    assert [(one.reason, one.path) for one in refusals] == [
        ("placeholder_plate", "$.license_plate")
    ] * len(words)


@pytest.mark.parametrize("count", [1500, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_block_gives_the_same_messages_as_its_rows_one_by_one(count):
    rng = np.random.default_rng(11)
    odd = ["", '"', 'a"b', "a\\b", "é", "\x00", "nan", "1_0", "+5", " 7", "7 ", "1,5", "1.5", "-0", "1e5", "01",
           "[1, 2]", "%s", "\r", "1\t2", "null", "\x7f", "\u2028", "\xa0", "\ufeff", "Ж"]  # fmt: skip
    done = 0
    while done < count:
        delimiter = str(rng.choice([",", ";"]))
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        size = int(rng.integers(1, 30))
        for _ in range(size):
            row = list(ROW)
            if rng.random() < 0.3:
                row[rng.integers(6)] = (
                    odd[rng.integers(len(odd))] if rng.random() < 0.99 else "x" * 200_000
                )
            writer.writerow(row[: rng.integers(5, 7)] if rng.random() < 0.1 else row)
        lines = [line.encode("utf-8") for line in out.getvalue().split("\n") if line]
        if rng.random() < 0.2:
            lines[rng.integers(len(lines))] = bytes(rng.choice(list(b'a,;"\xff\r1'), 12).tolist())
        header = delimiter.join(HEADER).encode()
        together = [
            one for some in csv_batches("f", iter([[header, *lines]]), PLAIN) for one in some
        ]
        alone = [
            one
            for line in lines
            for some in csv_batches("f", iter([[header, line]]), PLAIN)
            for one in some
        ]
        assert together == alone and len(together) == len(lines)
        by_row = _by_row(header, lines)
        assert [PingDecoder(RULES, JSON).decode([one])[1] for one in together] == [
            PingDecoder(RULES, JSON).decode([one])[1] for one in by_row
        ]
        assert [_value(one) for one in together] == [_value(one) for one in by_row]
        done += size


def _by_row(header, lines):
    quick, csv_rows._plain_text = csv_rows._plain_text, lambda lines: None
    try:
        return [one for some in csv_batches("f", iter([[header, *lines]]), PLAIN) for one in some]
    finally:
        csv_rows._plain_text = quick


def _value(message):
    try:
        return json.loads(message)
    except ValueError:
        return message
