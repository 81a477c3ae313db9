"""Records without counts: all else is the same, and estimates follow from the records alone."""

import datetime as dt
import json

import h3.api.basic_int as h3
import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.forecast_days import OURS, day_of_fleet, run
from tests.forms import PURE_ENV
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ReleaseContext, with_forecaster
from udp_stream.release.forecaster import LedgerHistory
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release, Smoothed
from udp_stream.settings import load
from udp_stream.sources.fleet import Fleet
from udp_stream.testing import SeededEntropy
from udp_stream.windows.tables import SlotPings, tabulate

FLAGS = (
    "hat.slot=1h",
    "hat.resolution=7",
    "hat.timezone=UTC",
    "release.mean=forecast-clip",
    "release.min_plates=3",
)
MEASURES = {"pure": (), "in rho": ("budget.accounting=approximate",)}
HOUR = 3_600_000
START = int(dt.datetime(2024, 1, 8, 6, tzinfo=dt.UTC).timestamp() * 1000)
CELLS = np.array(sorted(h3.grid_disk(h3.latlng_to_cell(21.17, 72.83, 7), 1)), np.uint64)
SLOTS = 3


@pytest.fixture(params=MEASURES)
def measure(request):
    return MEASURES[request.param]


def contents(number):
    rng = np.random.default_rng(number)
    at = rng.choice(CELLS.size, 900, p=[0.3, 0.2, 0.2, 0.15, 0.1, 0.045, 0.005])
    plate = (100 * at + rng.integers(0, 20, at.size)).astype(np.uint32)
    names, of_row = np.unique(plate, return_inverse=True)
    speed = np.clip(rng.normal(15 + 3 * at, 6), 0, 65) * 4096
    keys, start = tuple(b"hash%04d" % name for name in names), START + number * HOUR
    time = np.arange(at.size, dtype=np.uint32)
    pings = SlotPings(
        start, start + HOUR, keys, of_row.astype(np.uint32), time, CELLS[at], speed.astype(np.int32)
    )
    return tabulate(pings)


def context_of(*flags):
    settings = load(None, (*FLAGS, *flags), PURE_ENV)
    return with_forecaster(
        ReleaseContext(settings.policy, settings.calendar, SeededEntropy(2), "udp-stream test")
    )


def morning(*flags, ledger=None):
    """What a morning releases, payload by payload, and its estimates, slot by slot."""
    context, ledger, payloads, estimates = context_of(*flags), ledger or MemoryLedger(), [], []
    for number in range(SLOTS):
        counts, values = contents(number)
        payloads += release_slot(counts, values, context, ledger, lambda _: None).payloads.values()
        estimates += context.smoothed((counts.start_ms, counts.end_ms), ledger)
    return payloads, estimates


def test_records_lack_the_field_and_are_the_same_in_all_else(measure):
    shown, left_out = (
        morning(*measure, f"release.counts={counts}")[0] for counts in ("all", "none")
    )
    assert {Release.decode(payload).status for payload in shown} >= {
        "released",
        "withheld_uninformative",
    }
    for all_of_it, without in zip(map(Release.decode, shown), left_out, strict=True):
        assert "counts" not in json.loads(without) and all_of_it.counts is not None
        assert Release.decode(without) == replace(
            all_of_it, counts=None, policy=Release.decode(without).policy
        )
    assert len({Release.decode(payload).policy for payload in (*shown, *left_out)}) == 2


def test_estimates_have_the_same_values_in_wider_intervals():
    shown, left_out = (morning(f"release.counts={counts}")[1] for counts in ("all", "none"))
    for one, other in zip(shown, left_out, strict=True):
        assert (
            one.value_kmh == other.value_kmh
            and one.expected_abs_error_kmh == other.expected_abs_error_kmh
        )
    widths = np.array(
        [[one.interval95_kmh[1] - one.interval95_kmh[0] for one in of] for of in (shown, left_out)]
    )
    # On average: the widest ones are those of guesses, which counts of neighbours widen further.
    assert np.log(widths[1] / widths[0]).mean() > 0.05


def test_estimates_are_the_same_bytes_when_they_are_made_again_from_the_records():
    ledger = MemoryLedger()
    _, estimates = morning("release.counts=none", ledger=ledger)
    for first in range(SLOTS):  # whoever starts before that slot, and has seen none
        again, forecaster = [], context_of("release.counts=none").forecaster
        for number in range(first, SLOTS):
            again += forecaster.smoothed(
                (START + number * HOUR, START + (number + 1) * HOUR), LedgerHistory(ledger)
            )
        assert again and list(map(Smoothed.encode, again)) == list(
            map(Smoothed.encode, estimates[-len(again) :])
        )


def test_intervals_hold_a_fleets_day_without_counts():
    fleet = day_of_fleet("a fleet", Fleet(buses=150).columns())
    (one,) = run([fleet], 0, None, (*OURS, "release.counts=none"))
    assert np.mean((one.low <= fleet.truth) & (fleet.truth <= one.high)) > 0.93
