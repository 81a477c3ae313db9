"""Every statistic, by brute force: no plate moves it by more than it is charged for, and some move
it by all of that."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from shapely import box

from streams.wire import PingChunk, cut_pings, merge_pings
from tests.forms import long_but, soaked_rows
from tests.privacy.sensitivity import (
    COUNTS,
    FEW,
    KINDS,
    MORNING,
    VISITS,
    Hat,
    Loss,
    U,
    check_bias,
    check_sensitivity,
    hat_of,
    losses,
    of_hat,
    rows_of,
    subsets,
    together,
)
from tests.unit.test_movement import HOUR, RULES, values_of
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.ids import CITY_HOUR
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.add_remove import (
    GAIN,
    Entries,
    PlateQuery,
    allowances,
    entries,
    noised,
    of_day,
    shortened,
)
from udp_stream.mechanisms.around import AROUND, FORECAST_CLIP, ForecastClip, plan_around
from udp_stream.mechanisms.base import Query, Range, SamplesPerPlate
from udp_stream.mechanisms.cdf import plan_cdf
from udp_stream.mechanisms.means import (
    MECHANISMS,
    ArrayAveraging,
    Baseline,
    OptimalCappedSum,
    means_of_arrays,
    projected_queries,
)
from udp_stream.mechanisms.noise import concentrated, lattice_of, pure
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.mechanisms.variance import plan_variance
from udp_stream.mechanisms.widths import HALF_WIDTHS, ClipWidth
from udp_stream.planning.slot import CityPlan
from udp_stream.queries.elimination import BandRule, QueryBudget, Split, Tariff
from udp_stream.queries.plane import QUANTA_PER_KM, Rectangle, rho_per_square_metre
from udp_stream.release import city
from udp_stream.release.city import (
    CityTree,
    HourMean,
    city_sums,
    hour_answer,
    hour_charges,
    hour_residuals,
    sample_weights,
    weights_of_plates,
)
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release
from udp_stream.testing import a_context, seeded_bits, seven_pings
from udp_stream.windows.grid import HEXAGONS, Hexagons
from udp_stream.windows.headings import Headings, by_movement
from udp_stream.windows.movement import places_of
from udp_stream.windows.tables import SlotCounts, SlotPings, SlotValues, tabulate
from udp_stream.windows.zones import Zones

GROUPINGS = "best-fit", "wrap-around"


def capped(hat):
    counts = SamplesPerPlate(np.array(hat.counts))
    yield Baseline().plan(counts, hat.cost, hat.range, "best-fit")
    yield OptimalCappedSum().plan(counts, hat.cost, hat.range, "best-fit")
    for fill in (0, hat.range.width // 3, hat.range.width):
        yield OptimalCappedSum().plan_with_fill(counts, hat.cost, hat.range, fill)


def averaged(hat):
    counts = SamplesPerPlate(np.array(hat.counts))
    for grouping, cap in product(GROUPINGS, range(1, counts.largest + 1)):
        yield ArrayAveraging().plan(counts, hat.cost, hat.range, grouping, cap)


def around(hat):
    """Wherever the forecasts lie, and however wide the clip is."""
    dice = np.random.default_rng(sum(hat.counts))
    low, high = hat.range.low, hat.range.high
    plates = len(hat.counts)
    for width in (HALF_WIDTHS[0], HALF_WIDTHS[-1]):
        for at in (np.full(plates, low), np.full(plates, high), dice.integers(low, high, plates)):
            forecast = ForecastClip(low + 4, at, ClipWidth(width, 0.9))
            yield plan_around(SamplesPerPlate(np.array(hat.counts)), forecast, hat.cost, hat.range)


def varied(hat):
    counts = SamplesPerPlate(np.array(hat.counts))
    for cap in range(1, counts.largest + 1):
        yield plan_variance(counts, hat.cost, hat.range, cap)


def distributed(hat):
    counts = SamplesPerPlate(np.array(hat.counts))
    kmh = hat.range.high / QUANTA_PER_KMH
    for bins, branching in (
        (2, "auto"),
        (5, "auto"),
        ((0.0, 0.0, kmh / 4, kmh), "auto"),
        (8, (2, 2, 2)),
    ):
        yield plan_cdf(counts, hat.cost, kmh, bins, branching=branching)


ROWS = {
    "capped mean": (STATISTICS["mean"], capped, np.mean),
    "averaged mean": (STATISTICS["mean"], averaged, np.mean),
    "mean around forecasts": (STATISTICS[FORECAST_CLIP], around, None),
    "variance": (STATISTICS["variance"], varied, np.var),
    "cdf": (STATISTICS["cdf"], distributed, None),
}


@pytest.mark.parametrize("counts", long_but(FEW, COUNTS), ids=str)
@pytest.mark.parametrize(
    ("name", "kind"), [row for row in product(ROWS, KINDS) if row != ("cdf", "coarse")]
)
def test_no_plate_of_a_hat_loses_more_than_its_charge_and_each_that_is_charged_all_of_it(
    name, kind, counts
):
    statistic, plans, _ = ROWS[name]
    check_sensitivity(of_hat(statistic, plans), hat_of(counts, kind), 0.99)


@pytest.mark.parametrize("kind", ["pure", "shifted"])
@pytest.mark.parametrize("counts", long_but(FEW, COUNTS), ids=str)
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[2]])
def test_a_bias_reaches_its_bound_and_never_exceeds_it(name, counts, kind):
    reached = check_bias(*ROWS[name], hat_of(counts, kind))
    assert reached == 0 or reached > 0.99


def projected(hat):
    """The sum of array means in each interval that may have been found; and the penalties that find
    its ends, which move by the arrays that a plate touches."""
    counts = SamplesPerPlate(np.array(hat.counts))
    ends = 0, hat.range.width // 3, hat.range.width
    for grouping, cap in product(GROUPINGS, range(1, counts.largest + 1)):
        plan = MECHANISMS["levy"].plan(counts, hat.cost, hat.range, grouping, cap)
        arrays = np.array([1 if grouping == "best-fit" else 2])

        def summed(samples, low, high, plan=plan):
            means = means_of_arrays(plan, samples)
            values, most = projected_queries(plan, means, np.array([low]), np.array([high]))
            return Query.of_one(int(values[0]), lattice_of(int(most[0]), plan.noise_cost))

        def penalty(samples, at, plan=plan, arrays=arrays):
            means = means_of_arrays(plan, samples)
            sides = max((means < at).sum(), (means > at).sum())
            return Query(np.array([sides]), arrays, np.ones(1, int))

        for low, high in combinations(ends, 2):
            draw = partial(summed, low=low, high=high)
            for lost in losses(hat.counts, hat.speeds, draw, hat.cost.measure):
                half = hat.cost.nano - hat.cost.nano // 2
                yield Loss(lost, Fraction(half, NANO), (grouping, cap, low, high))
        for at in ends:
            for lost in losses(hat.counts, hat.speeds, partial(penalty, at=at), "pure"):
                yield Loss(lost, Fraction(1), (grouping, cap, at))


def test_private_intervals_and_what_is_projected_to_them_move_as_charged():
    for counts in FEW:
        assert check_sensitivity(projected, hat_of(counts, "pure")) > 0.99
    in_two_arrays = Hat((3, 2, 2, 2), (0, U), Range(0, U), concentrated(NANO))
    assert check_sensitivity(projected, in_two_arrays) > 0.99


def shared_clip(hats, centres, width):
    """All HATs of a slot, in which each plate has one clip."""

    def neighbours(cost):
        dice = np.random.default_rng(len(hats))
        plans = []
        for counts in hats:
            at = (
                dice.integers(0, U + 1, len(counts))
                if centres is None
                else np.full(len(counts), centres)
            )
            around = ForecastClip(4, at, ClipWidth(width, 0.5, ball=True))
            plans.append(plan_around(SamplesPerPlate(np.array(counts)), around, cost, Range(0, U)))
        for admitted in subsets(len(hats[0])):
            left = [AROUND.subset(plan, admitted) for plan in plans]
            priced = sum(plan.charges[admitted] for plan in plans)
            charged = sum(plan.charges for plan in left)
            assert (charged <= priced).all()

            def draw(speeds, left=left):
                by_hat = speeds.reshape(-1, len(hats)).T
                samples = [
                    np.repeat(of, plan.counts.by_plate)
                    for of, plan in zip(by_hat, left, strict=True)
                ]
                return together(left, samples)

            knobs = [len(hats)] * charged.size
            lost = losses(knobs, (0, 20 * QUANTA_PER_KMH, U), draw, cost.measure)
            for plate, (loss, nano) in enumerate(zip(lost, charged.tolist(), strict=True)):
                yield Loss(loss, Fraction(nano, NANO), (admitted, plate))

    return neighbours


SLOTS = [
    ((1,),),
    ((2, 1),),
    ((1, 2), (2, 1)),
    ((1,), (2,), (1,)),
    ((3, 1), (1, 1), (2, 5)),
    ((1,),) * 4,
]
"""HATs, in each of them the pings of the same plates."""


@pytest.mark.parametrize("rho_nano", [64_000_000, 40])
@pytest.mark.parametrize(
    "hats", long_but([hats for hats in SLOTS if len(hats) != 3], SLOTS), ids=str
)
def test_no_plate_loses_more_than_its_charge_for_all_hats_that_share_its_clip(hats, rho_nano):
    cost = concentrated(rho_nano)
    check_sensitivity(shared_clip(hats, U // 2, 0.25), cost, 0.99 if rho_nano > 40 else 0.9)
    for width in (0.25, 0.5, *HALF_WIDTHS):
        check_sensitivity(shared_clip(hats, None, width), cost)


def of_city(cost):
    """The city's sums, of a plate with two samples in a HAT and three in another, and one of a
    single sample."""
    count, plate = np.array([2, 1, 3]), np.array([0, 1, 0])
    weights = sample_weights(count, plate)
    moves = np.bincount(plate, weights=weights * count).astype(int)
    tree = CityTree(cost, int(moves.max()), 7 * QUANTA_PER_KMH)
    order = np.array([0, 1, 5, 2, 3, 4])

    def draw(speeds):
        return tree.query(city_sums(tree, speeds[order], np.append(0, np.cumsum(count)), weights))

    values = 0, 3 * QUANTA_PER_KMH, 7 * QUANTA_PER_KMH
    lost = losses((5, 1), values, draw, cost.measure)
    for number, (loss, nano) in enumerate(zip(lost, tree.charges(moves).tolist(), strict=True)):
        yield Loss(loss, Fraction(nano, NANO), number)


@pytest.mark.parametrize("cost", [pure(NANO // 2), concentrated(NANO // 20)], ids=["pure", "rho"])
def test_the_city_s_sums_move_as_charged(cost):
    check_sensitivity(of_city, cost, 0.99)


COUNTED = SlotCounts(
    0,
    3_600_000,
    (b"a", b"b", b"c"),
    np.array([7, 9], np.uint64),
    hat_rows=np.array([0, 2, 5]),
    plate=np.array([0, 1, 0, 1, 2]),
    count=np.array([2, 1, 30, 5, 12]),
    repeats=0,
)
"""Plates in two HATs and in one, with more samples than weigh in full, and with fewer."""

HOURS = {
    "pure": pure(NANO // 5),
    "rho": concentrated(3_078_557),
    "coarse": pure(60),
}


DRIVEN = (0, 20 * QUANTA_PER_KMH, U)


def hour_of(planted, kmh, charges=hour_charges, speeds=DRIVEN):
    """The integer of the city's hour around these forecasts, for all of its plates and whichever of
    them the ledger may have admitted. A plate drives alike in all of its samples of a HAT."""
    caught = []

    def noisy(queries, family, bits):
        caught[:] = queries
        return [one.integers for one in queries]

    planted(city, noisy_integers=noisy)
    by_plate = np.argsort(COUNTED.plate, kind="stable")
    starts = np.append(0, np.cumsum(COUNTED.count))

    def neighbours(cost):
        weights = sample_weights(COUNTED.count, COUNTED.plate)
        moves = weights_of_plates(COUNTED, weights)
        about = msgspec.json.encode(HourMean(cost, int(moves.max()), (1.0,), 0.1))
        around = np.array(kmh) * QUANTA_PER_KMH
        whole = CityPlan(weights, weights, 3, about, CITY_HOUR, around)
        for admitted in subsets(3):
            plan = replace(whole, weights=np.where(admitted[COUNTED.plate], weights, 0))

            def draw(driven, plan=plan):
                of_rows = np.empty_like(driven)
                of_rows[by_plate] = driven
                values = SlotValues(np.repeat(of_rows, COUNTED.count), starts)
                off = hour_residuals(COUNTED, values, plan.around)
                hour_answer(off, COUNTED, plan, bytes)
                (query,) = caught
                return query

            paid = charges(weights_of_plates(COUNTED, plan.weights), plan).tolist()
            lost = losses((2, 2, 1), speeds, draw, cost.measure)
            for plate, (loss, nano) in enumerate(zip(lost, paid, strict=True)):
                yield Loss(loss, Fraction(nano, NANO), (admitted, plate))

    return neighbours


@pytest.mark.parametrize("kind", HOURS)
def test_no_plate_moves_the_city_s_hour_by_more_than_it_pays_for_and_each_by_all_of_it(
    planted, kind
):
    cost = HOURS[kind]
    middle = (20, 22, 18, 30, 25)
    if kind == "coarse":
        # The largest clip is two and a half steps of the lattice wide.
        between = hour_of(planted, middle, speeds=(0, 23 * QUANTA_PER_KMH, 27 * QUANTA_PER_KMH, U))
        assert check_sensitivity(between, cost) > 0.99
    else:
        assert check_sensitivity(hour_of(planted, middle), cost, 0.99) > 0.99
        assert max(one.charged for one in hour_of(planted, middle)(cost)) * NANO == cost.nano
    # At an end of the range a plate is within half of its clip; around no forecast it moves nothing.
    for kmh in ((1,) * 5, (65,) * 5, (20, 0, 0, 18, 25), (0,) * 5):
        check_sensitivity(hour_of(planted, kmh), cost)


@pytest.mark.parametrize("tenths", [7, 13])
@pytest.mark.parametrize("kind", ["pure", "rho"])
def test_a_charge_for_the_city_s_hour_that_is_30_percent_off_is_found(planted, kind, tenths):
    def charges(weights, plan):
        return hour_charges(weights, plan) * tenths // 10

    with pytest.raises(AssertionError):
        check_sensitivity(hour_of(planted, (20,) * 5, charges), HOURS[kind], 0.99)


def eliminated(terms):
    """Positions of a plate, near the edges and corners of a square and far from it, by the rounds
    of a query: what is lost of a distance, to what its charge allows."""
    square = Rectangle(0, 0, 1000, 1000)
    kind = terms.elimination(square.signed_distance, BandRule(0.0, 0.0)).privatised
    dice = np.random.default_rng(5)
    where = np.concatenate(
        [dice.integers(-16_000, 16_000, (40, 2)), dice.integers(7900, 8100, (40, 2))]
    )
    tariff = Tariff(
        kind.measure, terms.split, terms.budgets_nano, kind.sensitivity, kind.dimensions
    )
    values = kind.values(where).astype(float)
    power = 1 if kind.measure == "pure" else 2
    for number in range(terms.split.rounds):
        part = tariff.parts(number, np.zeros(1, np.int64))
        for one, other in combinations(range(len(where)), 2):
            apart = np.hypot(*(where[one] - where[other])) / QUANTA_PER_KM
            moved = np.linalg.norm(values[one] - values[other]) / part.scale[0]
            charged = float(part.charge[0]) / NANO * apart**power
            yield Loss(
                moved**power / power, charged * (1 + 1e-12), (number, where[one], where[other])
            )


@pytest.mark.parametrize("how", ["point", "distance"])
@pytest.mark.parametrize(
    "cost", [pure(5 * 10**10), rho_per_square_metre(1e-4)], ids=["pure", "rho"]
)
def test_each_round_of_elimination_loses_by_distance_what_it_is_charged(how, cost):
    terms = QueryBudget.alike(cost, 1, how, Split.doubling(4))
    assert check_sensitivity(eliminated, terms) > 0.98


def released(pings, grid=HEXAGONS):
    """Each HAT's mean, with the same noise for neighbours, and what each plate was charged: from
    the pings of sources on, through chunks, tables, plan and record."""
    chunks = [
        one
        for source, of in enumerate(pings)
        for one in cut_pings(of, source, 1)
        if isinstance(one, PingChunk)
    ]
    context, ledger = a_context(), MemoryLedger()
    policy = msgspec.structs.replace(context.policy, grid=grid, prices={"mean": 2 * NANO})
    contents = tabulate(merge_pings(chunks))
    payloads = release_slot(
        *contents, replace(context, policy=policy), ledger, lambda _: None
    ).payloads
    charged = {
        one.release_id: dict(zip(one.plates, one.charged.tolist(), strict=True))
        for one in ledger.entries()
    }
    return {id_: Release.decode(payload).mean for id_, payload in payloads.items()}, charged


def of_slots(neighbours):
    """Of pairs of slots that differ in a plate: counts, charges and scales are the same."""

    def pairs(seeds):
        for seed in seeds:
            whose, one, other, grid = neighbours(np.random.default_rng(seed))
            (here, charged), (there, charged_there) = released(one, grid), released(other, grid)
            assert charged == charged_there and here.keys() == there.keys()
            for id_, mean in here.items():
                if mean is None:  # a HAT of too few plates
                    assert there[id_] is None
                    continue
                assert mean.scale_kmh == there[id_].scale_kmh
                lost = abs(mean.value_kmh - there[id_].value_kmh) / mean.scale_kmh
                yield Loss(lost, charged[id_].get(whose, 0) / NANO + 1e-6, (seed, id_))

    return pairs


def repeated(dice):
    """Several pings of a plate and time, by two sources; a plate has other speeds throughout."""
    size, whose = 60, int(dice.integers(4))
    slots = []
    for _ in range(2):
        plate = dice.integers(0, 4, size).astype(np.uint32)
        time = dice.integers(0, 9, size).astype(np.uint32)
        cell = dice.choice(seven_pings().cell[-2:], size)
        speed = dice.integers(0, U, size, np.int32)
        slots.append(replace(seven_pings(), plate=plate, time=time, cell=cell, speed=speed))
    others = dice.integers(0, U, (2, size), np.int32)
    swapped = [
        replace(slot, speed=np.where(slot.plate == whose, other, slot.speed))
        for slot, other in zip(slots, others, strict=True)
    ]
    return seven_pings().plates[whose], slots, swapped, HEXAGONS


SQUARES = np.array([box(20.9, 52.1, 20.94, 52.13), box(20.94, 52.1, 20.98, 52.13)], dtype=object)
ZONES = Zones({}, ("west", "east"), {}, SQUARES)
GRIDS = {
    "movement": Hexagons(7),
    "2 headings": Headings(Hexagons(7), 2),
    "4 headings": Headings(Hexagons(7), 4),
    "zones": ZONES,
    "zones, 2 headings": Headings(ZONES, 2),
}
CELLS = sorted(Hexagons(7).cells_of(np.array([52.2, 52.22]), np.array([21.0, 21.04])).tolist())


def place_in(dice, grid, cell):
    corner = dice.choice(np.array(grid.rings_of(cell)[0]))
    share = dice.choice([0.01, dice.uniform(0, 1), 0.99])
    lon, lat = share * np.array(grid.center_of(cell)) + (1 - share) * corner
    return lat, lon


def derived(rows, places, grid):
    """The pings of a source with speeds by movement; a row is a plate, a second and a cell."""
    lat, lon = np.array(places).T
    plate, second, cell = np.array(rows, np.uint64).T
    assert (grid.cells_of(lat, lon) == cell).all()
    names = tuple(b"%d" % number for number in range(int(plate.max()) + 1))
    columns = (
        plate.astype(np.uint32),
        (1000 * second).astype(np.uint32),
        cell,
        np.zeros(len(rows), np.int32),
    )
    return by_movement(
        SlotPings(0, HOUR, names, *columns), places_of(lat), places_of(lon), RULES, grid
    )


def counted(pings, grid):
    """The cell that a plate and time count in, whichever way the plate goes."""
    keys = zip(pings.plate.tolist(), pings.time.tolist(), strict=True)
    return dict(zip(keys, map(grid.whole_of, pings.cell.tolist()), strict=True))


def elsewhere(dice, rows, places, grid):
    """Other places of plate 0 in the same cells, ping by ping, that leave it the same headings."""

    def cells(places):
        found = derived(rows, places, grid)
        return sorted(
            zip(found.plate.tolist(), found.time.tolist(), found.cell.tolist(), strict=True)
        )

    for at, row in enumerate(rows):
        others = [*places]
        others[at] = place_in(dice, grid, row[2])
        if not row[0] and cells(others) == cells(places):
            places = others
    return places


GAPS_S = 20, 20, 20, 0, 1, 5, 300, 301
"""Near and far, twice at one time, and out of reach."""


def displaced(grid):
    """Four plates in two cells: one is elsewhere in these, standing, or as fast as may be; with
    headings where these are the same."""
    whole = ZONES.domain.tolist() if grid.kind == "zones" else CELLS

    def neighbours(dice):
        rows = [
            (plate, second, whole[int(dice.integers(2))])
            for plate in range(4)
            for second in np.cumsum(dice.choice(GAPS_S, int(dice.integers(4, 12)))).tolist()
        ]
        places = [place_in(dice, grid, row[2]) for row in rows]
        if grid.headings > 1:
            anywhere = [
                place if row[0] else place_in(dice, grid, row[2])
                for row, place in zip(rows, places, strict=True)
            ]
            here, there = (counted(derived(rows, of, grid), grid) for of in (places, anywhere))
            assert all(there.get(key, cell) == cell for key, cell in here.items())
            others = elsewhere(dice, rows, places, grid)
        else:
            stands = grid.center_of(whole[0])[::-1]
            others = [
                place
                if row[0]
                else (stands if row[2] == whole[0] else place_in(dice, grid, row[2]))
                for row, place in zip(rows, places, strict=True)
            ]
        one, other = derived(rows, places, grid), derived(rows, others, grid)
        left, right = values_of(one), values_of(other)
        assert {key: len(of) for key, of in left.items()} == {
            key: len(of) for key, of in right.items()
        }
        assert (one.repeats, one.unpaired) == (other.repeats, other.unpaired)
        assert {plate for cell, plate in left if left[cell, plate] != right[cell, plate]} <= {b"0"}
        return b"0", [one], [other], grid

    return neighbours


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("repeats", 40),
        *((name, 15) for name in GRIDS),
        *soaked_rows([("repeats", 1000), *((name, 40) for name in GRIDS)]),
    ],
)
def test_a_slot_s_means_move_by_what_the_plate_is_charged(name, pairs):
    neighbours = repeated if name == "repeats" else displaced(GRIDS[name])
    assert check_sensitivity(of_slots(neighbours), range(pairs)) > 0.2


# "add-remove": noised sums. Earlier outputs reach a later slot by its forecasts alone, so all paths
# are all sequences of forecasts.

FULL, SIGMA, ACTIVE = 12, 40 * QUANTA_PER_KMH, 2
PATHS = list(product([(0, 65), (20, 18), (65, 0)], repeat=3))
EVERY_DAY = {str(number): day for number, day in enumerate(product(VISITS, repeat=3))}
CITY = {"city": GAIN // 3, "spread": GAIN // 2, "max_speed": U}
SUMS = {
    "cell x hour": {},
    "numbers of plates": {"plates": True},
    "with city and bins x hour, cell x day": CITY,
}


class Sums(NamedTuple):
    """A city of plates: their visits by slot, what each may spend, and what is asked of them."""

    plates: dict
    budget: int
    asked: dict


class Draw(NamedTuple):
    """Of each plate what is left of its vector, and what it was charged; the noised sums."""

    vectors: list
    charged: list
    out: np.ndarray
    sigma: int


def drawn(vectors, query, most, bits):
    plates = most.size
    charged = np.maximum(np.minimum(vectors.charges(plates, query), most), 0)
    kept = shortened(vectors, charged, query)
    of_plate = np.zeros((plates, 2, query.columns), np.int64)
    of_plate[kept.plate, 0, kept.cell] = kept.residual
    of_plate[kept.plate, 1, kept.cell] = kept.weight
    out = noised(kept, query.columns, query, seeded_bits(bits))
    return Draw(list(of_plate), charged.tolist(), out, query.sigma), charged


def day_of(city, path):
    """The draws of three slots and, where the city is asked, of the day. Equal bits give equal
    noise, whatever sums are."""
    left = np.full(len(city.plates), city.budget)
    reserved = city.budget // 4 if "city" in city.asked else 0
    draws, of_slots = [], []
    for slot, forecast in enumerate(path):
        rows = rows_of([visits[slot] for visits in city.plates.values()])
        query = PlateQuery(np.array(forecast) * QUANTA_PER_KMH, FULL, SIGMA, **city.asked)
        most = allowances(left - reserved, len(path) - slot, ACTIVE)
        draw, charged = drawn(entries(rows, query), query, most, slot)
        left = left - charged
        draws.append(draw)
        of_slots.append(entries(rows, PlateQuery(MORNING[slot], FULL, 1)))
    if "city" in city.asked:
        query = PlateQuery(np.zeros(2, np.int64), FULL, 90 * QUANTA_PER_KMH)
        whole = of_day(Entries(*map(np.concatenate, zip(*of_slots, strict=True))), 2)
        draws.append(drawn(whole, query, left, "day")[0])
    return draws


def rho_of(vector, sigma):
    return Fraction(int((vector.astype(object) ** 2).sum()), 2 * sigma * sigma)


def removed(city):
    """Each plate's removal, by its vectors: a draw's, and those of all draws in its period."""
    for path in PATHS:
        costs = dict.fromkeys(city.plates, Fraction())
        for draw in day_of(city, path):
            for name, vector, nano in zip(city.plates, draw.vectors, draw.charged, strict=True):
                cost = rho_of(vector, draw.sigma)
                costs[name] += cost
                yield Loss(cost, Fraction(nano, NANO), (path, name))
        for name, cost in costs.items():
            yield Loss(cost, Fraction(city.budget, NANO), (path, name, "all draws"))


@pytest.mark.parametrize("asked", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("budget", long_but([1, 2 * NANO], [1, NANO // 50, 2 * NANO, 90 * NANO]))
def test_no_day_of_a_plate_costs_more_than_its_charges_nor_these_more_than_its_budget(
    budget, asked
):
    city = Sums(EVERY_DAY, budget, asked)
    found = list(removed(city))
    reached = check_sensitivity(lambda _: iter(found), city)
    assert reached > 0.99 or budget == 1
    in_all = [loss for loss in found if loss.where[2:]]
    assert budget != 2 * NANO or check_sensitivity(lambda _: iter(in_all), city) > 0.99


@pytest.mark.parametrize("asked", SUMS.values(), ids=SUMS)
def test_neighbours_differ_by_the_vectors_of_the_plate_alone_on_every_path(asked):
    plates = {
        name: [VISITS[(at + 2 * slot) % len(VISITS)] for slot in range(3)]
        for at, name in enumerate("ABCDE")
    }
    moved = 0
    for path in PATHS:
        whole = day_of(Sums(plates, 2 * NANO, asked), path)
        for at, plate in enumerate(plates):
            others = {name: visits for name, visits in plates.items() if name != plate}
            fewer = day_of(Sums(others, 2 * NANO, asked), path)
            for one, other in zip(whole, fewer, strict=True):
                assert np.array_equal(one.out - other.out, one.vectors[at])
                assert one.charged[:at] + one.charged[at + 1 :] == other.charged
                assert np.array_equal(one.vectors[:at] + one.vectors[at + 1 :], other.vectors)
                moved += one.vectors[at].any(axis=0)[-1]
    assert moved > 100


@pytest.mark.parametrize("plates", [False, True])
def test_two_plates_in_place_of_each_other_differ_by_at_most_four_budgets(plates):
    apart = Fraction()
    for path in PATHS:
        draws = day_of(Sums(EVERY_DAY, NANO, {"plates": plates}), path)
        sent = np.concatenate(
            [np.array(draw.vectors).reshape(len(EVERY_DAY), -1) for draw in draws], axis=1
        )
        most = max(int(((sent - one) ** 2).sum(axis=1).max()) for one in sent)
        apart = max(apart, Fraction(most, 2 * SIGMA**2))
    assert (2 if plates else 3) < apart <= 4
