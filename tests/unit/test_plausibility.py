"""The unit of speeds, told from how far buses move: on a synthetic fleet, and on real feeds where
they are there."""

import itertools
import json
from datetime import datetime

import pytest

from tests.forms import long_but
from tests.runtime.harness import fleet_log
from udp_stream.base.units import KMH_PER_UNIT
from udp_stream.pings.data_quality import (
    PAIRS_MIN,
    SPARSE_PAIRS_MIN,
    unit_evidence,
)
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.json import JSON
from udp_stream.sources.fleet import IST, Fleet


def decoded(messages, unit):
    pings, _ = PingDecoder(PingRules(unit=unit, max_kmh=800, reject_above_kmh=800), JSON).decode(
        messages
    )
    return pings


@pytest.mark.parametrize("unit", KMH_PER_UNIT)
def test_a_fleet_in_kmh_is_told_to_be_so_whatever_is_configured(unit):
    fleet = Fleet(buses=40, start=datetime(2024, 1, 8, 9, tzinfo=IST), hours=0.3)
    found = unit_evidence(
        decoded(list(itertools.chain.from_iterable(fleet.messages())), unit), unit
    )
    assert found.unit == "kmh" and found.pairs > 1000
    assert found.ratio * KMH_PER_UNIT[unit] == pytest.approx(1, abs=0.1)


def ping(plate, second, speed, lat):
    return (
        b'{"license_plate": "%s", "observationDateTime": "2024-01-01T00:%02d:%02dZ", "speed": %f, "location": '
        b'{"type": "Point", "coordinates": [72.8, %f]}}' % (plate, *divmod(second, 60), speed, lat)
    )


def test_only_moving_pairs_of_one_plate_a_little_apart_count():
    metre = 1 / 111_195
    steady = [
        ping(b"A", 10 * i, 10, 21 + 100 * metre * i) for i in range(PAIRS_MIN + 1)
    ]  # 100 m in 10 s, as m/s
    assert unit_evidence(decoded(steady, "mps"), "mps").ratio == pytest.approx(1, abs=0.001)
    assert unit_evidence(decoded(steady, "kmh"), "kmh").unit == "mps"
    assert unit_evidence(decoded(steady[1:], "mps"), "mps").unit is None  # one pair too few
    minute = [ping(b"A", 60 * i, 10, 21) for i in range(50)]
    strangers = [ping(b"P%d" % i, 10 * i, 10, 21 + 0.001 * i) for i in range(PAIRS_MIN + 1)]
    for nothing in (minute, strangers, []):
        assert unit_evidence(decoded(nothing, "mps"), "mps").pairs == 0


def scaled(factor):
    """A fleet whose speeds are not what they were, such as knots."""
    pings = [json.loads(message) for message in fleet_log(clean=True)[:6000]]
    return [json.dumps(ping | {"speed": ping["speed"] * factor}).encode() for ping in pings]


NOT_OURS = {
    "feet a second": 1 / 1.09728,
    "decimetres a second": 10 / 3.6,
    "ten times": 10,
    "two fifths": 0.4,
}


@pytest.mark.parametrize("factor", NOT_OURS.values(), ids=NOT_OURS)
@pytest.mark.parametrize("read_in", ["kmh", "mph"])
def test_speeds_in_no_unit_that_is_known_fit_none(factor, read_in):
    found = unit_evidence(decoded(scaled(factor), read_in), read_in)
    assert found.fits_none and found.unit is None and found.pairs > PAIRS_MIN


def twice_a_minute(factor):
    """The fleet's pings 35 s apart or more, whose speeds are in another unit."""
    last, kept = {}, []
    for message in scaled(factor):
        one = json.loads(message)
        at = datetime.fromisoformat(one["observationDateTime"]).timestamp()
        if at - last.get(one["license_plate"], 0) >= 35:
            last[one["license_plate"]] = at
            kept.append(message)
    return kept


