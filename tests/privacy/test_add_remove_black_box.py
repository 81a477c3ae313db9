"""Days with and without the busiest plate, thousands of times: how the ratio of likelihoods of noised
sums tells them apart.

Each run has plates and cells of its own in one large domain, and forecasts that follow from its own
earlier sums. The ratio of likelihoods knows all but the noise: what the others sent, and what the
plate would have sent and paid. Bounds below epsilon are proven at 99.9 % by counts on both sides of
thresholds that other runs have found.
"""

import math
from contextlib import nullcontext
from itertools import product

import h3
import numpy as np
import pytest
from scipy import stats

from tests.forms import changed, long_rows, soaked_rows
from tests.privacy import recorded
from tests.privacy.recorded import CENTRE, Tape, city, replayed, settings_of
from udp_stream.base.units import NANO
from udp_stream.ledger.filters import epsilon_of
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.mechanisms import add_remove as mechanism
from udp_stream.mechanisms.add_remove import (
    PlateQuery,
    PlateRows,
    allowances,
    entries,
    noised,
    shortened,
)
from udp_stream.planning.add_remove import sigma_of
from udp_stream.release import add_remove as road
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.testing import seeded_bits

KMH = 4096
CELLS, SLOTS, ACTIVE, FULL = 3, 4, 2, 90
OTHERS = 5
"""Plates beside the audited one, which has the number 0."""

RUNS = 12_000
CONFIDENCE = 0.999
DELTA = 1e-6


def rows_of_a_day():
    """By slot: plate, cell, pings and km/h. The busiest is in two cells all the time, very slow and
    very fast."""
    dice = np.random.default_rng(5)
    for slot in range(SLOTS):
        yield [(0, 0, 45, 2), (0, 1, 45, 64 if slot % 2 else 1)] + [
            (plate, int(cell), int(dice.integers(1, 50)), int(dice.integers(5, 50)))
            for plate in range(1, 1 + OTHERS)
            for cell in dice.permutation(CELLS)[:2]
        ]


DAY = list(rows_of_a_day())


class World:
    """The plates of all runs, with what they have left."""

    def __init__(self, plates, budget):
        self.plates, self.left = plates, np.full(RUNS * (1 + OTHERS), budget)

    def vectors(self, slot, query):
        rows = np.array([(plate, cell, pings, pings * kmh * KMH) for plate, cell, pings, kmh in DAY[slot]
                         if plate in self.plates])  # fmt: skip
        step = np.arange(RUNS)[:, None, None] * np.array([1 + OTHERS, CELLS, 0, 0])
        found = entries(PlateRows(*(rows + step).reshape(-1, 4).T), query)
        may = allowances(self.left, SLOTS - slot, ACTIVE)
        charged = np.minimum(found.charges(self.left.size, query), may)
        self.left = self.left - charged
        return shortened(found, charged, query)


def sums(vectors):
    found = np.zeros((2, RUNS * CELLS))
    np.add.at(found[0], vectors.cell, vectors.residual)
    np.add.at(found[1], vectors.cell, vectors.weight)
    return found


def days(is_there, budget, plates, noise_share=1.0):
    everyone = range(1 + OTHERS)
    real = World(everyone if is_there else everyone[1:], budget)
    others, plate = World(everyone[1:], budget), World([0], budget)
    sigma = sigma_of(budget, SLOTS, plates=plates)
    forecast = np.full(RUNS * CELLS, 18.0 * KMH)
    ratio = np.zeros(RUNS)
    for slot in range(SLOTS):
        query = PlateQuery(np.rint(forecast).astype(np.int64), FULL, sigma, plates)
        drawn = changed(query, sigma=round(sigma * noise_share))
        out = noised(
            real.vectors(slot, query), RUNS * CELLS, drawn, seeded_bits(f"{is_there} {slot}")
        ).astype(float)
        base, own = sums(others.vectors(slot, query)), sums(plate.vectors(slot, query))
        each = ((out - base - own / 2) * own / drawn.sigma**2).sum(axis=0)
        ratio += each.reshape(RUNS, CELLS).sum(axis=1)
        # Any function of what was told will do: here the residual over the traffic.
        gain = out[0] / np.maximum(out[1] / (5 * KMH), 2.0)
        forecast = np.clip(forecast + 0.5 * gain, KMH, 64 * KMH)
    return ratio


