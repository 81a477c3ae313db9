"""The synthetic fleet: likeness to the published statistics of the real feed, determinism, faults
at their rates."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from udp_stream.sources.fleet import FLAWS, IST, Fleet, FleetColumns, Imperfections

MORNING = datetime(2024, 1, 8, 10, 10, tzinfo=IST)


def small(**changes: object) -> Fleet:
    return replace(
        Fleet(buses=40, start=MORNING, hours=0.2, imperfections=Imperfections.none()), **changes
    )


def sent(fleet: Fleet) -> list[bytes]:
    return [message for batch in fleet.messages() for message in batch]


@pytest.fixture(scope="module", params=[1, 2])
def half_hour(request: pytest.FixtureRequest) -> FleetColumns:
    return Fleet(seed=request.param, buses=208, start=MORNING, hours=0.5).columns()


def test_speeds_are_distributed_like_the_real_ones(half_hour: FleetColumns) -> None:
    """Real: 29 % zeros, median 15, 90 % below 39, 99 % below 49, maximum 62 km/h."""
    kmh = half_hour.speed_kmh
    assert np.mean(kmh == 0) == pytest.approx(0.29, abs=0.05)
    median, nine_tenths, p99 = np.quantile(kmh, [0.5, 0.9, 0.99])
    assert median == pytest.approx(15, abs=2.5)
    assert nine_tenths == pytest.approx(39, abs=3)
    assert p99 == pytest.approx(49, abs=3)
    assert 55 <= kmh.max() <= 65
    assert np.mean(kmh != np.floor(kmh)) == pytest.approx(0.012 * 0.9 * 0.71, abs=0.003)


def test_the_same_arguments_give_the_same_bytes() -> None:
    fleet = small(imperfections=Imperfections())
    assert sent(fleet) == sent(fleet)
    assert sent(fleet) != sent(replace(fleet, seed=2))


def test_bytes_are_those_of_every_other_platform() -> None:
    """A digest taken once: change it only when the fleet is meant to change."""
    digest = hashlib.sha256(b"\n".join(sent(small(imperfections=Imperfections())))).hexdigest()
    assert digest[:16] == "a4438772d81a8bb1"


def only(**rates: float) -> Imperfections:
    return replace(Imperfections.none(), **rates)


def is_spoiled(flaw: str, message: bytes) -> bool:
    try:
        ping = json.loads(message)
    except ValueError:
        return flaw == "not_json"
    time = ping.get("observationDateTime", "")
    return {
        "missing_field": len(ping) == 5,
        "null_speed": ping.get("speed", 0) is None,
        "no_offset": len(time) == 19,
        "null_island": ping.get("location", {}).get("coordinates") == [0, 0],
        "sentinel_speed": ping.get("speed") == 410.383,
        "empty_plate": ping.get("license_plate") == "",
        "far_future": time.startswith("2068-"),
    }.get(flaw, False)


def test_flaws_spoil_pings_at_their_rates_and_one_at_a_time() -> None:
    messages = sent(small(buses=150, imperfections=only(**dict.fromkeys(FLAWS, 0.02))))
    spoiled = np.array([[is_spoiled(flaw, message) for flaw in FLAWS] for message in messages])
    assert spoiled.sum(axis=1).max() == 1
    assert spoiled.mean(axis=0) == pytest.approx(0.02, abs=0.006)
