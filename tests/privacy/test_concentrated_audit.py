"""Whole days under concentrated accounting: what the outputs tell of one plate, beside the rho on
its ledger.

As in `test_forecast_audit.py`, the second of two neighbouring days gets the noisy integers of the
first. Where they differ by d, the log ratio is normal about d^2 / (2 sigma^2), with twice that as
its variance: the rho that the release costs this plate. Those of a day add up, also where later
scales follow from earlier outputs.
"""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from tests.privacy.test_forecast_audit import WITH_CDF, Run, key_of, of_plate, run
from tests.privacy.test_forecast_audit import busiest as busiest  # a fixture
from udp_stream.ledger.filters import rho_nano_of
from udp_stream.mechanisms.base import Query
from udp_stream.mechanisms.noise import Lattice
from udp_stream.units import NANO

APPROXIMATE = (*WITH_CDF, "budget.accounting=approximate")
OTHERS = (*APPROXIMATE, "release.mean=optimal", "release.mean_epsilon=0.3")
BUDGET = rho_nano_of(10 * NANO, 1e-6)


@dataclass(frozen=True)
class Audit:
    """What the day's outputs cost the plate by their noise, what was charged, both in rho, and how
    likely they were."""

    rho: float
    charged: float
    log_ratio: float
    first: Run


def audited(monkeypatch, plate, seed, flags=APPROXIMATE):
    fast = run(monkeypatch, of_plate(plate, 65), seed, flags)
    slow = run(monkeypatch, of_plate(plate, 0), seed, flags, given=fast.noisy)
    assert slow.ledger.calls == fast.ledger.calls and slow.payloads == fast.payloads
    assert {call[0][-len(" in rho") :] for call in fast.ledger.calls} == {" in rho"}
    rho = log_ratio = 0.0
    for a, b, out in zip(fast.queries, slow.queries, fast.noisy, strict=True):
        assert a.t.tolist() == b.t.tolist() and a.s.tolist() == b.s.tolist()
        sigma = a.t / a.s
        rho += float(((a.integers - b.integers) ** 2 / (2 * sigma**2)).sum())
        log_ratio += float(
            (((out - b.integers) ** 2 - (out - a.integers) ** 2) / (2 * sigma**2)).sum()
        )
    return Audit(
        rho, sum(fast.ledger.charged_by_period(key_of(plate)).values()) / NANO, log_ratio, fast
    )


@pytest.mark.parametrize(
    ("flags", "seeds"),
    [
        pytest.param(APPROXIMATE, 2, id="individual, twice"),
        pytest.param(APPROXIMATE, 3, id="individual", marks=pytest.mark.long),
    ],
)
def test_what_a_plate_loses_stays_under_its_ledger_whatever_history_the_noise_makes(
    monkeypatch, busiest, flags, seeds
):
    runs = [audited(monkeypatch, busiest[0], seed, flags) for seed in range(seeds)]
    for one in runs:
        assert 0.05 < one.rho <= one.charged <= BUDGET / NANO
        assert abs(one.log_ratio - one.rho) < 5 * np.sqrt(
            2 * one.rho
        )  # else the noise is of another kind or scale
    if flags is APPROXIMATE:
        assert all(
            one.rho > 0.6 * one.charged for one in runs
        )  # there is something to lose, and it is seen
        assert (
            len({str(one.first.ledger.calls) for one in runs}) == seeds
        )  # each history made other plans


def test_so_it_does_where_other_mechanisms_are_taken(monkeypatch, busiest):
    one = audited(monkeypatch, busiest[0], 1, OTHERS)
    assert 0.3 * one.charged < one.rho <= one.charged
    records = [json.loads(payload) for payload in one.first.payloads]
    made = [record for record in records if record["status"] == "released"]
    assert len(made) > 5 and {record["mean"]["mechanism"] for record in made} == {"optimal"}
    assert all(record["variance"] and record["cdf"] for record in made)


@pytest.mark.long
def test_log_ratios_of_many_days_have_the_mean_and_the_spread_that_rho_says(monkeypatch, busiest):
    off = []
    for seed in range(12):
        one = audited(monkeypatch, busiest[0], seed)
        off.append((one.log_ratio - one.rho) / np.sqrt(2 * one.rho))
    assert abs(np.mean(off)) < 1.0 and 0.5 < np.sqrt(np.mean(np.square(off))) < 1.6


def test_noise_that_is_a_fifth_too_small_is_caught(monkeypatch, planted, busiest):
    honest = Query.of_one

    def narrow(statistic, lattice, *more):
        return honest(statistic, Lattice(lattice.t * 8 // 10, lattice.shift), *more)

    planted(Query, of_one=narrow)
    one = audited(monkeypatch, busiest[0], 1)
    assert one.rho > one.charged
