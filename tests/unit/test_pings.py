"""Every refusal with its path, every shape of message, units and clamping."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from udp_stream.pings.decode import PingDecoder, PingRules, Pings, Reason, Refusal
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


def decode(*messages: bytes, rules: PingRules = RULES) -> tuple[Pings, list[Refusal]]:
    return PingDecoder(rules, JSON).decode(messages)


def one(message: bytes, rules: PingRules = RULES) -> tuple[str, str]:
    """The reason and path of the only refusal."""
    pings, refusals = decode(message, rules=rules)
    assert (len(pings), len(refusals)) == (0, 1)
    assert (refusals[0].message, refusals[0].position, refusals[0].lag_ms) == (0, -1, None)
    return refusals[0].reason.value, refusals[0].path


def test_limits_of_a_deployment_refuse_by_name_and_path() -> None:
    assert one(b"[" * 100_000) == ("not_json", "$")
    assert one(raw("route_id", b"[" * 100_000 + b"]" * 100_000)) == ("not_json", "$")
    assert one(raw("license_plate", b'"\xff"')) == ("not_json", "$.license_plate")
    small = PingRules(
        max_kmh=65, reject_above_kmh=200, max_message_bytes=600, max_pings_per_message=2
    )
    assert one(encode(ping(route_id="x" * 600)), small) == ("oversized_message", "$")
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
    ],
)
def test_rules_that_make_no_sense_are_refused_by_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"expected {name} "):
        PingRules(**({"max_kmh": 65, "reject_above_kmh": 200} | changes))
