"""Every refusal with its path, every shape of message, units and clamping."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from udp_stream.pings.decode import PingDecoder, PingRules, Pings, Reason, Refusal, originals
from udp_stream.pings.json import JSON

RULES = PingRules(max_kmh=65, reject_above_kmh=200)


def ping(**changes: Any) -> dict[str, Any]:
    """A good ping with some fields changed; `...` takes a field away."""
    fields = {
        "license_plate": "GJ00TEST01",
        "observationDateTime": "2022-01-01T10:10:35+05:30",
        "location": {"type": "Point", "coordinates": [72.5, 21.25]},
        "speed": 12.5,
        "route_id": "12D",
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def raw(name: str, text: bytes) -> bytes:
    """A good ping with the bytes of one field replaced, for what Python's json would not write."""
    return encode(ping(**{name: "HERE"})).replace(b'"HERE"', text)


def at(*coordinates: Any, **others: Any) -> bytes:
    return encode(ping(location={"type": "Point", "coordinates": list(coordinates), **others}))


def decode(*messages: bytes, rules: PingRules = RULES) -> tuple[Pings, list[Refusal]]:
    return PingDecoder(rules, JSON).decode(messages)


def one(message: bytes, rules: PingRules = RULES) -> tuple[str, str]:
    """The reason and path of the only refusal."""
    pings, refusals = decode(message, rules=rules)
    assert (len(pings), len(refusals)) == (0, 1)
    assert (refusals[0].message, refusals[0].position, refusals[0].lag_ms) == (0, -1, None)
    return refusals[0].reason.value, refusals[0].path


@pytest.mark.parametrize(
    ("plate", "other"),
    [
        ("S\u00c1NTA01", "SA\u0301NTA01"),
        ("GJ05AB0001", "\uff27\uff2a\uff10\uff15AB0001"),
        ("GJ05AB0001", "\u200bGJ05AB\u00ad0001\u200e "),
    ],
    ids=["composed", "wide", "invisible"],
)
def test_a_plate_that_is_written_in_two_ways_has_one_budget(plate: str, other: str) -> None:
    pings, refusals = decode(*(encode(ping(license_plate=text)) for text in (plate, other)))
    assert pings.plates == (plate,) and refusals == []
    assert one(encode(ping(license_plate="\u200b\u00ad"))) == ("empty_plate", "$.license_plate")


