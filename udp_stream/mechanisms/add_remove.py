"""Noised sums that hide a whole plate: its vector of a slot, what the vector costs, how it is
shortened to its charge.

A plate has two entries in each cell of a public domain: a *residual*, its weight there times (its
mean speed - the cell's forecast), and a *weight*. If the city is asked, too, it has two more: the
sums of both over the domain, times a public gain. If it is asked how speeds spread, it has an entry
for each of some bins of speed: its time at them, times a gain. The vector of a whole day has the
sums of each cell over the day's slots. Released are sums over plates plus discrete Gaussian noise of a public
sigma. A plate pays the squares of its own entries over 2 sigma^2, in nano-rho, rounded up.

Privacy unit: license plate. Neighbours: add-remove, of all that a plate sends in a budget period.
Assumed: rows, charges and factors are secret; the query follows from settings and earlier outputs.
No function here lets the rows or the charge of a plate change the entries, the charge or the factor
of another plate. So the sums of neighbours differ by the vector of a single plate, and its squares
cost at most its charge: an individual filter (Feldman and Zrnic, arXiv 2008.11193) over releases
that are rho-zCDP (arXiv 2004.00010, Theorem 14). Proof: docs/mechanisms/add_remove.md. Not from a
paper: the vector. All arithmetic is of integers.
"""

from __future__ import annotations

from math import isqrt
from typing import Final, NamedTuple

import numpy as np

from udp_stream.base.arrays import Integers
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.cdf import city_bins
from udp_stream.mechanisms.samplers import SCALE_MAX, discrete_gaussian

CLIP: Final = 60 * QUANTA_PER_KMH
"""A plate's mean speed counts up to this far from the forecast."""

WEIGHT: Final = 5 * QUANTA_PER_KMH
"""The entry of a weight of 1, or of a plate, in the second vector. Its unit is that of the
residuals: both get the same sigma."""

SLOT_WEIGHT: Final = 5
"""The weight of a whole slot; a plate gets at most half of it in a cell."""

GAIN: Final = 1 << 16
"""The unit of the gain of a city's entries."""

CITY_WEIGHT: Final = (1, 2)
DAY_WEIGHT: Final = (4, 5)
"""The part of the entries of weights that counts in a city's sums, and in a day's."""

DAY_MOST: Final = 2**24
"""Largest entry of a day, 4096 km/h."""

CELLS_MAX: Final = 2**20
"""Largest number of cells of a domain. An entry of a slot is below 2**20, a city's below 2**21."""

SPREAD: Final = WEIGHT * SLOT_WEIGHT
"""The entry of a whole slot at speeds of a bin, before its gain; a plate gets at most half of it."""

FULL_MAX: Final = 2**32
"""Pings of a whole slot."""

CHARGE_MAX: Final = 2**53 - 1
"""The largest charge that a ledger takes, in nano-rho: above every budget, so above every
allowance."""

_SHIFT = 32
"""Factors are multiples of 2**-32."""


class PlateRows(NamedTuple):
    """A row for each plate and cell of the domain where it was in the slot. Secret.

    `plate` and `cell` are numbers, `pings` at least 1, `speed` the sum of their speeds in quanta.
    `bins` has the pings of each bin of speed, shape (rows, bins), where their spread is asked.

    >>> PlateRows(plate=np.array([0]), cell=np.array([2]), pings=np.array([15]), speed=np.array([15 * 81_920])).pings
    array([15])
    """

    plate: Integers
    cell: Integers
    pings: Integers
    speed: Integers
    bins: Integers | None = None


