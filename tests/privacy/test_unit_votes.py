"""A unit in doubt: votes move by one at most, AboveThreshold keeps its epsilon, and what a price cannot buy."""

import gzip
from itertools import pairwise, product
from math import exp
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from udp_stream.cli.first_look import unclamped
from udp_stream.mechanisms.above import AboveThreshold, epsilon_nano_of, most_told
from udp_stream.mechanisms.noise import Cost
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.settings import load
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO, QUANTA_PER_KMH
from udp_stream.windows.movement import places_of
from udp_stream.windows.unit_votes import unit_votes

DATA = Path("/work/shared/data")
HOUR_MS = 3_600_000


# Votes


def city(dice, plates=3):
    """Times and places of a tiny slot: public. Some pings come twice, at one place or at two."""
    rows = []
    for plate in range(plates):
        at, north = 0, 0.0
        for _ in range(int(dice.integers(1, 7))):
            at += int(dice.choice([0, 0, 10, 60, 200]))
            north += float(dice.choice([0, 0.001, 0.005]))
            rows.append((plate, at * 1000, 30 + north))
    dice.shuffle(rows)
    plate, time, lat = (np.array(column) for column in zip(*rows, strict=True))
    return plate, time, places_of(lat), places_of(np.zeros(lat.size))


@pytest.mark.parametrize("unit", ["kmh", "mps", "mph", "knots"])
def test_whatever_one_plate_reports_the_same_are_asked_and_one_vote_changes(unit):
    dice, changed = np.random.default_rng(7), 0
    for _ in range(60):
        plate, time, lat, lon = city(dice)
        speed = dice.choice([0, 10, 36, 130], plate.size) * QUANTA_PER_KMH
        asked, votes = unit_votes(plate, time, lat, lon, speed, unit, 3)
        assert not votes[~asked].any()
        own = np.flatnonzero(plate == 0)
        for speeds in product((0, 12, 36, 130), repeat=min(own.size, 4)):
            other = speed.copy()
            other[own[:4]] = np.array(speeds) * QUANTA_PER_KMH
            now_asked, now = unit_votes(plate, time, lat, lon, other, unit, 3)
            assert (now_asked == asked).all() and (now[1:] == votes[1:]).all()
            changed += now[0] != votes[0]
    assert changed > 10


def test_the_order_of_arrival_is_nothing():
    dice = np.random.default_rng(8)
    for _ in range(100):
        plate, time, lat, lon = city(dice)
        speed = dice.choice([0, 10, 36], plate.size) * QUANTA_PER_KMH
        first = unit_votes(plate, time, lat, lon, speed, "kmh", 3)
        mixed = dice.permutation(plate.size)
        again = unit_votes(plate[mixed], time[mixed], lat[mixed], lon[mixed], speed[mixed], "kmh", 3)
        assert all((one == other).all() for one, other in zip(first, again, strict=True))


def votes_by_hour(day, unit):
    decoder = PingDecoder(unclamped(load(None, (f"speed.unit={unit}",), {})), JSON)
    pings, _ = decoder.decode(gzip.decompress(day.read_bytes()).splitlines())
    hour = pings.time_ms // HOUR_MS
    for one in np.unique(hour):
        at = np.flatnonzero(hour == one)
        place = places_of(pings.lat[at]), places_of(pings.lon[at])
        time = pings.time_ms[at] - one * HOUR_MS
        asked, votes = unit_votes(pings.plate[at], time, *place, pings.speed[at], unit, len(pings.plates))
        if asked.sum() >= 20:
            yield int(asked.sum()), int(votes.sum())


@pytest.mark.skipif(not DATA.is_dir(), reason="recorded days are not part of the program")
def test_in_an_hour_of_recorded_days_a_sixth_votes_and_in_another_unit_all_but_a_sixth():
    ordinary, other = [], []
    for day in sorted(DATA.glob("*.ndjson.gz")):
        ordinary += [votes / asked for asked, votes in votes_by_hour(day, "kmh")]
        other += [votes / asked for unit in ("mps", "mph", "knots") for asked, votes in votes_by_hour(day, unit)]
    assert len(ordinary) >= 30 and max(ordinary) < 1 / 6 and np.median(ordinary) < 0.05
    assert min(other) > 1 - 1 / 6 and np.median(other) > 0.95