PLATE, TIME, PLACE = "$.license_plate", "$.observationDateTime", "$.location.coordinates"
REFUSED = [
    (b"", "not_json", "$"),
    (b"\xef\xbb\xbf", "not_json", "$"),
    (b"nonsense", "not_json", "$"),
    (encode(ping()) + b"}", "not_json", "$"),
    (b"[" * 100_000, "not_json", "$"),
    (raw("route_id", b"[" * 100_000 + b"]" * 100_000), "not_json", "$"),
    (raw("speed", b"NaN"), "speed_not_finite", "$.speed"),
    (raw("speed", b"-Infinity"), "speed_not_finite", "$.speed"),
    (raw("license_plate", b"NaN"), "wrong_type", PLATE),
    (raw("observationDateTime", b"NaN"), "wrong_type", "$.observationDateTime"),
    (raw("speed", b"nan"), "not_json", "$"),
    (raw("speed", b"01"), "not_json", "$"),
    (raw("license_plate", rb'"\ud800"'), "not_json", "$"),
    (raw("license_plate", b'"\xff"'), "not_json", PLATE),
    (encode("nonsense"), "not_json", "$"),
    (b"null", "wrong_type", "$"),
    (b"12", "wrong_type", "$"),
    (encode(json.dumps(json.dumps(ping()))), "wrong_type", "$"),  # unwrapped once, not twice
    (encode(ping(license_plate=...)), "missing_field", PLATE),
    (encode(ping(observationDateTime=...)), "missing_field", TIME),
    (encode(ping(location=...)), "missing_field", "$.location"),
    (encode(ping(location={"type": "Point"})), "missing_field", PLACE),
    (encode(ping(speed=...)), "missing_field", "$.speed"),
    (encode(ping(license_plate=5022)), "wrong_type", PLATE),
    (encode(ping(license_plate="X" * 65)), "wrong_type", PLATE),
    (encode(ping(observationDateTime=1640000000)), "wrong_type", TIME),
    (encode(ping(observationDateTime="2022-02-30T10:10:35Z")), "wrong_type", TIME),
    (encode(ping(observationDateTime="2022-01-01T23:59:60Z")), "wrong_type", TIME),
    (encode(ping(location=[72.5, 21.25])), "wrong_type", "$.location"),
    (at(72.5, 21.25, type="Polygon"), "wrong_type", "$.location.type"),
    (encode(ping(location={"coordinates": "[72.5, 21.25]"})), "wrong_type", PLACE),
    (at(72.5), "wrong_type", PLACE),
    (at("72.5", 21.25), "wrong_type", f"{PLACE}[0]"),
    (at(72.5, True), "wrong_type", f"{PLACE}[1]"),
    (encode(ping(speed="12.5")), "wrong_type", "$.speed"),
    (encode(ping(speed=True)), "wrong_type", "$.speed"),
    (encode(ping(observationDateTime="2022-01-01T10:10:35")), "no_utc_offset", TIME),
    (encode(ping(observationDateTime="1999-12-31T23:59:59Z")), "time_out_of_range", TIME),
    (encode(ping(observationDateTime="2100-01-01T00:00:00Z")), "time_out_of_range", TIME),
    (at(180.001, 21.25), "coordinates_out_of_range", f"{PLACE}[0]"),
    (at(72.5, -90.001), "coordinates_out_of_range", f"{PLACE}[1]"),
    (at(0, 0), "zero_coordinates", PLACE),
    (at(-0.0, 0.0, 12), "zero_coordinates", PLACE),
    (raw("speed", b"1e999"), "speed_not_finite", "$.speed"),
    (encode(ping(speed=10**400)), "speed_not_finite", "$.speed"),
    (encode(ping(speed=-0.001)), "speed_negative", "$.speed"),
    (encode(ping(speed=200.001)), "speed_above_limit", "$.speed"),
    (encode(ping(license_plate="")), "empty_plate", PLATE),
    (encode(ping(license_plate=" \t\u00a0")), "empty_plate", PLATE),
    *(
        (encode(ping(license_plate=word)), "placeholder_plate", PLATE)
        for word in ("null", " NULL ", "None", "n/a", "NA")
    ),
    *(
        (encode(ping(license_plate=word)), "placeholder_plate", PLATE)
        for word in ("NaN", "unknown", "Undefined")
    ),
    (b'{"results": null}', "wrong_type", "$.results"),
]


@pytest.mark.parametrize(("message", "reason", "path"), REFUSED)
def test_a_broken_ping_is_refused_by_name_and_path(message: bytes, reason: str, path: str) -> None:
    assert one(message) == (reason, path)


def test_limits_of_a_deployment_refuse_by_name_and_path() -> None:
    box = PingRules(max_kmh=65, reject_above_kmh=200, box=(72.5, 21.0, 73.0, 21.25))
    assert len(decode(at(72.5, 21.25), at(73, 21), rules=box)[0]) == 2  # its edges belong to it
    assert one(at(72.49, 21.2), box) == ("outside_box", PLACE)
    assert one(at(72.6, 21.26), box) == ("outside_box", PLACE)
    small = PingRules(
        max_kmh=65, reject_above_kmh=200, max_message_bytes=600, max_pings_per_message=2
    )
    assert one(encode(ping(route_id="x" * 600)), small) == ("oversized_message", "$")
    assert one(b"[{},{},{}]", small) == ("too_many_pings", "$")
    assert one(encode([ping()] * 3), small) == ("too_many_pings", "$")
    assert one(encode({"results": [ping()] * 3}), small) == ("too_many_pings", "$")
    assert len(decode(encode([ping()] * 2), rules=small)[0]) == 2


