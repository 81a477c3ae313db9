"""The decoder against a naive one, against bytes that nobody meant, and there and back again."""

from __future__ import annotations

import datetime
import json
import math
import random
import re
import unicodedata
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udp_stream.pings.decode import PLACEHOLDERS, PingDecoder, PingRules, originals
from udp_stream.pings.json import JSON

RULES = PingRules(
    unit="mps",
    max_kmh=65,
    reject_above_kmh=200,
    box=(-80.0, -45.0, 80.0, 45.0),
    max_pings_per_message=5,
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TIME_FORM = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):\d\d:\d\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):?[0-5]\d)?",
    re.ASCII,
)
GONE = "..."
VALUES: dict[str, list[Any]] = json.loads(
    (Path(__file__).parents[1] / "feeds" / "odd_values.json").read_text()
)
EXTRAS: list[dict[str, Any]] = [
    {},
    {},
    {"results": [5]},
    {"id": "x", "nested": {"speed": [1, {"a": None}]}},
]


def good_ping(rng: random.Random) -> dict[str, Any]:
    offset = rng.choice(["Z", "+05:30", "-08:00"])
    return {
        "license_plate": f"GJ00TEST{rng.randrange(30):02}",
        "observationDateTime": f"2022-01-{rng.randrange(1, 32):02}T10:{rng.randrange(60):02}:07{offset}",
        "location": {
            "type": "Point",
            "coordinates": [round(rng.uniform(72, 73), 6), round(rng.uniform(21, 22), 6)],
        },
        "speed": rng.choice([0, rng.randrange(20), round(rng.uniform(0, 20), 2)]),
    }


def any_ping(rng: random.Random) -> Any:
    if rng.random() < 0.02:
        return rng.choice([None, 5, "x", [], {}, [[]], True])
    ping = good_ping(rng) | rng.choice(EXTRAS)
    for name in rng.sample(sorted(VALUES), rng.choice([0, 0, 1, 1, 2])):
        ping[name] = rng.choice(VALUES[name])
    return {name: ping[name] for name in rng.sample(sorted(ping), len(ping)) if ping[name] != GONE}


def any_message(rng: random.Random) -> bytes:
    pings = [any_ping(rng) for _ in range(rng.choice([0, 1, 2, 3, 5, 6]))]
    value = rng.choice(
        [
            any_ping(rng),
            pings,
            {"results": pings},
            {"results": pings, "type": "x"},
            {"results": None},
        ]
    )
    text = json.dumps(value, indent=rng.choice([None, 1])).replace("Infinity", "1e999")
    if rng.random() < 0.2:
        text = json.dumps(text)
    return (
        rng.choice([b"", b"", b"\xef\xbb\xbf", b" \n"])
        + text.encode()
        + rng.choice([b"", b"", b"", b"\r\n", b"?"])
    )


