"""Records of queries: other bytes are refused, and rounding never makes a bound smaller."""

import random

import pytest

from udp_stream.base.errors import PrivacyRefused
from udp_stream.queries.kinds import BoundedAnswer
from udp_stream.release.query_pipeline import answer_record, decode_round


@pytest.mark.parametrize(
    "payload", [b"[[0],[[17]],[300]]", b"[[9223372036854775808],[[17]],[0]]", b"[[0],[[17]],[]]"]
)
def test_a_number_that_is_too_large_for_its_column_is_refused_by_name(payload):
    with pytest.raises(PrivacyRefused, match="round:stop:7:1"):
        decode_round(payload, 1, "round:stop:7:1")


def test_a_distance_within_its_radius_is_so_once_both_are_rounded():
    dice = random.Random(7)
    pairs = [
        (10.04, 2.1),
        (10.06, 2.1),
        *((dice.uniform(0, 5000), dice.uniform(0, 900)) for _ in range(5000)),
    ]
    answer = answer_record(
        BoundedAnswer(distances_m=tuple(d for d, _ in pairs), radii_m=tuple(r for _, r in pairs))
    )
    for (distance, radius), shown, around in zip(
        pairs, answer.distances_m, answer.radii_m, strict=True
    ):
        assert shown - around <= distance - radius and distance + radius <= shown + around
        assert around <= radius + 0.2


def test_an_excess_is_rounded_up_and_none_stays_none():
    """No excess was published as 0.1 m: the nearest that were found are the nearest."""
    for excess, shown in (
        (0.0, 0.0),
        (0.0625, 0.1),
        (0.3125, 0.4),
        (12.0, 12.0),
        (12.5, 12.5),
        (12.5625, 12.6),
        (None, None),
    ):
        assert answer_record(BoundedAnswer(excess_m=excess)).excess_m == shown
