"""Suppression: plates give nothing at all to some of their HATs, so that each is in fewer of them (arXiv 2405.06261).

Privacy unit: license plate; neighbours: swap-values. Only counts are read here, so suppression itself costs nothing.
If every HAT is released eps-DP, a plate that is kept in K_l HATs loses K_l eps, and the slot is (eps max K_l)-DP: the
slides' composition theorem for mechanisms on disjoint HATs.

**The error of a HAT** with M samples of which suppression leaves G > 0, the largest share of one plate being G*, is the
worst-case bias of the kept samples' mean plus its expected noise, as a share of U:

    E = 1 - G / M + G* / (G eps)

and infinite where fewer than a given number of plates would be left (1 unless told otherwise; all that a HAT has, if
those are fewer): that HAT is lost. No HAT is lost as long as another choice is left, under CHOP-USER none ever.

**CHOP-USER.** E_thresh is the largest E at the start. Level by level, from the largest number n of HATs that any plate
is in: every plate that is in n HATs gives up the one in which its suppression leaves the least E. The first that cannot
do so within E_thresh stops everything; otherwise n falls by one. What the papers leave open is fixed here so that the
outcome is a function of the counts:

* Plates of a level take their turns hardest first: by the least E that was open to them when the level began, largest
  first; ties by plate index. (Over 192 drawn cities K came out 1 % lower than by plate index alone, and a third as
  many suppressions fell in the last, unfinished level, where they no longer lower K.)
* On its turn a plate looks again, and ties between its HATs go to the lowest.
* E is computed in doubles exactly as `worst_case.hat_error` writes it.

**Promises.** (1) No HAT's E exceeds E_thresh afterwards: none did at the start, and each step changes the E of one HAT,
to a value that has just been compared. (2) K = max_l K_l is at most what it was: HATs are only ever given up. (3) So
neither the slot's loss K eps nor the largest E is larger than before. E is Baseline's worst case; of other mechanisms
nothing follows yet (`slot_terms.py` sees to that).
"""

from __future__ import annotations

from itertools import chain
from math import inf

import numpy as np

from udp_stream.planning.choices import BATCHED_HATS_MAX, Batches, Choices, Heaps
from udp_stream.planning.city import City, Suppression
from udp_stream.planning.moves import even_out
from udp_stream.planning.worst_case import Occupancy

__all__ = ["Occupancy", "Suppression", "chop_user", "suppress_to"]


def chop_user(occupancy: Occupancy, epsilon_nano: int, plates_min: int = 1) -> Suppression:
    """CHOP-USER of arXiv 2405.06261, as fixed above: the loss max K_l eps falls, no HAT's E exceeds E_thresh.

    No HAT is left with fewer than `plates_min` plates, if it had them.

    Plate 0, alone in the first HAT (so E_thresh = 1 / eps), leaves one of its three; plates 1 and 2 cannot leave any:

    >>> rows = dict(plate=np.array([0, 0, 1, 2, 0, 1, 2]), count=np.array([4, 1, 2, 2, 1, 2, 2]), plates=3)
    >>> chopped = chop_user(Occupancy(np.array([0, 1, 4, 7]), **rows), epsilon_nano=10**9)
    >>> chopped.keep.astype(int).tolist(), chopped.hats_before, chopped.hats_after, chopped.threshold
    ([1, 0, 1, 1, 1, 1, 1], 3, 2, 1.0)

    Raises ValueError for epsilon_nano < 1 or plates_min < 1. 10^5 plates in 10^4 HATs, 10^6 rows: seconds.
    """
    city = City(occupancy, epsilon_nano, plates_min)
    _descend(city, 0, city.threshold)
    return city.outcome()


def suppress_to(occupancy: Occupancy, epsilon_nano: int, hats_max: int, plates_min: int = 1) -> Suppression:
    """No plate in more than `hats_max` >= 1 HATs, and the worst E as small as a local search finds it.

    The abstract of arXiv 2405.06261 has the aim, for a fixed privacy loss; the rule is ours. First CHOP-USER without a
    threshold, down to `hats_max`: a plate that can only leave HATs that are lost by it leaves the one with the fewest
    samples left (the lowest on ties), and lost HATs are left for nothing. These give all their places away, and one by
    one come back if enough of their plates still have a place. Then, as long as it helps, the HAT of largest E (the
    lowest on ties; lost ones that no move brings back are passed over) loses a plate, or gets one back that may be in
    one more HAT, or gets one back that in turn leaves another of its HATs: whichever leaves the least E in the worse of
    the HATs concerned, if that is less than the largest E was. Each move lowers the descending list of all E's, in
    lexicographic order, so this ends; at the latest after as many moves as rows.

    Promises: max K_l <= hats_max. Every HAT keeps `plates_min` plates (all, if it had fewer), or none and has infinite
    E. If hats_max >= K of `chop_user`, none is lost and no E exceeds E_thresh: down to there both take the same steps,
    and no move raises the largest E. The optimum it need not find; on cities small enough to try everything it mostly
    does (see the tests).

    >>> pairs = Occupancy(np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array([3, 1, 3, 3]), plates=2)
    >>> suppress_to(pairs, 10**9, hats_max=1).keep.astype(int).tolist()
    [1, 0, 0, 1]

    Raises ValueError for hats_max < 1, epsilon_nano < 1 or plates_min < 1.
    """
    if hats_max < 1:
        raise ValueError(f"expected hats_max >= 1, got {hats_max}")
    city = City(occupancy, epsilon_nano, plates_min)
    _descend(city, hats_max, inf)
    _share_out(city, hats_max)
    even_out(city, hats_max)
    return city.outcome()


def _descend(city: City, floor: int, limit: float) -> None:
    """Level by level to `floor` HATs per plate; stops before a suppression that would leave an E above `limit`."""
    initially = np.array(city.in_hats)
    by_hats = np.argsort(-initially, kind="stable")
    fewer = -initially[by_hats]
    choices: Choices = Heaps(city)
    for level in range(city.before, floor, -1):
        # Plates that began in more HATs have come down to this level by now.
        plates = np.sort(by_hats[: np.searchsorted(fewer, -level, side="right")])
        # Few plates reach the high levels, most the low ones: heaps there, batches here (`choices.py`).
        if level <= BATCHED_HATS_MAX and isinstance(choices, Heaps):
            choices = Batches(city)
        hardest_first = np.argsort(-choices.begin(level, plates), kind="stable")
        for error, row in choices.turns(hardest_first):
            if error > limit:
                return
            # Every HAT that it can leave is lost by that: it leaves the one with the fewest samples.
            if error == inf:
                row = city.least_loss(city.plate[row])
            choices.suppressed(row, city.suppress(row))


def _share_out(city: City, hats_max: int) -> None:
    """Lost HATs give all of their places away; each comes back if enough of its plates have a place left by then."""
    errors = city.errors
    lost = [range(errors.rows_from[hat], errors.rows_from[hat + 1]) for hat in range(city.hats) if errors.lost(hat)]
    for row in chain.from_iterable(lost):
        if errors.rows.kept[row]:
            city.suppress(row)
    for rows in lost:
        free = [row for row in rows if city.in_hats[city.plate[row]] < hats_max]
        if free and errors.hats.spare[errors.rows.hat[free[0]]] + len(free) >= 0:
            for row in free:
                city.restore(row)
