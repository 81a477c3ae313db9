"""Refusals that help: path, what was found, the likely mend; never a speed, never a plate."""

import json
import re
import subprocess

import numpy as np
import pytest

from udp_stream.adapters.files.csv_rows import csv_batches
from udp_stream.cli.found_feed import find_feed
from udp_stream.cli.wrong_zone import on_land
from udp_stream.errors import UsageError
from udp_stream.pings.advice import SENTENCES_MAX, Refused, advise
from udp_stream.pings.decode import PingDecoder, PingRules, Reason, Refusal, originals
from udp_stream.pings.json import PLAIN, FeedMapping, mapped_form

SECONDS = 1706159153
SURAT = (72.6, 20.9, 73.1, 21.4)


def ping(**changes):
    made = {"license_plate": "GJ05ZZ0001", "observationDateTime": "2024-01-25T10:35:53+05:30", "speed": 23.7,
            "location": {"type": "Point", "coordinates": [72.83, 21.19]}} | changes  # fmt: skip
    return {name: value for name, value in made.items() if value is not ...}


def advice(*messages, form=PLAIN, box=None, on_land=None):
    raw = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
    rules = PingRules(max_kmh=65, reject_above_kmh=200, box=box)
    _, refusals = PingDecoder(rules, form.format).decode(raw)
    pieces = originals(raw, refusals, form.format)
    return advise(
        [Refused(refusal, piece) for refusal, piece in zip(refusals, pieces, strict=True)], form, box, on_land
    )


GTFS = {"entity": [{"id": "1", "vehicle": {"vehicle": {"id": "GJ05ZZ0001"}, "timestamp": SECONDS, "position": {
    "latitude": 21.19, "longitude": 72.83, "speed": 6.5}}}]}  # fmt: skip

SAID = [
    (ping(observationDateTime=SECONDS),
     f'$.observationDateTime: {SECONDS} looks like epoch seconds: [source] time_format = "epoch_s"'),
    (ping(observationDateTime=str(SECONDS * 1000)),
     f'$.observationDateTime: {SECONDS}000 looks like epoch milliseconds: [source] time_format = "epoch_ms"'),
    (ping(observationDateTime="2024-01-25T10:35:53"),
     "$.observationDateTime: 2024-01-25T10:35:53 has no offset: "
     '[source] time_zone = "Area/City", the zone of the feed\'s clock'),
    (ping(observationDateTime="25.01.2024 10:35:53"),
     "$.observationDateTime: 25.01.2024 10:35:53 looks like %d.%m.%Y %H:%M:%S: "
     '[source] time_format = "%d.%m.%Y %H:%M:%S" and time_zone = "Area/City"'),
    (ping(observationDateTime="03/04/2024 10:35:53"),
     "$.observationDateTime: 03/04/2024 10:35:53 looks like %d/%m/%Y %H:%M:%S, or %m/%d/%Y %H:%M:%S: "
     '[source] time_format = "%d/%m/%Y %H:%M:%S" and time_zone = "Area/City"'),
    (ping(observationDateTime="soon"), "$.observationDateTime: text, which is no time that is known here"),
    (ping(license_plate=..., vehicle={"id": "GJ05ZZ0001", "label": "P61"}),
     'no license_plate; found vehicle.id, vehicle.label: [source] plate = "vehicle.id", '
     "or let `udp-stream init FILE` find the paths"),
    (ping(license_plate=..., location=..., lat=21.19, lng=72.83, bus_id=7),
     'no license_plate; found bus_id: [source] plate = "bus_id", or let `udp-stream init FILE` find the paths'),
    (ping(location=..., lat=21.19, lng=72.83),
     'no location.coordinates.0; found lng: [source] longitude = "lng", or let `udp-stream init FILE` find the paths'),
    (ping(license_plate=4711),
     '$.license_plate: a whole number: [source] plate = "license_plate" reads whole numbers as plates'),
    (ping(license_plate="NULL"),
     "$.license_plate: a word for a missing plate: has another field the vehicle? Pings without a plate protect none"),
    (ping(speed="23,7"), '$.speed: text that is a number: [source] speed = "speed" reads numbers from text, '
     "with a point or a comma"),
    (ping(speed=None), None),
    (ping(speed="fast"), "$.speed: text, where a number is needed"),
    (ping(speed=400), "$.speed: above speed.reject_above_kmh: is speed.unit right? `udp-stream doctor FILE` compares"),
    (GTFS, "no license_plate; this looks like GTFS-realtime VehiclePositions as JSON, names in camelCase or with "
     'underscores: [source] preset = "gtfs-rt"'),
    ({"fleet": {"buses": [{"no": "A"}, {"no": "B"}]}},
     'no license_plate; found an array of objects: [source] records = "fleet.buses", '
     "or let `udp-stream init FILE` find the paths"),
    ({"at": 1, "vehicles": [{"id": "AB12CDE", "lat": 21.19}, {"id": "XY34FGH", "lat": 21.2}]},
     'no license_plate; found an array of objects: [source] records = "vehicles", '
     "or let `udp-stream init FILE` find the paths"),
    ({"note": "x", "stops": [{"name": "a"}, {"name": "b"}], "lamps": [{"name": "c"}]},
     'no license_plate; found an array of objects: [source] records = "stops", '
     "or let `udp-stream init FILE` find the paths"),
    (ping(license_plate=..., stops=[{"id": 1}, {"id": 2}], bus_id=7),
     'no license_plate; found bus_id: [source] plate = "bus_id", or let `udp-stream init FILE` find the paths'),
    (ping(location={"coordinates": [30.2, -97.7]}),
     "$.location.coordinates[1]: longitude and latitude look exchanged: "
     '[source] longitude = "location.coordinates.1" and latitude = "location.coordinates.0"'),
    (b"<xml>", "not JSON, but XML or HTML, which is not read: convert it, one ping a line"),
    (b"A1;2024-01-25;72,83;21,19;23",
     "not JSON, but rows of CSV that cannot be read so: save some, with their header, as sample.csv, and "
     "`udp-stream init sample.csv --out city.toml` writes which column is which; then use --config city.toml"),
    (b"[", "not JSON, but a piece of JSON laid out over many lines: one such document must not have a name that "
     "ends in .ndjson, several are read after `jq -c . FILE > lines.ndjson`"),
    (b'[{"speed": NaN}]', "not JSON, but JSON with NaN or Infinity, which JSON has not: "
     "`sed -E 's/([:,[] *)-?(NaN|Infinity)/\\1null/g' FILE > nulls.json` writes null"),
    (b'{"speed": 1}{"speed": 2}',
     "not JSON, but several JSON documents in a row: `jq -c . FILE > lines.ndjson` writes one a line"),
    (b'[{"speed": 1},]', "not JSON, but JSON with a comma before a closing bracket: leave it out"),
    (b'[{"speed": 1},', "not JSON, but a line of a JSON array: such a file is read whole, if no comma stands before "
     "its closing bracket"),
    (b'{"note": "NaN, Infinity', "not JSON, but JSON that is not whole"),
    ({"at": 1, "states": [["AB12CDE", 7, 72.8], ["XY34FGH", 8, 72.9]]},
     'no license_plate; found an array of arrays: [source] records = "states", and the place of each value in one of '
     'them: plate = "0", time = "1", and so on (docs/feeds.md)'),
    (b"\n\r\x0a\x032.0", "not JSON, but binary: a GTFS-realtime file has a name in .pb"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "sentence"), SAID, ids=[str(at) for at in range(len(SAID))])