@pytest.mark.parametrize("unit", KMH_PER_UNIT)
def test_a_fleet_that_sends_twice_a_minute_says_its_unit(unit):
    sparse = twice_a_minute(1 / KMH_PER_UNIT[unit])
    found = unit_evidence(decoded(sparse, "kmh"), "kmh")
    assert found.pairs >= SPARSE_PAIRS_MIN and unit in found.fits
    assert found.unit == unit
    assert unit_evidence(decoded(sparse, unit), unit).unit == unit
    wrong = unit_evidence(decoded(twice_a_minute(10), "kmh"), "kmh")
    assert wrong.fits_none
    few = unit_evidence(decoded(sparse[: SPARSE_PAIRS_MIN // 2], "kmh"), "kmh")
    assert few.unit is None and not few.fits_none


@pytest.mark.parametrize("apart_s", [10, 30])
def test_speeds_that_are_all_zero_while_plates_move_are_none(apart_s):
    metre = 1 / 111_195
    said = [
        [ping(b"A", apart_s * i, speed, 21 + 3 * apart_s * metre * i) for i in range(PAIRS_MIN + 1)]
        for speed in (0, 1)
    ]
    assert unit_evidence(decoded(said[0], "mps"), "mps").is_all_zero
    assert not unit_evidence(decoded(said[0][1:], "mps"), "mps").is_all_zero  # one pair too few
    assert not unit_evidence(
        decoded(said[0][:-1] + said[1][-1:], "mps"), "mps"
    ).is_all_zero  # one plate reports that it goes
    standing = [ping(b"A", apart_s * i, 0, 21 + 5 * metre * (i % 2)) for i in range(PAIRS_MIN + 1)]
    assert not unit_evidence(decoded(standing, "mps"), "mps").is_all_zero


def test_a_sparse_fleet_that_stands_says_nothing():
    standing = [ping(b"A%d" % (i % 9), 60 * i, 0, 21) for i in range(2000)]
    assert unit_evidence(decoded(standing, "kmh"), "kmh").unit is None


def test_too_few_pairs_fit_neither_a_unit_nor_none():
    found = unit_evidence(decoded(scaled(10)[:60], "kmh"), "kmh")
    assert found.unit is None and not found.fits_none


def changed(pings, share, factor):
    """The last share of the pings is so many times what it was."""
    since = round(len(pings) * (1 - share))
    for at, message in enumerate(pings):
        one = json.loads(message)
        yield (
            json.dumps(one | {"speed": one["speed"] * factor}).encode() if at >= since else message
        )


@pytest.mark.parametrize("share", long_but([0.4, 0.55, 0.7], [0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8]))
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(("of", "to"), [*itertools.permutations(["kmh", "mps", "mph"], 2)])
def test_of_a_unit_that_changes_on_the_way_no_third_is_named(of, to, is_sparse, share):
    factor = KMH_PER_UNIT[of] / KMH_PER_UNIT[to]
    log = twice_a_minute(1 / KMH_PER_UNIT[of]) if is_sparse else scaled(1 / KMH_PER_UNIT[of])
    found = unit_evidence(decoded(list(changed(log, share, factor)), of), of)
    if found.unit in (None, of):
        return  # too little of the other one
    assert found.named == f"{to!r}" or "factor" in found.named
    if found.changes and not is_sparse:
        assert float(found.named.rpartition(" ")[2]) == pytest.approx(1 / factor, rel=0.1)


@pytest.mark.parametrize("unit", KMH_PER_UNIT)
@pytest.mark.parametrize("read_in", KMH_PER_UNIT)
def test_a_unit_is_named_where_no_other_fits(unit, read_in):
    found = unit_evidence(decoded(scaled(1 / KMH_PER_UNIT[unit]), read_in), read_in)
    assert found.unit == unit
    if {unit, read_in} != {"mph", "knots"}:  # which are near each other
        assert found.named == repr(unit) and not found.changes


def test_no_unit_is_named_between_two_that_are_near_each_other():
    between = unit_evidence(decoded(scaled(1 / 1.726), "kmh"), "kmh")  # mph and knots
    assert len(between.fits) == 2 and between.named.endswith("1.7")