def reasons_that_follow_from_a_speed() -> set[str]:
    """All reasons that some text in the place of one speed, or none at all, gives a message."""
    fields = '{"license_plate": "A", "observationDateTime": "2024-01-01T00:00:00Z", %s"location": {"coordinates": [1, 2]}}'
    numbers = [
        "9" * 500,
        "0." + "1" * 4000,
        *["0", "-0.0", "65", "1e-400", "200", "201", "1e308", "1e999", "-1", "-1e999"],
    ]
    others = [
        "",
        "\0",
        "\ud800",
        "[" * 3000,
        *["null", "true", '"20"', "[20]", "{}", "NaN", "Infinity", "-", "01", "1.", '"'],
    ]
    rules = PingRules(
        max_kmh=65, reject_above_kmh=200, max_message_bytes=4000, max_pings_per_message=3
    )
    found = set()
    for speed in ("", *(f'"speed": {text}, ' for text in numbers + others)):
        one = (fields % speed).encode(errors="surrogatepass")
        for message in (one, b"[%s, %s]" % (one, one), b'{"results": [%s]}' % one):
            found |= {refusal.reason.value for refusal in decode(message, rules=rules)[1]}
    return found


def test_only_the_reasons_that_the_privacy_model_lists_can_follow_from_a_speed_or_its_length() -> (
    None
):
    looking_at_it = {"speed_not_finite", "speed_negative", "speed_above_limit"}
    assert reasons_that_follow_from_a_speed() == looking_at_it | {
        "missing_field", "wrong_type", "not_json", "oversized_message"
    }  # fmt: skip


def test_of_several_faults_the_first_in_the_documented_order_is_named() -> None:
    faults: list[tuple[str, Any]] = [
        ("speed", 1000),
        ("location", {"coordinates": [0, 0]}),
        ("observationDateTime", "1999-01-01T00:00:00Z"),
        ("license_plate", ""),
        ("speed", None),
    ]
    expected = [
        "speed_above_limit",
        "zero_coordinates",
        "time_out_of_range",
        "empty_plate",
        "wrong_type",
    ]
    broken = ping()
    for (name, value), reason in zip(faults, expected, strict=True):
        broken[name] = value
        assert one(encode(broken))[0] == reason


def shapes(pings: list[Any]) -> list[bytes]:
    wrapped = [
        pings,
        {"results": pings},
        {"type": "urn:dx:rs:success", "title": "x", "results": pings},
    ]
    plain = [encode(value) for value in wrapped] + [
        json.dumps(value, indent=2).encode() for value in wrapped
    ]
    plain += [b"\xef\xbb\xbf \r\n" + text + b"\n" for text in plain]
    plain += [encode({"results": pings}).replace(b"results", rb"result\u0073")]
    return plain + [encode(text.decode()) for text in plain]


@pytest.mark.parametrize(
    "message", shapes([ping(speed=1), ping(speed=2, license_plate=" B "), ping(speed=3)])
)
def test_an_array_comes_in_any_wrapping(message: bytes) -> None:
    pings, refusals = decode(encode(ping(speed=0)), message, encode(ping(speed=4)))
    assert not refusals
    assert pings.plates == ("GJ00TEST01", "B")
    assert pings.plate.tolist() == [0, 0, 1, 0, 0]
    assert (pings.speed / 4096).tolist() == [0, 1, 2, 3, 4]
    assert pings.message.tolist() == [0, 1, 1, 1, 2]
    assert pings.position.tolist() == [-1, 0, 1, 2, -1]