def test_a_sentence_names_the_path_what_was_found_and_the_likely_mend(message, sentence):
    said = advice(message, message)
    assert said == ([sentence] if sentence else ["$.speed: nothing (null), where a number is needed"])


def test_an_exchange_that_only_the_box_can_tell():
    exchanged = ping(location={"coordinates": [21.19, 72.83]})
    assert "look exchanged" in advice(exchanged, box=SURAT)[0]
    assert "is the box right?" in advice(ping(location={"coordinates": [7, 7]}), box=SURAT)[0]


def test_a_box_that_is_exchanged_is_blamed_itself():
    """Where the pings lie on land and the box does not: exchanging the paths would send the pings to sea."""
    turned = (21.0, 72.6, 21.4, 73.1)
    (said,) = advice(*[ping()] * 3, box=turned, on_land=on_land)
    assert said.startswith("$.location.coordinates: pings.box looks exchanged, it is west, south, east, north: ")
    assert said.endswith(": box = [72.6, 21.0, 73.1, 21.4]")
    assert advice(*[ping()] * 3, box=(72.6, 21.0, 73.1, 21.4), on_land=on_land) == []
    at_sea = ping(location={"coordinates": [21.19, 72.83]})
    assert "longitude and latitude look exchanged" in advice(at_sea, box=SURAT, on_land=on_land)[0]


def test_a_mapping_is_told_its_own_paths():
    form = mapped_form(FeedMapping(plate="bus", time="t", longitude="x", latitude="y", time_format="epoch_s"))
    late = {"bus": "A1", "t": SECONDS * 1000, "x": 72.8, "y": 21.1, "speed": 3}
    assert advice(late, form=form) == [
        f'$.t: {SECONDS}000 looks like epoch milliseconds: [source] time_format = "epoch_ms"'
    ]
    assert advice(late | {"t": SECONDS, "x": "west"}, form=form) == ["$.x: text, where a number is needed"]


