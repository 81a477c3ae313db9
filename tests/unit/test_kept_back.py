"""Counts that are kept back: what a record and a smoothed estimate may still show, and how far estimates are off."""

import datetime as dt
import json
from itertools import groupby
from math import hypot, sqrt
from pathlib import Path

import h3.api.basic_int as h3
import jsonschema
import numpy as np
import pytest
from msgspec.structs import asdict, replace

from benchmarks.accuracy import expected_over_actual
from benchmarks.forecast_days import OURS, changed, day_of_fleet, run
from tests.forms import long_but
from udp_stream.adapters.records_out import flat
from udp_stream.adapters.settings import load
from udp_stream.forecast.model import Memory, SlotPrior
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.planning.terms import HatForecast, Terms
from udp_stream.release import intervals
from udp_stream.release.context import ReleaseContext, with_forecaster
from udp_stream.release.history import LedgerHistory
from udp_stream.release.kept_back import PLATES, REST_KMH, forecast_kept_back, plates_of
from udp_stream.release.record import Forecast, decode, json_schema
from udp_stream.release.road import release_slot
from udp_stream.release.smoothed import encode_smoothed, rest_of_records, smooth_slot
from udp_stream.testing import SeededEntropy
from udp_stream.trial.fleet import Fleet
from udp_stream.windows.tables import SlotPings, tabulate

FLAGS = ("hat.slot=1h", "hat.resolution=7", "hat.timezone=UTC", "release.mean=forecast-clip", "release.min_plates=3",
         "forecast.counts=off")  # fmt: skip
MEASURES = {"pure": (), "in rho": ("budget.accounting=approximate",)}
SCHEMA = Path(__file__).parents[2] / "docs" / "release.schema.json"
DAY, HOUR = dt.date(2024, 1, 8), 3_600_000
START = int(dt.datetime(2024, 1, 8, 6, tzinfo=dt.UTC).timestamp() * 1000)
CELLS = sorted(h3.grid_disk(h3.latlng_to_cell(21.17, 72.83, 7), 2))
LARGE, FEW, POOR = CELLS[:5], CELLS[5:9], CELLS[9:12]
SLOTS = 4


def contents(number, few=((1, 3),), poor=(1, 1, 1), first=1):
    """A slot. Cells with many plates are alike in all of them, but that the first has its pings times `first`.

    `few` and `poor` say how many pings the plates of each small HAT send: of fewer plates than are asked, and of just
    enough. No plate of those is elsewhere.
    """
    rows = []
    for at, cell in enumerate(LARGE):
        rows += [(cell, 100 * at + plate, (20 + plate) * (first if at == 0 else 1)) for plate in range(14)]
    for at, cell in enumerate(FEW):
        pings = few[at % len(few)]
        rows += [(cell, 1000 + 100 * at + plate, many) for plate, many in enumerate(pings)]
    for at, cell in enumerate(POOR):
        rows += [(cell, 2000 + 100 * at + plate, many) for plate, many in enumerate(poor)]
    names = sorted({plate for _, plate, _ in rows})
    many = np.array([pings for _, _, pings in rows])
    plate = np.repeat([names.index(plate) for _, plate, _ in rows], many).astype(np.uint32)
    cell = np.repeat(np.array([cell for cell, _, _ in rows], np.uint64), many)
    speed = np.concatenate(
        [np.random.default_rng([number, at, int(pings)]).normal(15 + 3 * (at % 5), 6, pings) for at, pings in
         ((plate, pings) for _, plate, pings in rows)]
    )  # fmt: skip
    start, keys = START + number * HOUR, tuple(b"hash%04d" % plate for plate in names)
    time, quanta = np.arange(plate.size, dtype=np.uint32), (np.clip(speed, 0, 65) * 4096).astype(np.int32)
    return tabulate(SlotPings(start, start + HOUR, keys, plate, time, cell, quanta))


def context_of(*flags):
    settings = load(None, (*FLAGS, *flags), {})
    return with_forecaster(ReleaseContext(settings.policy, settings.calendar, SeededEntropy(2), "udp-stream test"))