class PlateQuery(NamedTuple):
    """Query that every plate of a slot answers. Public: settings, and forecasts from earlier
    outputs.

    `forecast` is in quanta, of each cell of the domain; `full` the pings of a whole slot; `sigma`
    in quanta. With `plates` the second vector counts plates, else it sums weights. `city` is the
    gain of the city's entries, in `GAIN`; 0 where it is not asked. Its cell is behind the others.
    `spread` is the gain of the time in each of the city's bins of speeds up to `max_speed`, in
    quanta: two bins for each cell behind all others.

    >>> PlateQuery(forecast=np.array([18, 25]) * 4096, full=60, sigma=500_000).plates
    False
    """

    forecast: Integers
    full: int
    sigma: int
    plates: bool = False
    city: int = 0
    spread: int = 0
    max_speed: int = 0

    @property
    def cells(self) -> int:
        """The number of cells, with the city's."""
        return self.forecast.size + (self.city > 0)

    @property
    def bins(self) -> int:
        return city_bins(self.max_speed).count if self.spread else 0

    @property
    def columns(self) -> int:
        """The number of cells, with those of the city and of the bins."""
        return self.cells + -(-self.bins // 2)

    def require_valid(self) -> None:
        """Raise ValueError for a query whose sums could outgrow 64 bits, or whose noise cannot be
        drawn."""
        if not (1 <= self.full <= FULL_MAX and 1 <= self.sigma <= SCALE_MAX):
            raise ValueError(
                f"expected 1 <= full <= {FULL_MAX} pings and 1 <= sigma <= {SCALE_MAX} quanta, "
                f"got {self.full} and {self.sigma}"
            )
        for gain in (self.city, self.spread):
            if not 0 <= gain <= GAIN or (gain and self.plates):
                raise ValueError(
                    f"expected a gain of 0 to {GAIN}, 0 where plates are counted, got {gain}"
                )
        if self.forecast.size > CELLS_MAX or self.forecast.min(initial=0) < 0:
            raise ValueError(
                f"expected forecasts >= 0 of at most {CELLS_MAX} cells, got {self.forecast.size}"
            )


class Entries(NamedTuple):
    """The vectors of plates, where they are not 0: a row for each plate and cell. Secret.

    >>> query = PlateQuery(forecast=np.array([18 * 4096]), full=60, sigma=4096 * 60)
    >>> rows = PlateRows(*(np.array([number]) for number in (0, 0, 12, 12 * 20 * 4096)))
    >>> vectors = entries(rows, query)  # a fifth of a slot, 2 km/h above the forecast: (2^2 + 5^2) / (2 * 60^2)
    >>> vectors.residual / 4096, vectors.weight / 4096, vectors.charges(plates=1, query=query)
    (array([2.]), array([5.]), array([4027778]))
    """

    plate: Integers
    cell: Integers
    residual: Integers
    weight: Integers

    def charges(self, plates: int, query: PlateQuery) -> Integers:
        """Cost of the whole vector of each of `plates` plates: nano-rho, rounded up, at most
        `CHARGE_MAX`.

        A plate without an entry, or with zeros alone, costs 0.
        """
        under = 2 * query.sigma**2
        both = zip(
            _squares(self.plate, self.weight, plates),
            _squares(self.plate, self.residual, plates),
            strict=True,
        )
        return np.array([min(-(-(a + b) * NANO // under), CHARGE_MAX) for a, b in both], np.int64)


def entries(rows: PlateRows, query: PlateQuery) -> Entries:
    """Each row's residual and weight: functions of the row and the query alone, rounded towards
    zero.

    ValueError if a plate has two rows in a cell, and for rows outside of the domain.
    """
    query.require_valid()
    plate, cell, pings, speed = (np.asarray(column, np.int64) for column in rows[:4])
    cells = query.forecast.size
    if pings.min(initial=1) < 1 or speed.min(initial=0) < 0 or plate.min(initial=0) < 0:
        raise ValueError(
            "expected plates numbered from 0, pings >= 1 and speeds >= 0 in each row, got others"
        )
    if cell.size and not 0 <= cell.min() <= cell.max() < cells:
        raise ValueError(f"expected rows in {cells} cells, got others")
    if np.unique(plate * cells + cell).size < plate.size:
        raise ValueError("expected one row for each plate and cell, got more")
    time = _time(pings, query.full)
    off = np.clip(speed // pings - query.forecast.astype(np.int64)[cell], -CLIP, CLIP)
    # Below 2**53: CLIP is below 2**18, SLOT_WEIGHT below 2**3, `time` at most 2**32.
    residual = _towards_zero(off * SLOT_WEIGHT * time, 2 * query.full)
    weight = (
        np.full(plate.size, WEIGHT)
        if query.plates
        else WEIGHT * SLOT_WEIGHT * time // (2 * query.full)
    )
    vectors = Entries(plate, cell, residual, weight)
    if query.city:
        vectors = with_city(vectors, query)
    return with_spread(vectors, rows, query) if query.spread else vectors


def _time(pings: Integers, full: int) -> Integers:
    """The share of the slot, at most a half, in parts of 2 `full`."""
    time: Integers = np.minimum(2 * np.minimum(pings, full), full)
    return time


def with_city(vectors: Entries, query: PlateQuery) -> Entries:
    """The vectors with the entries of the city, a function of each plate's own: its sums, cut at
    those of a whole slot, times the gain."""
    plates, residual, weight = _summed(vectors.plate, vectors)
    ours, all_of = CITY_WEIGHT
    city = (
        (np.clip(residual, -CLIP * SLOT_WEIGHT, CLIP * SLOT_WEIGHT), GAIN),
        (np.minimum(weight, WEIGHT * SLOT_WEIGHT) * ours, all_of * GAIN),
    )
    return Entries(
        np.append(vectors.plate, plates),
        np.append(vectors.cell, np.full(plates.size, query.forecast.size)),
        *(
            np.append(entry, _towards_zero(total * query.city, under))
            for entry, (total, under) in zip(vectors[2:], city, strict=True)
        ),
    )


def with_spread(vectors: Entries, rows: PlateRows, query: PlateQuery) -> Entries:
    """The vectors with each plate's time at the speeds of each bin, a function of its own rows: its
    share of the slot, at most a half, by the shares of its pings, times the gain."""
    if rows.bins is None or rows.bins.shape != (rows.plate.size, query.bins):
        raise ValueError(
            f"expected the pings of each row in {query.bins} bins of speed, got others"
        )
    plates, at = np.unique(rows.plate, return_inverse=True)
    pairs = query.columns - query.cells
    bins = np.zeros((plates.size, 2 * pairs), np.int64)
    np.add.at(bins[:, : query.bins], at, rows.bins)
    pings = np.maximum(bins.sum(axis=1, keepdims=True), 1)
    # Below 2**49: `SPREAD` is below 2**17; pings of a slot are at most 2**28.
    time = SPREAD * _time(pings, query.full) // (2 * query.full)
    entry = (bins * time // pings * query.spread // GAIN).reshape(plates.size, pairs, 2)
    who, pair = np.nonzero(entry.any(axis=2))
    residual, weight = entry[who, pair].T
    there = Entries(plates[who], query.cells + pair, residual, weight)
    return Entries(*map(np.append, vectors, there))


def of_day(slots: Entries, cells: int) -> Entries:
    """A day's vectors, from the entries of each of its slots around the forecast of its morning: the
    sums of a plate in a cell, a function of its own entries, cut at `DAY_MOST`."""
    vectors = merged(slots, cells)
    ours, all_of = DAY_WEIGHT
    return vectors._replace(
        residual=np.clip(vectors.residual, -DAY_MOST, DAY_MOST),
        weight=np.minimum(vectors.weight * ours // all_of, DAY_MOST),
    )


def merged(vectors: Entries, cells: int) -> Entries:
    """The sums of each plate's entries in each cell.

    >>> merged(Entries(*np.array([[1, 1], [0, 0], [5, -7], [2, 3]])), cells=2)
    Entries(plate=array([1]), cell=array([0]), residual=array([-2]), weight=array([5]))
    """
    places, residual, weight = _summed(vectors.plate * cells + vectors.cell, vectors)
    return Entries(places // cells, places % cells, residual, weight)


def _summed(places: Integers, vectors: Entries) -> tuple[Integers, Integers, Integers]:
    """Each place once, ascending, and the sums of its residuals and weights."""
    found, at = np.unique(places, return_inverse=True)
    sums = np.zeros((2, found.size), np.int64)
    np.add.at(sums[0], at, vectors.residual)
    np.add.at(sums[1], at, vectors.weight)
    return found, sums[0], sums[1]


def allowances(left: Integers, slots_left: int, active: int) -> Integers:
    """Most that each plate may be charged in a slot, of what it has `left`: nano-rho, rounded down.

    A share of 1.5 / min(slots left of the period with this one, active slots of it), at most all.
    """
    if min(slots_left, active) < 1:
        raise ValueError(f"expected at least one slot, got {slots_left} left and {active} active")
    have = np.maximum(np.asarray(left, np.int64), 0)
    under = 2 * min(slots_left, active)
    # 3 have // under in parts, which do not outgrow 64 bits
    return have if under <= 3 else have // under * 3 + have % under * 3 // under


def shortened(vectors: Entries, charged: Integers, query: PlateQuery) -> Entries:
    """The vectors scaled, each by a factor of its own, so that no plate's squares cost more than it
    was `charged`.

    `charged` holds nano-rho by number of plate. A plate whose vector costs no more keeps it; a
    plate charged 0 has zeros. With `query.plates` the plate's count is kept first, and residuals
    get what is left of its charge. PrivacyRefused if a vector still cost more than its charge.
    """
    if charged.min(initial=0) < 0:
        raise ValueError("expected charges >= 0, got one below")
    plate = vectors.plate
    residual = vectors.residual
    weight = vectors.weight
    plates = charged.size
    # The largest sums of squares that the charges pay for: squares * NANO / (2 sigma^2) <= charge.
    room = [charge * 2 * query.sigma**2 // NANO for charge in charged.tolist()]
    of_weight, of_residual = (_squares(plate, values, plates) for values in (weight, residual))
    if query.plates:
        weight = _scaled(weight, _factors(of_weight, room)[plate])
        room = [
            most - used for most, used in zip(room, _squares(plate, weight, plates), strict=True)
        ]
        residual = _scaled(residual, _factors(of_residual, room)[plate])
    else:
        factors = _factors([a + b for a, b in zip(of_weight, of_residual, strict=True)], room)[
            plate
        ]
        weight = _scaled(weight, factors)
        residual = _scaled(residual, factors)
    kept = Entries(plate, vectors.cell, residual, weight)
    if (kept.charges(plates, query) > charged).any():
        raise PrivacyRefused(
            "expected vectors that cost at most what plates were charged, got one that costs more"
        )
    return kept


def noised(vectors: Entries, cells: int, query: PlateQuery, bits: Bits) -> Integers:
    """The sums of residuals and of weights of each cell, with noise: of shape (2, cells), in
    quanta. Public once drawn.

    Discrete Gaussian noise of the query's sigma, on every entry, also where no plate is.
    """
    sums = np.zeros((2, cells), np.int64)
    np.add.at(sums[0], vectors.cell, vectors.residual)
    np.add.at(sums[1], vectors.cell, vectors.weight)
    return sums + discrete_gaussian(bits, np.full(sums.size, query.sigma)).reshape(sums.shape)


def _squares(plate: Integers, values: Integers, plates: int) -> list[int]:
    """The sum of squares of each plate."""
    # In two parts: a sum of 2**31 squares of entries up to 2**24 does not fit into 64 bits.
    squares = values * values
    parts = np.zeros((2, plates), np.int64)
    np.add.at(parts[0], plate, squares >> _SHIFT)
    np.add.at(parts[1], plate, squares & ((1 << _SHIFT) - 1))
    return [(high << _SHIFT) + low for high, low in parts.T.tolist()]


def _factors(squares: list[int], room: list[int]) -> Integers:
    """The largest factors, at most 1, whose squares times `squares` are at most `room`: in units of
    2**-_SHIFT."""
    one = 1 << _SHIFT
    pairs = zip(squares, room, strict=True)
    return np.array(
        [one if has <= most else isqrt((most << 2 * _SHIFT) // has) for has, most in pairs],
        np.int64,
    )


def _scaled(values: Integers, factors: Integers) -> Integers:
    """Values times factors, shifted back; the products are below 2**57."""
    return _towards_zero(values * factors, 1 << _SHIFT)


def _towards_zero(over: Integers, under: int) -> Integers:
    quotient: Integers = np.sign(over) * (np.abs(over) // under)
    return quotient