# Noise


def answers_of(excesses, noise, bits):
    threshold = noise.draw_threshold(bits)
    above = (i for i, excess in enumerate(excesses) if noise.is_above(excess, threshold, bits))
    return next(above, len(excesses))


@pytest.mark.parametrize("nano", [NANO // 5, NANO, 3 * NANO])
def test_no_answer_tells_two_neighbours_apart_by_more_than_epsilon(nano):
    noise, worst = AboveThreshold.at(Cost("pure", nano)), 0.0
    assert noise.epsilon <= nano / NANO
    for excesses in product((-2, 0, 3), repeat=3):
        ours = noise.first_above(excesses)
        assert ours.sum() == pytest.approx(1, abs=1e-9)
        for moves in product((-1, 0, 1), repeat=3):
            theirs = noise.first_above(np.add(excesses, moves).tolist())
            worst = max(worst, float(np.abs(np.log(ours / theirs)).max()))
    assert 0.6 * noise.epsilon < worst <= noise.epsilon + 1e-9


def test_with_half_of_the_noise_of_a_count_epsilon_is_exceeded():
    """A plate moves the threshold and a count apart by two: the proof needs it, and the test above sees it."""
    given = AboveThreshold.at(Cost("pure", NANO))
    noise = given._replace(answer=given.answer // 4)
    many = [(-1,) * 6 + (1,), (0,) * 6 + (0,)]
    ours, theirs = (noise.first_above(excesses) for excesses in many)
    assert np.abs(np.log(ours / theirs)).max() > given.epsilon


def test_answers_are_drawn_as_computed_and_a_scale_that_is_off_is_seen():
    excesses, runs = (-6, -3, -5, 2), 6000
    noise, bits = AboveThreshold.at(Cost("pure", NANO // 2)), seeded_bits("answers")
    seen = np.bincount([answers_of(excesses, noise, bits) for _ in range(runs)], minlength=5)

    def p_of(said):
        return stats.chisquare(seen, said.first_above(excesses) / said.first_above(excesses).sum() * runs).pvalue

    assert p_of(noise) > 1e-4
    for off in (0.7, 1.3):
        assert p_of(noise._replace(answer=round(noise.answer * off))) < 1e-6
        assert p_of(noise._replace(threshold=round(noise.threshold * off), answer=round(noise.answer * off))) < 1e-6


# What a price buys


def stopped(noise, plates, votes, slots):
    """The probability that a period of so many slots is stopped, where this share votes."""
    return 1 - noise.first_above([round(plates * votes) - (plates + 1) // 2] * slots)[-1]


def test_a_hundredth_of_the_budget_cannot_tell_a_fleet_of_twenty():
    policy = load(None, (), {}).policy
    noise = AboveThreshold.at(Cost(policy.measure, policy.budget_nano // 100))
    assert 0.17 < noise.epsilon < epsilon_nano_of(Cost(policy.measure, policy.budget_nano // 100)) / NANO < 0.18
    assert most_told(noise.epsilon, 20, 1e-4) < 1 / 250  # of any mechanism at this epsilon
    assert stopped(noise, 20, 0.1, 24) > 0.9  # of this one: an ordinary day
    assert stopped(noise, 600, 0.1, 24) < 1e-4 and stopped(noise, 600, 0.9, 2) > 0.999  # where it can


def test_the_group_of_all_plates_keeps_the_bound():
    for nano, plates in product((NANO // 6, NANO, 3 * NANO), (5, 20)):
        noise = AboveThreshold.at(Cost("pure", nano))
        ordinary, other = (stopped(noise, plates, votes, 24) for votes in (0, 1))
        assert ordinary < other <= ordinary * exp(plates * noise.epsilon)


def test_a_fleet_of_twenty_takes_more_than_a_third_of_epsilon_ten():
    least = [nano for nano in range(NANO, 8 * NANO, NANO // 10) if stopped_at(nano) < 1e-4]
    assert 3.5 * NANO < least[0] < 6 * NANO
    assert stopped(AboveThreshold.at(Cost("pure", least[0])), 20, 0.9, 2) > 0.9999
    assert all(one < other for one, other in pairwise(least))


def stopped_at(nano):
    return stopped(AboveThreshold.at(Cost("pure", nano)), 20, 0.1, 24)