def day_with(*flags, ledger=None, **changes):
    """What a morning releases, payload by payload, and its estimates."""
    context, ledger, payloads, estimates = context_of(*flags), ledger or MemoryLedger(), [], []
    for number in range(SLOTS):
        counts, values = contents(number, **changes)
        payloads += release_slot(counts, values, context, ledger, lambda _: None).payloads.values()
        context.forecaster.saw(counts)
        estimates += map(encode_smoothed, context.smoothed((counts.start_ms, counts.end_ms), ledger))
    return payloads, estimates


OTHER_FEW = {"few": ((1, 4), (40, 25))}
"""Small HATs with other pings, and others with other plates."""


@pytest.fixture(params=MEASURES)
def measure(request):
    return MEASURES[request.param]


@pytest.mark.parametrize("shown", ["none", "released"])
@pytest.mark.parametrize("changes", [OTHER_FEW, {"poor": (2, 1, 2)}], ids=["few plates", "uninformative"])
def test_all_that_is_shown_is_the_same_bytes_whatever_the_counts_of_withheld_hats_are(measure, shown, changes):
    flags = (*measure, f"release.counts={shown}")
    (payloads, estimates), (others, other_estimates) = day_with(*flags), day_with(*flags, **changes)
    records = [decode(payload) for payload in payloads]
    assert sum(record.status == "released" for record in records) >= len(LARGE)
    assert {record.status for record in records} > {"withheld_few_plates", "withheld_uninformative"}
    assert payloads == others and estimates == other_estimates


@pytest.mark.parametrize("changes", [OTHER_FEW, {"poor": (2, 1, 2)}], ids=["few plates", "uninformative"])
def test_where_counts_are_shown_they_are_not(changes):
    assert day_with()[0] != day_with(**changes)[0] and day_with()[1] != day_with(**changes)[1]


def test_the_counts_of_a_released_hat_show_in_nothing_but_what_follows_from_its_noise_and_value(measure):
    """In the first slot, before its value is learnt; its error and interval are there to say how large the noise is."""
    flags, per_slot = (*measure, "release.counts=none"), len(LARGE) + len(FEW) + len(POOR)
    ours, others = (
        [decode(payload) for payload in day_with(*flags, first=first)[0][:per_slot]] for first in (1, 3)
    )  # fmt: skip
    differ = [one.hat.cell for one, other in zip(ours, others, strict=True) if one != other]
    assert differ == [f"{LARGE[0]:x}"]
    one, other = (next(record for record in records if record.hat.cell == differ[0]) for records in (ours, others))
    assert one.status == other.status == "released" and one.mean.scale_kmh != other.mean.scale_kmh
    assert replace(one, mean=None, forecast=None) == replace(other, mean=None, forecast=None)
    of_noise = {"measured_kmh": 0.0, "measured_deviation_kmh": 0.0}
    assert replace(one.forecast, **of_noise) == replace(other.forecast, **of_noise)
    fixed = {"mechanism", "grouping", "epsilon", "bias_bound_kmh"}
    assert {asdict(one.mean)[name] for name in fixed} == {asdict(other.mean)[name] for name in fixed}


def test_a_measured_hat_says_what_was_measured_and_takes_how_far_it_may_be_off_from_its_noise_alone(measure):
    shown, kept_back = (
        [decode(payload) for payload in day_with(*measure, f"release.counts={counts}")[0]] for counts in ("all", "none")
    )
    per_size = 1.2533 if measure else sqrt(2)
    first = [(a, b) for a, b in zip(shown, kept_back, strict=True) if a.mean and a.hat.slot_start[11:13] == "06"]
    assert len(first) == len(LARGE)
    for a, b in first:
        assert b.counts is None and b.mean == a.mean and b.privacy == a.privacy
        assert b.forecast.measured_kmh == a.forecast.measured_kmh and b.forecast.prior == 7 * (0.0,)
        assert b.forecast.measured_deviation_kmh == pytest.approx(per_size * b.mean.scale_kmh, abs=6e-4)
        assert b.forecast.rest_kmh == REST_KMH["released"] and b.forecast.value_kmh == a.forecast.value_kmh