def test_an_array_of_arrays_whose_places_are_not_said_is_answered_with_them():
    form = mapped_form(FeedMapping(records="states"))
    said = advice({"states": [["AB12CDE", 7, 72.8]]}, form=form)
    assert said == ['$: values without names: give the place of each: [source] plate = "0", time = "1", and so on']


def test_what_nulls_writes_is_json(tmp_path):
    """The command that is named, as it is named."""
    (said,) = advice(b'[{"a": NaN, "b": [1, -Infinity], "note": "NaN"}]')
    (tmp_path / "FILE").write_text('[{"a": NaN, "b": [1, -Infinity,NaN], "note": "NaN"}]')
    subprocess.run(said.split("`")[1], shell=True, check=True, cwd=tmp_path)
    assert json.loads((tmp_path / "nulls.json").read_text()) == [{"a": None, "b": [1, None, None], "note": "NaN"}]


def test_the_time_that_is_shown_is_one_even_where_the_first_is_a_plate():
    """One message in twenty has a plate, or a speed, where the time should be."""
    for secret in ("GJ05BX1916", 61.4321, 471147):
        said = advice(*(ping(observationDateTime=one) for one in [secret] + [SECONDS] * 19))
        assert said == [f'$.observationDateTime: {SECONDS} looks like epoch seconds: [source] time_format = "epoch_s"']


def test_the_commonest_kinds_come_first_and_few():
    many = [ping(speed="1")] * 3 + [ping(license_plate=7)] * 2 + [ping(observationDateTime="x"), b"<", ping(speed=999)]
    said = advice(*many)
    assert len(said) == SENTENCES_MAX and said[0].startswith("$.speed") and said[1].startswith("$.license_plate")


HEADERS = [
    (b"bus;time;lon;lat;v", "; found bus, time, lon, lat, v: `udp-stream init FILE` writes which is which"),
    (b"GJ05ZZ0001;2024-01-25T10:35:53+05:30;72,83;21,19;23", "; the first line looks like a row, and not like"),
    (b"GJ05ZZ0001;GJ05ZZ0002", "speed, location.coordinates$"),
]


@pytest.mark.parametrize(("header", "words"), HEADERS)
def test_a_header_is_told_by_its_names_and_a_row_is_not_shown(header, words):
    with pytest.raises(UsageError, match=words) as raised:
        list(csv_batches("f.csv", iter([[header]]), FeedMapping()))
    assert "GJ05" not in str(raised.value) and "72" not in str(raised.value)


PLATES = ["GJ05BX1916", "KA01F4711", 471147, "471147", "GJ-05-BX-1916", "AB12CDE", "B-XY 12", "7"]
SPEEDS = [61.4321, 37.0625, "53.8125", "48,4375", 4711.25, -58.375, 7]