class NaiveDecoder:
    """The contract again, with the standard library, one ping after another."""

    def __init__(self) -> None:
        self.accepted: list[tuple[Any, ...]] = []
        self.refused: list[tuple[int, int, str, str]] = []

    def message(self, index: int, message: bytes) -> None:
        try:
            value = json.loads(message.removeprefix(b"\xef\xbb\xbf"))
            value = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            self.refused.append((index, -1, "not_json", "$"))
            return
        if isinstance(value, dict) and "results" in value and "license_plate" not in value:
            value = value["results"]
            if not isinstance(value, list):
                self.refused.append((index, -1, "wrong_type", "$.results"))
                return
        if not isinstance(value, list):
            self.ping(index, -1, value)
        elif len(value) > RULES.max_pings_per_message:
            self.refused.append((index, -1, "too_many_pings", "$"))
        else:
            for position, ping in enumerate(value):
                self.ping(index, position, ping)

    def ping(self, index: int, position: int, ping: Any) -> None:
        fault = shape_fault(ping) or value_fault(ping)
        if fault:
            self.refused.append((index, position, *fault))
            return
        time_us = (moment(ping["observationDateTime"]) - EPOCH) // datetime.timedelta(
            microseconds=1
        )
        quanta = min(round(ping["speed"] * 3.6 * 4096), 65 * 4096)
        lon, lat = ping["location"]["coordinates"][:2]
        self.accepted.append(
            (name_of(ping["license_plate"]), time_us // 1000, lat, lon, quanta, index, position)
        )


def name_of(plate: str) -> str:
    """Letters as Unicode composes them, without what nobody sees: soft hyphens, joiners, marks of
    direction."""
    return unicodedata.normalize(
        "NFKC", "".join(one for one in plate if unicodedata.category(one) != "Cf")
    ).strip()


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shape_fault(ping: Any) -> tuple[str, str] | None:
    if not isinstance(ping, dict):
        return "wrong_type", "$"
    for name, is_right in (
        ("license_plate", lambda value: isinstance(value, str)),
        ("observationDateTime", lambda value: isinstance(value, str)),
        ("location", lambda value: isinstance(value, dict)),
        ("speed", is_number),
    ):
        if name not in ping:
            return "missing_field", f"$.{name}"
        if not is_right(ping[name]):
            return "wrong_type", f"$.{name}"
        if name == "location":
            location = ping["location"]
            if location.get("type", "Point") != "Point":
                return "wrong_type", "$.location.type"
            if "coordinates" not in location:
                return "missing_field", "$.location.coordinates"
            if not isinstance(location["coordinates"], list) or len(location["coordinates"]) < 2:
                return "wrong_type", "$.location.coordinates"
            for place in (0, 1):
                if not is_number(location["coordinates"][place]):
                    return "wrong_type", f"$.location.coordinates[{place}]"
    return None


def value_fault(ping: Any) -> tuple[str, str] | None:
    plate = name_of(ping["license_plate"])
    lon, lat = ping["location"]["coordinates"][:2]
    west, south, east, north = RULES.box or (0, 0, 0, 0)
    time = moment(ping["observationDateTime"])
    is_aware = time is not None and time.tzinfo is not None
    is_finite = abs(ping["speed"]) <= 1.7976931348623157e308
    place = "$.location.coordinates"
    checks = [
        (not plate, "empty_plate", "$.license_plate"),
        (
            plate.lower() in ("null", "none", "n/a", "na", "nan", "unknown", "undefined"),
            "placeholder_plate",
            "$.license_plate",
        ),
        (len(plate) > 64, "wrong_type", "$.license_plate"),
        (time is None, "wrong_type", "$.observationDateTime"),
        (not is_aware, "no_utc_offset", "$.observationDateTime"),
        (
            is_aware and not 2000 <= time.astimezone(datetime.UTC).year < 2100,
            "time_out_of_range",
            "$.observationDateTime",
        ),
        (not -180 <= lon <= 180, "coordinates_out_of_range", f"{place}[0]"),
        (not -90 <= lat <= 90, "coordinates_out_of_range", f"{place}[1]"),
        (lon == lat == 0, "zero_coordinates", place),
        (not (west <= lon <= east and south <= lat <= north), "outside_box", place),
        (not is_finite, "speed_not_finite", "$.speed"),
        (ping["speed"] < 0, "speed_negative", "$.speed"),
        (is_finite and ping["speed"] * 3.6 > 200, "speed_above_limit", "$.speed"),
    ]
    return next(((reason, path) for holds, reason, path in checks if holds), None)


def moment(text: str) -> Any:
    try:
        return datetime.datetime.fromisoformat(text.upper()) if TIME_FORM.fullmatch(text) else None
    except ValueError:
        return None


def rows(messages: list[bytes]) -> tuple[list[tuple[Any, ...]], list[tuple[int, int, str, str]]]:
    pings, refusals = PingDecoder(RULES, JSON).decode(messages)
    plates = [pings.plates[plate] for plate in pings.plate.tolist()]
    columns = (pings.time_ms, pings.lat, pings.lon, pings.speed, pings.message, pings.position)
    accepted = list(zip(plates, *(column.tolist() for column in columns), strict=True))
    return accepted, [
        (found.message, found.position, found.reason.value, found.path) for found in refusals
    ]


def test_a_naive_decoder_agrees_on_ten_thousand_messages() -> None:
    rng = random.Random(20220101)
    messages = [any_message(rng) for _ in range(10_000)]
    naive = NaiveDecoder()
    for index, message in enumerate(messages):
        naive.message(index, message)
    accepted, refused = rows(messages)
    assert refused == naive.refused
    assert accepted == naive.accepted
    seen = Counter(reason for _, _, reason, _ in refused)
    assert len(accepted) > 3000 and len(seen) == 13 and min(seen.values()) >= 20, (
        len(accepted),
        seen,
    )


@pytest.mark.parametrize("size", [1, 7, 500])
def test_batches_of_any_size_give_the_same(size: int) -> None:
    rng = random.Random(7)
    messages = [any_message(rng) for _ in range(500)]
    accepted, refused = [], []
    for first in range(0, len(messages), size):
        some, others = rows(messages[first : first + size])
        accepted += [(*row[:-2], row[-2] + first, row[-1]) for row in some]
        refused += [(row[0] + first, *row[1:]) for row in others]
    assert (accepted, refused) == rows(messages)


def mutated(rng: random.Random, message: bytes, other: bytes) -> bytes:
    """A message with bytes flipped, cut off, spliced with another, or a token exchanged for one of
    another type."""
    text = bytearray(message)
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(5):
            case 0 if place < len(text):
                text[place] ^= 1 << rng.randrange(8)
            case 1:
                del text[place:]
            case 2:
                text[place:] = other[rng.randrange(len(other) + 1) :]
            case 3:
                tokens = (
                    b"null",
                    b"true",
                    b"[]",
                    b"{}",
                    b'"',
                    b"-",
                    b"1e999",
                    b"9" * 400,
                    b"\x00",
                    rb"\ud800",
                    b"[" * 1200,
                )
                text[place:place] = rng.choice(tokens)
            case _:
                spans = [found.span() for found in re.finditer(rb'"[^"]*"|-?[0-9.]+|[][{}]', text)]
                if spans:
                    start, end = rng.choice(spans)
                    text[start:end] = rng.choice(
                        [b"null", b"0", b'"x"', b"[1,2]", b'{"a":1}', b"false", b"", b"-1e400"]
                    )
    return bytes(text)


@pytest.mark.parametrize("thousands", [20, pytest.param(100, marks=pytest.mark.soak)])
def test_mutated_messages_are_all_accounted_for(thousands: int) -> None:
    rng = random.Random(4711)
    seeds = [any_message(rng) for _ in range(300)] + [
        json.dumps(good_ping(rng)).encode() for _ in range(300)
    ]
    decoder = PingDecoder(RULES, JSON)
    empty = re.compile(
        rb'(\xef\xbb\xbf)?\s*"?\s*(\[\s*\]|\{.*\[(\s|\\n)*\].*\})\s*"?\s*', re.DOTALL
    )
    total = Counter[str]()
    for _ in range(thousands):
        messages = [mutated(rng, rng.choice(seeds), rng.choice(seeds)) for _ in range(1000)]
        pings, refusals = decoder.decode(messages)
        accounted = set(pings.message.tolist()) | {refusal.message for refusal in refusals}
        assert all(empty.fullmatch(messages[index]) for index in set(range(1000)) - accounted)
        places = [*zip(pings.message.tolist(), pings.position.tolist(), strict=True)]
        places += [(refusal.message, refusal.position) for refusal in refusals]
        assert len(set(places)) == len(places)
        for refusal, piece in zip(refusals, originals(messages, refusals, JSON), strict=True):
            assert piece in messages[refusal.message]
            assert re.fullmatch(r"\$(\.[A-Za-z_]+|\[[01]\])*", refusal.path)
        assert math.isfinite(pings.lat.sum() + pings.lon.sum())
        assert ((pings.speed >= 0) & (pings.speed <= 65 * 4096)).all()
        total["accepted"] += len(pings)
        total.update(refusal.reason.value for refusal in refusals)
    assert (
        min(total[name] for name in ("accepted", "not_json", "wrong_type", "missing_field"))
        > 10 * thousands
    ), total


def is_plate(text: str) -> bool:
    """Neither blank nor too long nor a word for a missing plate."""
    name = name_of(text)
    return 0 < len(name) <= 64 and name.lower() not in PLACEHOLDERS


OFFSETS = st.integers(-1439, 1439).map(
    lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes))
)


