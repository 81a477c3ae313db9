"""Whole days through the embedded runtime, with means around forecasts: what one plate loses, and
what plans read."""

import ast
import json
from datetime import datetime
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from tests.forms import PURE_ENV, long_but
from tests.privacy.replayed import Named, audited, played
from tests.runtime.harness import frames_of
from udp_stream.base.units import NANO
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.forecast import shape
from udp_stream.ledger.filters import rho_nano_of
from udp_stream.ledger.ids import CITY, CITY_HOUR, kind_of
from udp_stream.mechanisms.around import FORECAST_CLIP
from udp_stream.mechanisms.base import Query
from udp_stream.mechanisms.noise import Lattice, counts_scale
from udp_stream.planning import plan as hat_plan
from udp_stream.planning.plan import HatPlans
from udp_stream.release import charge as context
from udp_stream.release import city
from udp_stream.settings import load
from udp_stream.sources.fleet import IST, Fleet, Imperfections
from udp_stream.windows.tables import SlotPings, SlotValues

MEAN = ("hat.slot=30m", "hat.resolution=7", "release.min_plates=3", "release.mean=forecast-clip")
WITH_CDF = (*MEAN, "release.cdf=tree", "release.cdf_epsilon=0.3", "release.variance_epsilon=0.1")
PRICES = (*MEAN, "release.cdf_epsilon=0", "release.mean_epsilon=auto")
"""A pace that is reached: HATs are offered at a price or, where too few plates can pay, at a
quarter of it."""
IN_RHO = (*WITH_CDF, "budget.accounting=approximate")
ROOMS = Path(__file__).parents[2] / "udp_stream"


@cache
def day():
    start = datetime(2024, 1, 8, 8, 0, tzinfo=IST)
    fleet = Fleet(
        seed=3,
        buses=50,
        start=start,
        hours=3.0,
        ping_seconds=30,
        imperfections=Imperfections.none(),
    )
    return [json.loads(message) for batch in fleet.messages() for message in batch]


@cache
def messages():
    return [json.dumps(ping).encode() for ping in day()]


def with_speeds(speed_of):
    for ping, message in zip(day(), messages(), strict=True):
        speed = speed_of(ping)
        yield message if speed is None else json.dumps(ping | {"speed": speed}).encode()


def of_plate(plate, speed):
    return list(with_speeds(lambda ping: speed if ping["license_plate"] == plate else None))


def redrawn(seed, since="", before="9"):
    rng = np.random.default_rng(seed)
    inside = lambda ping: since <= ping["observationDateTime"] < before  # noqa: E731
    return list(with_speeds(lambda ping: int(rng.integers(0, 66)) if inside(ping) else None))


def key_of(plate):
    return blake2b(plate.encode(), digest_size=16).digest()


def run(sent, seed, flags=MEAN, given=None, steer=None):
    """A day through the embedded runtime."""
    settings = load(None, flags, PURE_ENV)

    def go(_, this):
        def publish(releases):
            this.payloads.extend(one.payload for one in releases)

        EmbeddedRuntime(settings, this.ledger, Named(seed), key_of, "udp-stream test", publish).run(
            frames_of(sent)
        )

    return played([None], go, given, steer)


def day_audited(plate, seed, flags=MEAN, steer=None):
    fast = run(of_plate(plate, 65), seed, flags, steer=steer)
    slow = run(of_plate(plate, 0), seed, flags, given=fast)
    # Same counts, same outputs: the same plans, charges and order.
    assert slow.ledger.calls == fast.ledger.calls and slow.payloads == fast.payloads
    return audited(fast, slow, key_of(plate))


@pytest.fixture(scope="module")
def busiest():
    ledger = run(list(with_speeds(lambda _: None)), "which").ledger
    plates = sorted({ping["license_plate"] for ping in day()})
    return sorted(plates, key=lambda plate: -sum(ledger.charged_by_period(key_of(plate)).values()))