def leaked(text):
    """The plates and speeds that a text shows, each as a word of its own: 2024-01-07 is a day, and no speed of 7."""
    words = [str(one) for one in PLATES + SPEEDS]
    return [word for word in words if re.search(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", text)]


def mutated(rng):
    """A message with plates and speeds in any place: as values, as keys, under any name, in text that is no JSON."""
    plate, speed = PLATES[rng.integers(len(PLATES))], SPEEDS[rng.integers(len(SPEEDS))]
    names = ["license_plate", "observationDateTime", "speed", "bus", "time", "lat", "lon", "id", "x"]
    values = [plate, speed, "2024-01-25T10:35:53", SECONDS, None, 72.83, 21.19, "text"]
    made = ping(license_plate=plate, speed=speed)
    for _ in range(rng.integers(0, 6)):
        name, value = str(rng.choice(names)), values[rng.integers(len(values))]
        match rng.integers(6):
            case 0:
                made.pop(name, None)
            case 1:
                made[str(plate)] = {name: value}
            case 2:
                made = {"data": {str(plate): made, name: [value, speed]}}
            case 3:
                made["location"] = {"coordinates": [value, speed]}
            case _:
                made[name] = value
    text = json.dumps(made)
    if rng.random() < 0.1:
        return text[: rng.integers(len(text))].encode()
    return (f"{plate};{speed};1;2;3" if rng.random() < 0.05 else text).encode()


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_no_sentence_has_a_plate_or_a_speed_in_it(count):
    rng = np.random.default_rng(7)
    forms = [
        PLAIN,
        mapped_form(FeedMapping(plate="bus", time="time", longitude="lon", latitude="lat")),
        mapped_form(FeedMapping(plate="id", time="license_plate", longitude="x", latitude="lat")),
        mapped_form(FeedMapping(plate="id", time="x", longitude="lon", latitude="lat", time_format="epoch_s")),
    ]
    said = set()
    for first in range(0, count, 10):
        form = forms[first // 10 % len(forms)]
        for sentence in advice(
            *(mutated(rng) for _ in range(10)), form=form, box=SURAT if rng.random() < 0.5 else None
        ):
            assert not leaked(sentence), sentence
            said.add(sentence)
    assert len(said) > 20


def as_file(rng):
    """Messages with plates and speeds in any place as a file: lines, an array, an object of them by plate, or CSV."""
    made = [mutated(rng) for _ in range(rng.integers(1, 20))]
    objects = [text for text in made if is_object(text)]
    match rng.integers(5):
        case 0:
            return "feed.ndjson", b"\n".join(made)
        case 1:
            return "feed.json", b"[" + b",".join(objects) + b"]"
        case 2:
            keys = [json.dumps(str(plate)).encode() for plate in rng.permutation(np.array(PLATES, dtype=object))]
            keys += [b'"AB%02dXYZ"' % at for at in range(20)]
            pairs = [key + b": " + text for key, text in zip(keys, objects * 20, strict=False)]
            return "feed.json", b'{"vehicles": {' + b",".join(pairs) + b"}}"
        case _:
            plate, speed = str(PLATES[rng.integers(len(PLATES))]), str(SPEEDS[rng.integers(len(SPEEDS))])
            cells = [[plate, speed, "2024-01-25T10:35:53", "72.83", "text"][at] for at in rng.permutation(5)[:4]]
            return "feed.csv", b"\n".join([";".join(cells).encode()] * 5)


def is_object(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("count", [100, pytest.param(3_000, marks=pytest.mark.soak)])
def test_no_sentence_of_init_has_a_plate_or_a_speed_in_it(count, tmp_path):
    rng = np.random.default_rng(8)
    said = set()
    for _ in range(count):
        name, content = as_file(rng)
        (tmp_path / name).write_bytes(content)
        try:
            find_feed([str(tmp_path / name)])
        except UsageError as error:
            sentence = str(error).removeprefix(str(tmp_path))
            assert not leaked(sentence), sentence
            said.add(sentence)
    assert len(said) > 5


BY_PLATE = {plate: ping(license_plate=..., t=SECONDS) for plate in ("AB12CDE", "XY34FGH", "LETTERS", "OTHERS")}


@pytest.mark.parametrize("under", [None, "vehicles"])
def test_keys_that_only_one_record_has_are_not_shown(under):
    """Pings under a key of their own, a line each."""
    messages = [{under: {plate: one}} if under else {plate: one} for plate, one in BY_PLATE.items()]
    (said,) = advice(*messages)
    assert said == "no license_plate; pings stand under keys of their own, such as plates, which no path reaches: " \
        "write one ping a line, with its key as a field"  # fmt: skip


def test_an_object_of_many_objects_is_shown_as_one_of_them():
    many = {f"{'ABCDEFGHIJKLMNOPQRST'[at]}": {"t": SECONDS, "lat": 21.19} for at in range(16)}
    (said,) = advice({"vehicles": many})
    assert said.startswith("no license_plate; found vehicles.*.lat, vehicles.*.t; pings stand under keys of their own")


def test_positions_without_a_middle_are_no_city(tmp_path):
    places = [[-72.83, -21.19], [72.83, 21.19]]
    pings = [ping(location={"coordinates": places[at % 2]}) for at in range(10)]
    (file := tmp_path / "feed.ndjson").write_text("\n".join(map(json.dumps, pings)))
    with pytest.raises(UsageError, match="expected the sample of one city"):
        find_feed([str(file)])


@pytest.mark.parametrize(
    "row", [b"AB12CDE,2024-01-25T10:35:53+05:30,72.83,21.19,7", b"AB12CDE;72,83;21,19;7;10h14", b"7,7,7,7,7"]
)
def test_init_takes_no_row_for_a_header(row, tmp_path):
    (file := tmp_path / "feed.csv").write_bytes(b"\n".join([row] * 9))
    with pytest.raises(UsageError, match="the first line looks like a row, and not like a header") as raised:
        find_feed([str(file)])
    assert not leaked(str(raised.value).removeprefix(str(file)))


@pytest.mark.parametrize(
    ("text", "words"),
    [(b"<html>", ["XML or HTML"]), (b' {"entity": []}', ["but JSON: `udp-stream init` reads it"]), (b"\n\x0d", [])],
)
def test_a_file_that_is_no_gtfs_realtime_is_named_for_what_it_is(text, words):
    said = advise([Refused(Refusal(0, -1, Reason.NOT_GTFS_REALTIME, "$"), text)], PLAIN)
    assert len(said) == len(words) and all(word in one for word, one in zip(words, said, strict=True))