@settings(max_examples=200, deadline=None)
@given(
    plate=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64).filter(
        is_plate
    ),
    moment=st.datetimes(
        datetime.datetime(2000, 1, 2), datetime.datetime(2099, 12, 30), timezones=OFFSETS
    ),
    lon=st.floats(-80, 80),
    lat=st.floats(1e-9, 45),
    speed=st.floats(0, 55) | st.integers(0, 55),
)
def test_a_ping_that_was_written_is_read_back(
    plate: str, moment: Any, lon: float, lat: float, speed: float
) -> None:
    location = {"type": "Point", "coordinates": [lon, lat]}
    ping = {
        "license_plate": plate,
        "observationDateTime": moment.isoformat(),
        "location": location,
        "speed": speed,
    }
    ((read, *values),), refused = rows([json.dumps(ping, ensure_ascii=plate < "m").encode()])
    assert (read, refused) == (name_of(plate), [])
    time_ms = (moment - EPOCH) // datetime.timedelta(milliseconds=1)
    assert values[:3] == [time_ms, lat, lon]
    exact = min(Fraction(speed) * Fraction(36, 10) * 4096, Fraction(65 * 4096))
    assert abs(Fraction(values[3]) - exact) <= Fraction(1, 2) + Fraction(1, 10**6)
