"""How far one plate can move what noise is added to, beside what the plate is charged for it: exact,
before noise, over all neighbours of tiny cities, or a seeded sample where all are too many.

A statistic is a generator: of a city it yields pairs of neighbours, each with what the noise lets
the plate lose, and what the plate was charged, both as exact numbers of epsilon or rho.
"""

from fractions import Fraction
from itertools import product
from typing import NamedTuple

import numpy as np

from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.mechanisms.add_remove import PlateRows
from udp_stream.mechanisms.around import (
    PlateNorms,
    checks_of,
    merged_norms,
    norms_of,
    room_and_rounding,
    shrunk_sum,
)
from udp_stream.mechanisms.base import Query, Range
from udp_stream.mechanisms.cdf import city_bins
from udp_stream.mechanisms.noise import Cost, concentrated, lattice_of, pure


class Loss(NamedTuple):
    """What neighbours lose, and what that plate was charged."""

    lost: Fraction | float
    charged: Fraction | float
    where: object


def check_sensitivity(statistic, city, least=0.0):
    """The largest share of a charge that neighbours of the city lose: never above 1. No plate that
    is charged loses less than `least` of it."""
    found = 0.0
    for lost, charged, where in statistic(city):
        assert lost <= charged, where
        assert lost >= least * charged, where
        found = max(found, float(lost / charged) if charged else 0.0)
    return found


class Hat(NamedTuple):
    """A city of one HAT: the samples of each plate, the values that each sample takes in turn, the
    range that counts, and what a release may cost."""

    counts: tuple[int, ...]
    speeds: tuple[int, ...]
    range: Range
    cost: Cost


U = 65 * QUANTA_PER_KMH
COARSE = 2**28 + 3
"""A limit for which noise lives on a coarser lattice than the statistic, so that rounding costs."""