def epsilon_proven(there, away, delta):
    """The largest epsilon that the runs prove, in either direction: half of them find thresholds."""
    half, quantiles, worst = RUNS // 2, np.linspace(0.005, 0.995, 30), 0.0
    sure = (1 - CONFIDENCE) / (4 * quantiles.size)
    thresholds = np.quantile(np.concatenate((there[:half], away[:half])), quantiles)
    first, second = there[half:], away[half:]
    for threshold, sign in product(thresholds, (1, -1)):
        for more, less in ((first, second), (second, first)):
            many, few = (np.count_nonzero(sign * (one - threshold) > 0) for one in (more, less))
            low = stats.beta.ppf(sure, many, half - many + 1) if many else 0.0
            high = stats.beta.ppf(1 - sure, few + 1, half - few) if few < half else 1.0
            worst = max(worst, math.log(max(low - delta, 1e-300) / high))
    return worst


def budget_of(epsilon):
    return load(None, (f"budget.epsilon={epsilon}",), {}).policy.budget_nano


def rho_proven(there, away):
    """Both divergences of Kullback and Leibler, the means of the ratio, are at most rho."""
    sure = stats.norm.ppf((1 + CONFIDENCE) / 2)
    return max(one.mean() - sure * one.std() / math.sqrt(RUNS) for one in (there, -away))


def both(epsilon, plates, noise_share=1.0):
    budget = budget_of(epsilon)
    return budget, *(days(is_there, budget, plates, noise_share) for is_there in (True, False))


@pytest.mark.parametrize(
    ("epsilon", "plates"),
    [(1, False), *long_rows([], [(10, False)]), *soaked_rows([(1, True), (10, True)])],
)
def test_days_with_and_without_the_busiest_plate_stay_within_the_promise_and_come_near_its_rho(
    epsilon, plates
):
    budget, there, away = both(epsilon, plates)
    assert min(there.mean(), -away.mean()) > 0.85 * budget / NANO
    assert rho_proven(there, away) <= budget / NANO
    assert epsilon_proven(there, away, DELTA) < epsilon
    for delta in (0.01, 0.05, 0.1):
        assert epsilon_proven(there, away, delta) <= epsilon_of(budget, delta)
    assert epsilon == 1 or epsilon_proven(there, away, 0.05) > epsilon_of(budget, 0.05) / 2


@pytest.mark.parametrize(
    ("epsilon", "plates"),
    [*long_rows([], [(4, False), (4, True)]), *soaked_rows([(1, False), (1, True)])],
)
def test_half_of_the_noise_is_found(epsilon, plates):
    budget, there, away = both(epsilon, plates, noise_share=0.5)
    assert rho_proven(there, away) > budget / NANO
    for delta in (0.01, 0.05, 0.1):
        assert epsilon == 1 or epsilon_proven(there, away, delta) > epsilon_of(budget, delta)


def test_records_of_a_whole_run_have_the_stated_noise_also_where_nobody_is(tmp_path, monkeypatch):
    """By a recording, with the machine's entropy: records less the sums of the same run without
    noise."""
    rings, exact, tape = 9, {}, Tape()
    (tmp_path / "cells").write_text("\n".join(sorted(h3.grid_disk(CENTRE, rings))))
    settings, sent = settings_of(str(tmp_path / "cells")), city(0)
    honest = road.noised

    def watched(vectors, cells, query, bits):
        with monkeypatch.context() as patched:
            patched.setattr(
                mechanism, "discrete_gaussian", lambda _, sigmas: np.zeros(len(sigmas), np.int64)
            )
            exact[len(exact)] = honest(vectors, cells, query, seeded_bits(0))
        return honest(vectors, cells, query, bits)

    monkeypatch.setattr(road, "noised", watched)
    tape.runs, tape.streams = nullcontext, OsEntropy().streams
    records = [Release.decode(one) for one in replayed(tmp_path, settings, sent, tape).releases]
    found = np.array([(one.noised.residual, 5 * one.noised.weight) for one in records]).reshape(
        len(exact), -1, 2
    )
    off = (found - np.array([one.T / KMH for one in exact.values()])) / records[0].noised.sd
    is_empty = ~np.any([one.any(axis=0) for one in exact.values()], axis=0)
    assert (
        off.shape == (len(recorded.SLOTS), 1 + 3 * rings * (rings + 1), 2) and is_empty.sum() > 200
    )
    for part in (off[:, is_empty], off[:, ~is_empty]):
        assert stats.kstest(part.ravel(), "norm").pvalue > 1e-6
    assert stats.kstest(off.ravel() / 0.7, "norm").pvalue < 1e-6