@pytest.mark.parametrize(
    "message", shapes([ping(speed=1), ping(license_plate=7), 5, ping(speed=-1), ping(speed=3)])
)
def test_one_bad_ping_is_refused_alone(message: bytes) -> None:
    pings, refusals = decode(message)
    assert (pings.speed / 4096).tolist() == [1, 3]
    assert (pings.message.tolist(), pings.position.tolist()) == ([0, 0], [0, 4])
    found = [
        (refusal.message, refusal.position, refusal.reason.value, refusal.path)
        for refusal in refusals
    ]
    assert found == [
        (0, 1, "wrong_type", "$.license_plate"),
        (0, 2, "wrong_type", "$"),
        (0, 3, "speed_negative", "$.speed"),
    ]
    rejected = list(originals([message], refusals, JSON))
    assert rejected == [
        piece for refusal in refusals for piece in originals([message], [refusal], JSON)
    ]
    if message.startswith(b'"'):
        assert rejected == [message] * 3
    else:
        assert [json.loads(piece) for piece in rejected] == [
            ping(license_plate=7),
            5,
            ping(speed=-1),
        ]


@pytest.mark.parametrize(
    "single", [encode(ping()), b"\xef\xbb\xbf" + encode(ping()) + b" ", encode(json.dumps(ping()))]
)
def test_one_ping_is_its_own_message(single: bytes) -> None:
    pings, refusals = decode(single)
    assert (pings.position.tolist(), refusals) == ([-1], [])
    assert list(originals([b"", single], [Refusal(1, -1, Reason.LATE, "$", 5)], JSON)) == [single]


def test_what_is_tolerated() -> None:
    tolerated = [
        at(72.5, 21.25, 12.0),
        at(72.5, 21.25, "altitude"),
        encode(ping(location={"coordinates": [72.5, 21.25]})),
        encode(ping(results=[{}], id=10**400)),
        raw("route_id", b'"\xff"'),
        encode(ping()).replace(b'"speed": 12.5', b'"speed": "x", "speed": 12.5'),
        encode(ping()).replace(b"license_plate", rb"licens\u0065_plate"),
        encode(ping(license_plate="\x00\U0001f68c")),
        encode(ping(observationDateTime="2022-01-01 04:40:35z")),
    ]
    pings, refusals = decode(*tolerated)
    assert not refusals
    assert set(pings.time_ms.tolist()) == {1641012035000}
    assert set(zip(pings.lon.tolist(), pings.lat.tolist(), pings.speed.tolist(), strict=True)) == {
        (72.5, 21.25, 51200)
    }


@pytest.mark.parametrize(("unit", "factor"), [("kmh", 1.0), ("mps", 3.6), ("mph", 1.609344)])
def test_speeds_are_converted_before_limits(unit: str, factor: float) -> None:
    rules = PingRules(unit=unit, max_kmh=65.3, reject_above_kmh=200)
    at_limit = 200 / factor
    while at_limit * factor > 200:
        at_limit = float(np.nextafter(at_limit, 0))
    speeds = [0, 10, 65.3 / factor + 0.001, at_limit, at_limit * 1.00001]
    pings, refusals = decode(*[encode(ping(speed=speed)) for speed in speeds], rules=rules)
    clamped = int(65.3 * 4096)
    assert pings.speed.tolist() == [0, round(10 * factor * 4096), clamped, clamped]
    assert [(refusal.message, refusal.reason) for refusal in refusals] == [
        (4, Reason.SPEED_ABOVE_LIMIT)
    ]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"unit": "furlongs"}, "unit"),
        ({"max_kmh": 0}, "max_kmh"),
        ({"max_kmh": float("nan")}, "max_kmh"),
        ({"max_kmh": 1e6, "reject_above_kmh": 2e6}, "max_kmh"),
        ({"reject_above_kmh": 64}, "reject_above_kmh"),
        ({"reject_above_kmh": float("inf")}, "reject_above_kmh"),
        ({"box": (73.0, 21.0, 72.0, 22.0)}, "box"),
        ({"box": (72.0, 21.0, 73.0)}, "box"),
        ({"earliest_ms": 5, "latest_ms": 5}, "earliest_ms"),
        ({"max_message_bytes": 0}, "max_message_bytes"),
        ({"max_pings_per_message": 0}, "max_pings_per_message"),
    ],
)
def test_rules_that_make_no_sense_are_refused_by_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"expected {name} "):
        PingRules(**({"max_kmh": 65, "reject_above_kmh": 200} | changes))