SHIFT = 17 * QUANTA_PER_KMH + 5
KINDS = {
    "pure": ((0, U // 3, U), Range(0, U), pure(NANO)),
    "rho": ((0, U // 3, U), Range(0, U), concentrated(64_000_000)),
    "coarse": ((0, 1, COARSE), Range(0, COARSE), pure(370_000_001)),
    "shifted": ((0, 30 * QUANTA_PER_KMH, 2**30), Range(SHIFT, SHIFT + U), concentrated(NANO)),
}
COUNTS = [
    counts
    for plates in (1, 2, 3)
    for counts in product((1, 2, 3), repeat=plates)
    if sum(counts) <= 6 or counts == (3, 2, 2)
]
"""Among them plates that give as many as the first, that share an array in uneven parts, and of
which a part is poured."""
FEW = [(1,), (3,), (2, 1), (1, 3), (2, 2), (1, 1, 2), (1, 2, 3)]


def hat_of(counts, kind):
    return Hat(counts, *KINDS[kind])


def subsets(plates):
    for picked in product((False, True), repeat=plates):
        if any(picked):
            yield np.array(picked)


def losses(knobs, values, draw, measure):
    """The most that each plate loses: each of its knobs takes each of the values, as do those of the
    others, which neighbours share."""
    queries = [draw(np.array(row)) for row in product(values, repeat=sum(knobs))]
    first = queries[0]
    table = np.stack([query.integers for query in queries])
    table = table.reshape(*(len(values),) * sum(knobs), -1)
    power = 1 if measure == "pure" else 2
    found = []
    start = 0
    for count in knobs:
        own = np.moveaxis(table, range(start, start + count), range(count))
        own = own.reshape(len(values) ** count, -1, table.shape[-1])
        moved = np.abs(own[:, None] - own[None]).reshape(-1, table.shape[-1])
        size = ((moved * (first.s / first.t)) ** power).sum(axis=1)
        farthest = np.unique(moved[size >= size.max() * (1 - 1e-9)], axis=0)
        found.append(max(_exact(row, first, power) for row in farthest.tolist()))
        start += count
    return found


def _exact(moved, query, power):
    scales = zip(query.t.tolist(), query.s.tolist(), strict=True)
    return sum(
        (
            Fraction(move * s, t) ** power / power
            for move, (t, s) in zip(moved, scales, strict=True)
        ),
        Fraction(),
    )


def of_hat(statistic, plans):
    """A statistic of a HAT, for all of its plates, of which one pays all of its cost, and whichever of
    them the ledger may have admitted: those have paid for the plan of all."""

    def neighbours(city):
        counts = np.array(city.counts)
        for plan in plans(city):
            most = int(plan.charges.max())
            assert most <= city.cost.nano
            # The plate with most samples may lie in an array that is dropped; alone it moves no variance.
            is_whole = most == 0 or getattr(plan, "grouping", None) == "wrap-around"
            assert is_whole or most > 0.99 * city.cost.nano, plan
            for admitted in subsets(counts.size):
                final = statistic.subset(plan, admitted)
                paid = plan.charges[admitted]
                assert (final.charges <= paid).all()

                def draw(samples, final=final):
                    return statistic.query(final, samples, bytes)

                lost = losses(counts[admitted].tolist(), city.speeds, draw, city.cost.measure)
                for number, (loss, nano) in enumerate(
                    zip(lost, final.charges.tolist(), strict=True)
                ):
                    yield Loss(loss, Fraction(nano, NANO), (plan, admitted, number))

    return neighbours


def check_bias(
    statistic,
    plans,
    truth,
    city,
):
    """The largest share of its bound that a bias reaches without noise: never above 1 by more than
    the statistic's rounding."""
    counts, found = np.array(city.counts), 0.0
    rows = np.array(list(product(city.speeds, repeat=sum(city.counts))))
    for plan in plans(city):
        for admitted in subsets(counts.size):
            final = statistic.subset(plan, admitted)
            kept = np.unique(rows[:, np.repeat(admitted, counts)], axis=0)
            queries = [statistic.query(final, row, bytes) for row in kept]
            values = [final.value(query.noisy_value(query.integers)) for query in queries]
            truths = [truth(row.clip(city.range.low, city.range.high)) for row in kept]
            off = float(np.abs(np.subtract(values, truths)).max())
            rounding = 2 + (1 << queries[0].lattice.shift) / final.divisor
            assert off <= final.bias_bound + rounding, (final, admitted)
            found = max(found, off / final.bias_bound if final.bias_bound else 0.0)
    return found


def norms(plans, samples):
    """Norms of plates that share a clip among the HATs of these plans."""
    plates = tuple(bytes([97 + number]) for number in range(plans[0].counts.plates))
    once = np.ones(len(plates), np.int64)
    of_hats = []
    for cell, (plan, speeds) in enumerate(zip(plans, samples, strict=True)):
        room, rounding = room_and_rounding(plan)
        norm = norms_of(plan, speeds)
        checks = checks_of(np.stack([np.full_like(norm, cell), room, rounding, norm]))
        of_hats.append(PlateNorms(plates, once, room, rounding, norm, checks))
    return merged_norms(of_hats)


def together(plans, samples):
    """What noise is added to in all of these HATs, each plate shortened by its factor."""
    whole = norms(plans, samples)
    factors = whole.factors(dict.fromkeys(whole.plates, len(plans)))
    lattices = [lattice_of(plan.sensitivity, plan.cost) for plan in plans]
    sums = [
        lattice.project(shrunk_sum(plan, speeds, np.array(list(factors.values()))))
        for lattice, plan, speeds in zip(lattices, plans, samples, strict=True)
    ]
    scales = np.array([lattice.t for lattice in lattices])
    return Query(np.array(sums), scales, np.ones_like(scales))


# What plates do under "add-remove".

VISITS = (
    (), ((0, 1, 0),), ((0, 5, 65),), ((1, 2**28, 1000),), ((0, 3, 18), (1, 9, 33)), ((1, 1, 19),),
)  # fmt: skip
"""What a plate may do in a slot: cell, pings, mean speed in km/h. Two cells; a plate may be away."""

MORNING = np.array([[20, 18], [10, 30], [25, 22]]) * QUANTA_PER_KMH
"""Forecasts of three slots in two cells, made in the morning."""


def rows_of(visits):
    """Rows of the plates' visits, each with all pings in the bin of its mean speed."""
    rows = [
        (number, cell, pings, pings * kmh * QUANTA_PER_KMH)
        for number, of_plate in enumerate(visits)
        for cell, pings, kmh in of_plate
    ]
    found = PlateRows(*np.array(rows, np.int64).reshape(-1, 4).T)
    bins = np.zeros((len(rows), city_bins(U).count), np.int64)
    bins[np.arange(len(rows)), city_bins(U).bin_of(found.speed // found.pings)] = found.pings
    return found._replace(bins=bins)
