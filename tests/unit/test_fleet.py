"""The synthetic fleet: likeness to the published statistics of the real feed, determinism, faults at their rates."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from datetime import datetime

import h3
import numpy as np
import pytest

from udp_stream.errors import UsageError
from udp_stream.trial.fleet import FLAWS, IST, Fleet, FleetColumns, Imperfections

MORNING = datetime(2024, 1, 8, 10, 10, tzinfo=IST)
MINIMAL = {"license_plate", "observationDateTime", "location", "speed", "route_id", "trip_id"}
EXCHANGE = MINIMAL | {
    *("id", "trip_direction", "trip_delay", "last_stop_id", "last_stop_arrival_time"),
    *("actual_trip_start_time", "vehicle_label"),
}


def small(**changes: object) -> Fleet:
    return replace(Fleet(buses=40, start=MORNING, hours=0.2, imperfections=Imperfections.none()), **changes)


def sent(fleet: Fleet) -> list[bytes]:
    return [message for batch in fleet.messages() for message in batch]


def seconds(ping: dict[str, str]) -> float:
    return datetime.fromisoformat(ping["observationDateTime"]).timestamp()


@pytest.fixture(scope="module", params=[1, 2])
def half_hour(request: pytest.FixtureRequest) -> FleetColumns:
    return Fleet(seed=request.param, buses=208, start=MORNING, hours=0.5).columns()


def cell_of(columns: FleetColumns) -> np.ndarray:
    cells = [h3.latlng_to_cell(lat, lon, 7) for lat, lon in zip(columns.lat, columns.lon, strict=True)]
    return np.unique(cells, return_inverse=True)[1]


def plates_by_cell(columns: FleetColumns) -> tuple[np.ndarray, np.ndarray]:
    """(plates of each cell, cells of each plate)."""
    visits = np.unique(np.stack([columns.plate, cell_of(columns)]), axis=1)
    return np.bincount(visits[1]), np.bincount(visits[0])


def steps(columns: FleetColumns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(seconds, metres moved, mean of the two reported speeds in km/h) between neighbouring pings of one bus."""
    order = np.lexsort((columns.time_ms, columns.plate))
    same = np.diff(columns.plate[order]) == 0
    lon, lat, kmh = columns.lon[order], columns.lat[order], columns.speed_kmh[order]
    metres = np.hypot(np.diff(lon) * 111_195 * np.cos(np.radians(21.19)), np.diff(lat) * 111_195)
    return (np.diff(columns.time_ms[order]) / 1000)[same], metres[same], ((kmh[1:] + kmh[:-1]) / 2)[same]


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


def test_buses_spread_over_cells_like_the_real_ones(half_hour: FleetColumns) -> None:
    """Real: 64 cells of resolution 7, median 4 plates and at most 23 in each, at most four cells a plate.

    The real half hour holds about 26 pings of a bus where a whole one has 150, so a whole one shows more of each.
    """
    plates, cells = plates_by_cell(half_hour)
    assert np.count_nonzero(cells) == 208
    assert 50 <= len(plates) <= 85
    assert 3 <= np.median(plates) <= 12
    assert 20 <= np.sort(plates)[-6:].mean() <= 60
    assert np.mean(plates <= 4) > 0.15, "the outskirts see few plates"
    assert 3 <= np.quantile(cells, 0.95) <= 7
    assert cells.max() <= 10


def test_reported_speed_is_displacement_over_time(half_hour: FleetColumns) -> None:
    """Real: reported km/h over driven m/s has median 3.47, quartiles 3.28 and 3.72."""
    gaps, metres, kmh = steps(half_hour)
    steady = (gaps >= 5) & (gaps <= 15) & (kmh > 10)
    ratio = kmh[steady] / (metres[steady] / gaps[steady])
    assert np.median(ratio) == pytest.approx(3.6, rel=0.05)
    assert np.mean(np.abs(ratio / 3.6 - 1) < 0.15) > 0.6
    assert (metres / gaps).max() * 3.6 < 75, "no bus jumps"


def test_the_same_arguments_give_the_same_bytes() -> None:
    fleet = small(imperfections=Imperfections())
    assert sent(fleet) == sent(fleet)
    assert sent(fleet) != sent(replace(fleet, seed=2))


def test_bytes_are_those_of_every_other_platform() -> None:
    """A digest taken once: change it only when the fleet is meant to change."""
    digest = hashlib.sha256(b"\n".join(sent(small(imperfections=Imperfections(), fields="exchange")))).hexdigest()
    assert digest[:16] == "b3ecc59b0c18a568"


@pytest.mark.parametrize(("kind", "expected"), [("minimal", MINIMAL), ("exchange", EXCHANGE)])
def test_clean_messages_say_what_the_columns_say(kind: str, expected: set[str]) -> None:
    fleet = small(fields=kind)
    pings, columns = [json.loads(message) for message in sent(fleet)], fleet.columns()
    assert all(set(ping) == expected for ping in pings)
    assert [ping["license_plate"] for ping in pings] == [fleet.plates[plate] for plate in columns.plate]
    assert [seconds(ping) * 1000 for ping in pings] == columns.time_ms.tolist()
    assert [ping["location"]["coordinates"] for ping in pings] == np.stack([columns.lon, columns.lat], 1).tolist()
    assert [ping["speed"] for ping in pings] == columns.speed_kmh.tolist()
    assert all(
        ping["observationDateTime"].endswith("+05:30") and len(ping["observationDateTime"]) == 25 for ping in pings
    )
    assert np.mean([isinstance(ping["speed"], float) for ping in pings]) == pytest.approx(0.012, abs=0.008)
    assert columns.time_ms.tolist() == sorted(columns.time_ms.tolist())


def only(**rates: float) -> Imperfections:
    return replace(Imperfections.none(), **rates)


def test_repeats_have_the_same_plate_and_time_under_another_trip() -> None:
    pings = [json.loads(m) for m in sent(small(buses=150, imperfections=only(repeated=0.05, out_of_order=0.45)))]
    groups: dict[tuple[str, str], list[dict[str, object]]] = {}
    for ping in pings:
        groups.setdefault((ping["license_plate"], ping["observationDateTime"]), []).append(ping)
    twice = [group for group in groups.values() if len(group) > 1]
    assert len(twice) / len(groups) == pytest.approx(0.05, abs=0.01)
    for one, other in twice:
        assert one["trip_id"] != other["trip_id"]
        assert {**one, "trip_id": ""} == {**other, "trip_id": ""}


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


def test_memory_does_not_grow_with_the_run() -> None:
    peaks = []
    for hours in (1, 3):
        tracemalloc.start()
        for _ in small(buses=100, hours=hours, imperfections=Imperfections()).messages():
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
    assert peaks[1] < 40e6


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"seed": -1}, "seed >= 0"),
        ({"buses": 0}, "1 <= buses"),
        ({"start": datetime(2024, 1, 8)}, "start with an offset"),
        ({"hours": 0}, "hours > 0"),
        ({"hours": float("nan")}, "hours > 0"),
        ({"ping_seconds": 0}, "1 <= ping_seconds"),
        ({"fields": "all"}, "fields minimal or exchange"),
    ],
)
def test_what_cannot_be_driven_is_refused_with_the_rule(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        small(**changes)