def test_forecasts_follow_from_earlier_records_alone(measure):
    records = [decode(payload) for payload in day_with(*measure, "release.counts=none")[0]]
    memory, seen = Memory(), 0
    for _, slot in groupby(records, key=lambda record: record.hat.slot_start):
        here = list(slot)
        for record in here:
            if record.forecast is not None:
                nothing = SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, 6)))
                foretold = memory.predict(DAY, np.array([int(record.hat.cell, 16)], np.uint64), nothing)
                away = hypot(round(sqrt(foretold.variance[0]), 3), REST_KMH["released"])
                assert record.forecast.value_kmh == pytest.approx(float(foretold.mean[0]), abs=6e-4)
                assert record.forecast.deviation_kmh == pytest.approx(away, abs=6e-4)
                seen += 1
        smooth_slot(here, memory, DAY, 65.0, "udp-stream test", "off")
    assert seen > len(LARGE)


def test_withheld_hats_show_no_forecast_and_released_ones_all_of_it_where_only_their_counts_are_shown():
    for record in map(decode, day_with("release.counts=none")[0]):
        assert (record.forecast is not None) == (record.status == "released") and record.counts is None
    alike = zip(*(map(decode, day_with(f"release.counts={shown}")[0]) for shown in ("all", "released")), strict=True)
    for of_all, record in alike:
        is_released = record.status == "released"
        assert (record.counts is not None) == (record.forecast is not None) == is_released
        if is_released:
            assert record.counts == of_all.counts and record.forecast == of_all.forecast


def test_a_forecast_that_was_made_before_counts_were_kept_back_is_not_shown():
    (mean,) = [decode(payload).mean for payload in day_with()[0]][:1]
    before = HatForecast(value=21.0, deviation=5.0, rest=3.0, prior=7 * (0.5,))
    measured = Forecast(21.0, 5.0, 3.0, 7 * (0.5,), measured_kmh=20.0, measured_deviation_kmh=2.0)
    assert mean is not None and forecast_kept_back(Terms(forecast=before), mean, measured) is None
    after = replace(before, learnt=4.0)
    assert forecast_kept_back(Terms(forecast=after), mean, measured).measured_kmh == 20.0


def one_hat(pings, number=0):
    """A slot of one HAT, in which all drive at 20 km/h; how many pings each plate sends."""
    names, start = sorted(pings), START + number * HOUR
    plate = np.repeat(np.arange(len(names), dtype=np.uint32), [pings[name] for name in names])
    keys, cell = tuple(b"hash%04d" % name for name in names), np.full(plate.size, CELLS[0], np.uint64)
    quanta = np.full(plate.size, 20 * 4096, np.int32)
    return tabulate(SlotPings(start, start + HOUR, keys, plate, np.arange(plate.size, dtype=np.uint32), cell, quanta))


TOLD = {
    "mean.value_kmh", "mean.scale_kmh", "mean.expected_abs_error_kmh", "mean.interval95_kmh", "mean.bias_bound_kmh",
    "mean.epsilon", "privacy.epsilon", "forecast.measured_kmh", "forecast.measured_deviation_kmh",
    "variance.value_kmh2", "variance.scale_kmh2", "variance.expected_abs_error_kmh2", "variance.bias_bound_kmh2",
    "variance.epsilon", "cdf.values", "cdf.expected_rms_error", "cdf.epsilon", "cdf.budgets",
}  # fmt: skip
"""What of a released HAT may follow from its counts: docs/privacy-model.md, "What that still tells of counts"."""


