"""The unit of speeds, told from how far buses move: on a synthetic fleet, and on real feeds where they are there."""

import itertools
from datetime import datetime

import pytest

from tests.runtime.harness import FEEDS
from udp_stream.adapters.files.sources import read_messages
from udp_stream.pings.decoder import PingDecoder, PingRules
from udp_stream.pings.speed_unit import PAIRS_MIN, unit_evidence
from udp_stream.trial.fleet.fleet import IST, Fleet
from udp_stream.units import KMH_PER_UNIT


def decoded(messages, unit):
    pings, _ = PingDecoder(PingRules(unit=unit, max_kmh=800, reject_above_kmh=800)).decode(messages)
    return pings


@pytest.mark.parametrize("unit", KMH_PER_UNIT)
def test_a_fleet_in_kmh_is_told_to_be_so_whatever_is_configured(unit):
    fleet = Fleet(buses=40, start=datetime(2024, 1, 8, 9, tzinfo=IST), hours=0.3)
    found = unit_evidence(decoded(list(itertools.chain.from_iterable(fleet.messages())), unit), unit)
    assert found.unit == "kmh" and found.pairs > 1000
    assert found.ratio * KMH_PER_UNIT[unit] == pytest.approx(1, abs=0.1)


def ping(plate, second, speed, lat):
    return (
        b'{"license_plate": "%s", "observationDateTime": "2024-01-01T00:%02d:%02dZ", "speed": %f, "location": '
        b'{"type": "Point", "coordinates": [72.8, %f]}}' % (plate, *divmod(second, 60), speed, lat)
    )


def test_only_moving_pairs_of_one_plate_a_little_apart_count():
    metre = 1 / 111_195
    steady = [ping(b"A", 10 * i, 10, 21 + 100 * metre * i) for i in range(PAIRS_MIN + 1)]  # 100 m in 10 s, as m/s
    assert unit_evidence(decoded(steady, "mps"), "mps").ratio == pytest.approx(1, abs=0.001)
    assert unit_evidence(decoded(steady, "kmh"), "kmh").unit == "mps"
    assert unit_evidence(decoded(steady[1:], "mps"), "mps").unit is None  # one pair too few
    standing = [ping(b"A", 10 * i, 0, 21 + 100 * metre * i) for i in range(PAIRS_MIN + 1)]
    minute = [ping(b"A", 60 * i, 10, 21) for i in range(50)]
    strangers = [ping(b"P%d" % i, 10 * i, 10, 21 + 0.001 * i) for i in range(PAIRS_MIN + 1)]
    for nothing in (standing, minute, strangers, []):
        assert unit_evidence(decoded(nothing, "mps"), "mps").pairs == 0


@pytest.mark.skipif(not FEEDS.exists(), reason="the recorded feeds are not part of the project")
@pytest.mark.parametrize("feed", ["surat-itms-2022-01-01", "austin-capmetro-2016-03-22"])
def test_real_feeds_in_kmh_are_told_apart_from_other_units(feed):
    messages = list(itertools.chain.from_iterable(read_messages(str(FEEDS / f"{feed}.ndjson.gz"))))
    for unit in KMH_PER_UNIT:
        assert unit_evidence(decoded(messages, unit), unit).unit == "kmh"
