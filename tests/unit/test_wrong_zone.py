"""Is hat.timezone the place's; and is the place that of a city?"""

import numpy as np
import pytest

from udp_stream.cli.wrong_zone import wrong_offset, wrong_zone
from udp_stream.pings.json import FeedMapping
from udp_stream.pings.time_offsets import SaidOffset

JANUARY = np.array([1706159153000])
MEND = '[source] longitude = "location.coordinates.1" and latitude = "location.coordinates.0"'


def said(lon, lat, zone, mapping=None):
    mapping = FeedMapping() if mapping is None else mapping
    return wrong_zone(JANUARY, np.array([lon]), np.array([lat]), zone, mapping)


@pytest.mark.parametrize(
    ("lon", "lat", "zone"),
    [(72.8, 21.1, "Asia/Kolkata"), (13.4, 52.5, "Europe/Paris"), (-46.6, -23.5, "America/Sao_Paulo")],
)
def test_a_place_at_sea_whose_exchange_has_the_configured_hours_is_exchanged(lon, lat, zone):
    assert said(lon, lat, zone) is None
    sentence = said(lat, lon, zone)
    assert sentence.endswith(f"longitude and latitude look exchanged: {MEND}")
    assert "Set hat.timezone" not in sentence


def test_a_place_on_land_whose_exchange_has_the_configured_zone_is_exchanged():
    assert MEND in said(39.5, -0.4, "Europe/Madrid")
    assert "Set hat.timezone = 'Africa/" in said(39.5, -0.4, "Europe/Paris")


def test_no_zone_of_the_sea_is_a_mend():
    sentence = said(21.1, 72.8, "America/Chicago")
    assert "lie at sea" in sentence and "Set hat.timezone" not in sentence and "exchanged" in sentence
    assert "exchanged" not in said(-30, -40, "America/Chicago")


def test_the_mend_has_the_paths_of_the_mapping():
    mapping = FeedMapping(plate="bus", time="t", longitude="x", latitude="y")
    assert said(21.1, 72.8, "Asia/Kolkata", mapping).endswith('[source] longitude = "y" and latitude = "x"')


JULY_MS = 1720000000000


@pytest.mark.parametrize(
    ("minutes", "at_ms", "zone", "is_wrong"),
    [
        (-300, JULY_MS, "America/Chicago", False),
        (-360, JULY_MS, "America/Chicago", True),  # winter's, in summer
        (-360, int(JANUARY[0]), "America/Chicago", False),
        (330, JULY_MS, "America/Chicago", True),
        (0, JULY_MS, "America/Chicago", False),  # UTC says nothing of a place
        (330, JULY_MS, "Asia/Colombo", False),
    ],
)
def test_an_offset_is_compared_with_the_zone_s_at_that_time(minutes, at_ms, zone, is_wrong):
    assert (wrong_offset([SaidOffset(minutes, at_ms)] * 9, zone) is not None) is is_wrong


def test_the_commonest_offset_decides():
    ours, theirs = SaidOffset(330, JULY_MS), SaidOffset(120, JULY_MS)
    assert wrong_offset([theirs, ours, ours], "Asia/Kolkata") is None
    sentence = wrong_offset([ours, theirs, theirs], "Asia/Kolkata")
    assert sentence.startswith("times say UTC+02:00,") and "slots are 3:30 h wrong" in sentence