@pytest.mark.parametrize("mean", ["forecast-clip", "array-averaging"])
def test_a_released_hat_tells_of_its_counts_by_what_the_privacy_model_lists(mean):
    """Half of the plates have no budget left. How many pings they send shows in each of these, and in nothing else."""
    flags = (
        f"release.mean={mean}",
        "release.mean_epsilon=0.6",
        "release.variance_epsilon=0.2",
        "release.cdf_epsilon=0.2",
    )

    def second(pings):
        context, ledger = context_of(*flags, "budget.epsilon=1", "release.counts=none"), MemoryLedger()
        first, rest = dict.fromkeys(range(7), 10), dict.fromkeys(range(7, 14), 10)
        for number, sent in enumerate((first, dict.fromkeys(first, pings) | rest)):
            (payload,) = release_slot(*one_hat(sent, number), context, ledger, lambda _: None).payloads.values()
        assert decode(payload).status == "released"
        return flat(json.loads(payload))

    ours, others = second(10), second(40)
    told = {name for name in ours.keys() | others.keys() if ours.get(name) != others.get(name)}
    assert {"mean.epsilon", "privacy.epsilon", "variance.scale_kmh2"} < told <= TOLD
    assert mean == "forecast-clip" or "mean.bias_bound_kmh" in told


@pytest.mark.parametrize("shown", ["none", "released"])
def test_records_without_counts_are_of_the_published_schema(shown, measure):
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    assert json.loads(SCHEMA.read_text()) == json_schema()
    for payload in day_with(*measure, f"release.counts={shown}")[0]:
        validator.validate(json.loads(payload))


@pytest.mark.parametrize("shown", ["none", "released"])
def test_estimates_are_the_same_bytes_when_they_are_made_again_from_the_records(shown):
    flags, ledger = (f"release.counts={shown}",), MemoryLedger()
    _, estimates = day_with(*flags, ledger=ledger)
    for first in range(SLOTS):  # whoever starts before that slot, and has seen none
        again, forecaster = [], context_of(*flags).forecaster
        for number in range(first, SLOTS):
            again += forecaster.smoothed((START + number * HOUR, START + (number + 1) * HOUR), LedgerHistory(ledger))
        assert again and [encode_smoothed(one) for one in again] == estimates[-len(again) :]


def test_in_the_place_of_counts_are_those_of_a_usual_hat_of_the_status():
    records = [decode(payload) for payload in day_with("release.counts=none")[0]]
    assert [plates_of(record) for record in records] == [PLATES[record.status] for record in records]
    assert rest_of_records(records).tolist() == [REST_KMH[record.status] ** 2 for record in records]
    shown = [decode(payload) for payload in day_with()[0]]
    assert [plates_of(record) for record in shown] == [record.counts.plates for record in shown]


@pytest.fixture(scope="module")
def fleet():
    return day_of_fleet("a fleet", Fleet(buses=150).columns())


READ = {
    "published": ("forecast.counts=published",),
    "off": ("forecast.counts=off",),
    "released": ("forecast.counts=off", "release.counts=released"),
    "none": ("forecast.counts=off", "release.counts=none"),
}


@pytest.mark.parametrize("setting", long_but(["published", "none"], READ))
def test_a_fleets_day_is_held_and_expected_errors_are_the_actual_ones_whatever_is_read_and_shown(fleet, setting):
    runs = [run([fleet], seed, None, (*OURS, *READ[setting]))[0] for seed in range(2)]
    held = np.mean([(one.low <= fleet.truth) & (fleet.truth <= one.high) for one in runs])
    assert 0.92 <= held <= 0.98 and 0.9 <= expected_over_actual(fleet, runs) <= 1.3


def test_a_filter_that_reads_no_counts_and_is_taken_at_its_word_promises_too_little(fleet):
    with changed(intervals, UNREAD={}):
        runs = [run([fleet], seed, None, (*OURS, *READ["off"]))[0] for seed in range(2)]
    assert expected_over_actual(fleet, runs) < 0.85


def test_counts_kept_back_cost_a_little_and_not_twice_the_error(fleet):
    shown, kept_back = (
        np.mean([fleet.over_constant(run([fleet], seed, None, (*OURS, *READ[of]))[0].value) for seed in range(2)])
        for of in ("off", "none")
    )
    assert shown < kept_back < 1.1 * shown