@pytest.mark.parametrize(
    ("flags", "seeds"),
    [
        pytest.param(WITH_CDF, 2, id="mean, variance, cdf, twice"),
        pytest.param(PRICES, 1, id="prices and quarters"),
        pytest.param(IN_RHO, 2, id="in rho, twice"),
        pytest.param(WITH_CDF, 4, id="mean, variance, cdf", marks=pytest.mark.soak),
        pytest.param(MEAN, 2, id="mean", marks=pytest.mark.long),
        pytest.param(IN_RHO, 12, id="in rho", marks=pytest.mark.long),
    ],
)
def test_what_a_plate_loses_stays_under_its_ledger_whatever_history_the_noise_makes(
    busiest, flags, seeds
):
    runs = [day_audited(busiest[0], seed, flags) for seed in range(seeds)]
    budget, share = (rho_nano_of(10 * NANO, 1e-6), 0.6) if flags is IN_RHO else (10 * NANO, 0.8)
    if flags is not IN_RHO:
        runs += [day_audited(busiest[7], 4, flags)]
    for one in runs:
        assert one.most <= one.charged <= budget
        # There is something to lose, and it is seen.
        assert one.charged > budget / 10 and one.most > share * one.charged
    terms = {str(one.first.ledger.calls) for one in runs[:seeds]}
    assert len(terms) == seeds  # each history made other plans
    if flags is not IN_RHO:
        assert all(abs(one.seen) <= one.most * (1 + 1e-9) for one in runs)
        return
    off = [one.off for one in runs]
    assert max(map(abs, off)) < 5  # else the noise is of another kind or scale
    assert seeds < 12 or (abs(np.mean(off)) < 1.0 and 0.5 < np.sqrt(np.mean(np.square(off))) < 1.6)


OTHERS = {
    "auto": ((*MEAN, "release.mean=auto", "budget.epsilon=100"), 0.1),
    "optimal in rho": ((*IN_RHO, "release.mean=optimal", "release.mean_epsilon=0.3"), 0.3),
}


@pytest.mark.parametrize("name", OTHERS)
def test_so_it_does_where_other_mechanisms_are_taken(busiest, name):
    flags, share = OTHERS[name]
    one = day_audited(busiest[0], 1, flags)
    assert share * one.charged < one.most <= one.charged
    records = [json.loads(payload) for payload in one.first.payloads]
    made = [record for record in records if record["status"] == "released"]
    taken = {record["mean"]["mechanism"] for record in made}
    if name == "auto":
        assert abs(one.seen) <= one.most and FORECAST_CLIP in taken and len(taken) > 1
    else:
        assert len(made) > 5 and taken == {"optimal"}
        assert all(record["variance"] and record["cdf"] for record in made)


@pytest.mark.parametrize("seed", long_but([0], range(2)))
def test_outputs_that_tell_the_most_tell_what_the_ledger_says_and_no_more(busiest, seed):
    """Noise that always leans to the fast day: a history in which every release counts in full."""
    one = day_audited(busiest[0], seed, steer=np.abs)
    assert 0.95 * one.charged < one.seen <= one.charged


