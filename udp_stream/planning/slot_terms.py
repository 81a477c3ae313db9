"""The terms of a whole slot: what every HAT is asked on, from counts, balances and settings, with suppression or not.

**CHOP-USER** (`release.suppression = "chop-user"`; `suppression.py`, arXiv 2405.06261) takes plates out of some of
their HATs. It goes over the HATs of at least `min_plates` plates and leaves each of them that many. It reads counts and
one epsilon: the mean's where that is fixed (all that a HAT is charged if there is no mean), else the median over the
HATs of what "auto" would take without suppression. Then terms are made anew for the plates that are left: each is in
fewer HATs, so "auto" can spend more on each.

**Promise.** A HAT's worst case is its plan's bias and noise, and what leaving plates out may miss: `error_bound` +
U (1 - G / M). In no HAT that is released is it larger than the largest of the slot would be without suppression, and
no HAT is withheld that would be released without. CHOP-USER by itself promises this of Baseline at one epsilon only. So
HATs in which it does not hold get all of their plates back and terms are made anew, until it holds in all; after too
many rounds nothing is suppressed in the slot. Rows only come back, so K is at most what it was without. Proof:
docs/mechanisms/suppression.md.

With `release.hats_max` plates stay in at most that many HATs of the slot, whatever that costs the worst of them
(`suppress_to`). A HAT that cannot keep `min_plates` is withheld, and no plate pays there.

Privacy unit: license plate; neighbours: swap-values. Counts are public, so all of this is free. A plate that is taken
out of a HAT gives nothing there and pays nothing. Which ones those are is part of the terms (`Terms.kept`), hence
remembered with the verdict: a retry cannot suppress anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec.structs import replace as struct_replace
from numpy.typing import NDArray

from udp_stream.ledger.port import Balance
from udp_stream.mechanisms.means import MeanPlan
from udp_stream.planning.hat_plan import HatPlans, SlotInPeriod, slot_terms
from udp_stream.planning.policy import Policy
from udp_stream.planning.suppression import Occupancy, chop_user, suppress_to
from udp_stream.planning.terms import Terms
from udp_stream.windows.tables import SlotCounts

_ROUNDS_MAX = 10
"""At a fixed epsilon two are enough, as HATs do not depend on each other; under "auto" up to 5 were seen."""


def terms_from_counts(
    counts: SlotCounts, balance: Balance, in_period: SlotInPeriod, policy: Policy, plans: HatPlans | None = None
) -> list[Terms]:
    """The terms of every HAT of a slot; `balance` belongs to `counts.plates`, `plans` to the slot.

    >>> from udp_stream.adapters.settings import Settings
    >>> rows = dict(hat_rows=np.array([0, 2, 4]), plate=np.array([0, 1, 0, 1]), count=np.array([3, 1, 3, 3]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([7, 8], np.uint64), **rows)
    >>> chop = dict(mean_nano=10**9, cdf_nano=0, suppression="chop-user", hats_max=1, min_plates=1)
    >>> unspent = Balance(np.zeros(2, np.int64), np.zeros(2, np.int64))
    >>> asked = counts, unspent, SlotInPeriod("May", 0, 23), struct_replace(Settings().policy, **chop)
    >>> [terms.rows_kept(2).tolist() for terms in terms_from_counts(*asked)]
    [[True, False], [False, True]]
    """
    plans = HatPlans(policy.public) if plans is None else plans
    terms = slot_terms(counts, balance, in_period, policy, plans)
    if policy.suppression == "off":
        return terms
    kept = kept_rows(counts, terms, policy)

    def terms_of_kept() -> list[Terms]:
        left = slot_terms(counts_of_rows(counts, kept), balance, in_period, policy, plans)
        return [_with_kept(of_hat, kept[rows]) for rows, of_hat in zip(counts.each_rows(), left, strict=True)]

    if policy.hats_max:
        return terms_of_kept()
    # The promise of suppression is about the worst HAT of the slot, so its worst case without suppression is the limit.
    limit = worst_cases(counts, terms, policy, plans).max(initial=0.0)
    for _ in range(_ROUNDS_MAX):
        if kept.all():
            break
        suppressed = terms_of_kept()
        errors = worst_cases(counts, suppressed, policy, plans)
        lost = [bool(now.withheld and not before.withheld) for now, before in zip(suppressed, terms, strict=True)]
        breaks = np.array(lost, dtype=bool) | (errors > limit)
        if not breaks.any():
            return suppressed
        # A HAT that broke the limit gets all of its plates back, and no later round takes them away again.
        kept |= np.repeat(breaks, np.diff(counts.hat_rows))
    return terms


def worst_cases(counts: SlotCounts, terms: Sequence[Terms], policy: Policy, plans: HatPlans) -> NDArray[np.float64]:
    """The worst case of each HAT of a slot, in quanta: bias plus expected noise of its mean, for all its samples.

    `error_bound` of the plan for the kept plates, plus U (1 - G / M); 0 where no mean is released. From counts.

    >>> from udp_stream.adapters.settings import Settings
    >>> rows = dict(hat_rows=np.array([0, 2]), plate=np.array([0, 1]), count=np.array([3, 1]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([7], np.uint64), **rows)
    >>> policy = struct_replace(Settings().policy, max_speed=1000)
    >>> from udp_stream.mechanisms.statistic_terms import StatisticTerms
    >>> asked = Terms((StatisticTerms("mean", 10**9, mechanism="baseline"),))
    >>> worst_cases(counts, [asked], policy, HatPlans(policy.public)).tolist()
    [750.0]
    """
    by_hat = (counts.count[rows] for rows in counts.each_rows())
    width = policy.range.width
    return np.array(
        [_worst_case(all_of_hat, of_hat, width, plans) for all_of_hat, of_hat in zip(by_hat, terms, strict=True)]
    )


def _worst_case(by_plate: NDArray[np.int64], terms: Terms, width: int, plans: HatPlans) -> float:
    mean = terms.of("mean")
    if terms.withheld or mean is None:
        return 0.0
    kept = terms.of_kept(by_plate)
    plan = plans.of_statistic(kept, mean)
    if not isinstance(plan, MeanPlan):
        raise TypeError(f"expected the plan of a mean, got {type(plan).__name__}")
    return plan.error_bound + width * (1 - int(kept.sum()) / int(by_plate.sum()))


def kept_rows(counts: SlotCounts, terms: Sequence[Terms], policy: Policy) -> NDArray[np.bool_]:
    """Which rows CHOP-USER leaves; all where nothing is to be released. HATs below `min_plates` are left alone.

    >>> from udp_stream.adapters.settings import Settings
    >>> rows = dict(hat_rows=np.array([0, 2, 4]), plate=np.array([0, 1, 0, 1]), count=np.array([3, 1, 3, 3]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([7, 8], np.uint64), **rows)
    >>> chop = dict(suppression="chop-user", hats_max=1, min_plates=1)
    >>> from udp_stream.mechanisms.statistic_terms import StatisticTerms
    >>> terms = [Terms((StatisticTerms("mean", 10**9),))] * 2
    >>> kept_rows(counts, terms, struct_replace(Settings().policy, **chop)).tolist()
    [True, False, False, True]
    """
    kept = np.ones(counts.plate.size, dtype=bool)
    epsilons = sorted(of_hat.mean_nano or of_hat.charge_nano for of_hat in terms if not of_hat.withheld)
    if epsilons:
        large = np.diff(counts.hat_rows) >= policy.min_plates
        offered = np.repeat(large, np.diff(counts.hat_rows))
        sizes = np.diff(counts.hat_rows)[large]
        occupancy = Occupancy(
            np.append(0, np.cumsum(sizes)), counts.plate[offered], counts.count[offered], len(counts.plates)
        )
        epsilon_nano = epsilons[len(epsilons) // 2]
        if policy.hats_max:
            kept[offered] = suppress_to(occupancy, epsilon_nano, policy.hats_max, policy.min_plates).keep
        else:
            kept[offered] = chop_user(occupancy, epsilon_nano, policy.min_plates).keep
    return kept


def counts_of_rows(counts: SlotCounts, kept: NDArray[np.bool_]) -> SlotCounts:
    """The counts of some rows; every HAT stays, even without rows.

    >>> rows = dict(hat_rows=np.array([0, 2, 3]), plate=np.array([0, 1, 0]), count=np.array([4, 2, 7]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([7, 8], np.uint64), **rows)
    >>> fewer = counts_of_rows(counts, np.array([True, True, False]))
    >>> fewer.hat_rows.tolist(), fewer.count.tolist()
    ([0, 2, 2], [4, 2])
    """
    before = np.append(0, np.cumsum(kept))
    return replace(counts, hat_rows=before[counts.hat_rows], plate=counts.plate[kept], count=counts.count[kept])


def _with_kept(terms: Terms, kept: NDArray[np.bool_]) -> Terms:
    return terms if terms.withheld or kept.all() else struct_replace(terms, kept=np.packbits(kept).tobytes())