def test_what_the_city_is_asked_is_part_of_what_a_plate_loses(planted, limits, busiest):
    """Fifty buses are few for a city, so it is made to ask. Noise that is 30 % too small shows."""
    limits(shape, PLATES_MIN=10.0, NOISE_MAX=99.0)
    one = day_audited(busiest[0], 3)
    asked = [entry for entry in one.first.ledger.entries() if kind_of(entry.release_id) == CITY]
    assert len(asked) == 2 and all(
        entry.payload and entry.charged.max() == NANO // 2 for entry in asked
    )
    assert abs(one.seen) <= one.most <= one.charged <= 10 * NANO and one.most > 0.95 * one.charged
    planted(city, counts_scale=lambda moved, cost: counts_scale(moved * 7 // 10, cost))
    narrow = day_audited(busiest[0], 3)
    assert narrow.most > narrow.charged + NANO // 4


@pytest.mark.parametrize(
    "flags", [MEAN, (*MEAN, "budget.accounting=approximate")], ids=["pure", "rho"]
)
def test_what_the_city_is_asked_of_each_hour_is_part_of_what_a_plate_loses(limits, busiest, flags):
    """The same, before the HATs of every slot, which are then planned around what was told."""
    limits(city, HOUR_PLATES_MIN=1, HOUR_DEVIATION_MAX=np.inf)
    one = day_audited(busiest[0], 4, flags)
    ledger = one.first.ledger
    asked = [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY_HOUR]
    assert len(asked) == len(ledger.slots()) > 5 and all(entry.payload for entry in asked)
    assert one.most <= one.charged and (flags is not MEAN or abs(one.seen) <= one.most)
    order = [kind_of(id_) for id_ in ledger.by]
    assert order[0] == CITY_HOUR and order.count(CITY_HOUR) == len(asked)


@pytest.mark.parametrize(("flags", "tenths"), [(MEAN, 7), (IN_RHO, 8)], ids=["pure", "rho"])
def test_noise_that_is_too_small_is_caught(planted, busiest, flags, tenths):
    honest = Query.of_one

    def narrow(statistic, lattice, *more):
        return honest(statistic, Lattice(lattice.t * tenths // 10, lattice.shift), *more)

    planted(Query, of_one=narrow)
    one = day_audited(busiest[0], 1, flags, steer=np.abs if flags is MEAN else None)
    least = 1.3 * one.charged if flags is MEAN else one.charged
    assert one.most > least and (flags is IN_RHO or one.seen > least)


@pytest.mark.parametrize(
    "forgotten", long_but(["variance", FORECAST_CLIP], ["cdf", "variance", FORECAST_CLIP])
)
def test_a_charge_that_forgets_a_statistic_is_caught(planted, busiest, forgotten):
    honest = HatPlans.plan_hat

    def cheaper(self, by_plate, terms):
        plan = honest(self, by_plate, terms)
        charges = plan.charges - plan.statistics[forgotten].charges
        return hat_plan.HatPlan(plan.terms, plan.by_plate, plan.statistics, np.maximum(1, charges))

    planted(HatPlans, plan_hat=cheaper)
    one = day_audited(busiest[0], 1, WITH_CDF)
    assert one.most > one.charged


def test_plans_of_a_slot_do_not_see_its_speeds_and_later_ones_see_its_releases():
    as_it_was = run(redrawn(0, before=""), 5)
    another = run(redrawn(1, since="2024-01-08T09:00", before="2024-01-08T09:30"), 5)
    slots = as_it_was.ledger.slots()
    at = slots.index(int(datetime(2024, 1, 8, 9, 0, tzinfo=IST).timestamp()))
    for start in slots[: at + 1]:
        assert as_it_was.ledger.asked_in(start) == another.ledger.asked_in(start) != []
    assert as_it_was.ledger.asked_in(slots[at + 1]) != another.ledger.asked_in(slots[at + 1])


@pytest.mark.parametrize("flags", [WITH_CDF, PRICES, (*PRICES, "budget.accounting=approximate")])
def test_plans_are_the_same_where_all_speeds_are_others_and_all_releases_are_the_same(flags):
    first = run(redrawn(0, before=""), 6, flags)
    second = run(redrawn(2), 7, flags, given=first)
    assert first.ledger.calls == second.ledger.calls and first.payloads == second.payloads
    terms = [
        json.loads(one[4])
        for call in first.ledger.calls
        for one in call[3]
        if kind_of(one[0]) == "hat"
    ]
    prices = {one["statistics"][0]["epsilon_nano"] for one in terms if one.get("statistics")}
    assert flags is WITH_CDF or max(prices) > 3 * min(prices)
    exact = [
        [one.integers.tolist() for of in run.queries.values() for one in of]
        for run in (first, second)
    ]
    assert exact[0] != exact[1]


def test_nobody_who_plans_or_forecasts_can_be_handed_a_speed():
    for path in [*(ROOMS / "forecast").rglob("*.py"), *(ROOMS / "planning").rglob("*.py")]:
        named = {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }
        imported = {name.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
                    for name in node.names}  # fmt: skip
        assert not {SlotValues.__name__, SlotPings.__name__} & (named | imported), path
    hints = get_type_hints(context.Planner.plan)
    handed = {*get_type_hints(hints["slot"]).values(), hints["balances"]}
    assert not {SlotValues, SlotPings} & handed and len(handed) == 7
