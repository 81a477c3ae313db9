"""What a slot's plates are asked of the whole city: charge, draw, record, as for a HAT; nobody but forecasts reads it.

1. The planner charges those who can pay (`charge_city`), before the slot's HATs. Whoever cannot takes no part.
2. The sums over all rows are measured with the plates' norms (`balls.py`): on Kafka each shard sends the planner its
   part of them. Sums of integers have no order, so they are those of the whole slot.
3. Noise is drawn once, and recorded (`record_city`), before any HAT of the slot is: on Kafka shards wait for it. So
   whoever finds the slot's records finds this one, too.

What is asked follows from counts and forecasts, and the ledger remembers a digest of it. If another plan was charged,
as by a version that forecasts otherwise, nothing is drawn: what that charge allows is not known any more.
"""

from __future__ import annotations

from hashlib import blake2b
from math import ceil

import msgspec
import numpy as np

from udp_stream.ledger.port import Admission, Ledger
from udp_stream.mechanisms.city_sums import answer_of, city_queries, city_sums
from udp_stream.mechanisms.noise import noise_of
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import CityPlan, SlotPlan, row_digests
from udp_stream.planning.whole_city import CityAsked
from udp_stream.release import estimate
from udp_stream.release.city_record import CityRecord
from udp_stream.release.context import ReleaseContext
from udp_stream.release.once import draw_once
from udp_stream.release.record import city_id
from udp_stream.windows.slot_tables import SlotCounts, SlotValues

ADMITTED_MIN = 0.5
"""The least share of the plates that have to be able to pay."""


def charge_city(
    asked: CityAsked | None, counts: SlotCounts, period: str, policy: Policy, ledger: Ledger
) -> CityPlan | None:
    """Charge the plates that can pay: the plan with the others' weights 0. None if too few can, or nothing is asked.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> charge_city(None, two_hats()[0], "1d", a_context().policy, MemoryLedger()) is None
    True
    """
    if asked is None:
        return None
    members = np.unique(counts.plate)
    least, terms = ceil(ADMITTED_MIN * members.size), _terms(asked, counts)
    admission = Admission(city_id(counts.start_ms, counts.end_ms), members, asked.charges[members], least, terms)
    (verdict,) = ledger.admit(period, policy.budget_nano, counts.plates, [admission])
    if verdict.terms != terms or not verdict.admitted.any():
        return None
    return asked.among(members[verdict.admitted], counts)


def slot_sums(counts: SlotCounts, values: SlotValues, plan: SlotPlan) -> tuple[int, int]:
    """The two sums over the HATs of a slot, or of a shard's part of it, that the plan knows with these rows. Secret.

    >>> from udp_stream.testing import two_hats
    >>> counts, values = two_hats()
    >>> slot_sums(counts, values, SlotPlan.empty(counts))
    (0, 0)
    """
    if plan.city is None or not counts.count.size:
        return 0, 0
    high = plan.city.costs.high  # what moves are for, whatever the settings say by now
    sums = np.add.reduceat(values.clamped(high).speed, values.starts[:-1])
    known = np.zeros(counts.count.size, dtype=bool)
    of_plan = np.zeros(plan.city.rows.samples.size, dtype=bool)
    for hat, at in enumerate(plan.find_all(counts.cells, row_digests(counts))):
        if at is not None:  # both are in the order of cells
            known[counts.rows(hat)], of_plan[plan.hat_rows[at] : plan.hat_rows[at + 1]] = True, True
    return city_sums(plan.city.rows.part(of_plan), sums[known], high)


def record_city(sums: tuple[int, int], plan: SlotPlan, context: ReleaseContext, ledger: Ledger) -> None:
    """Draw the answer to what the plan asks of the city, and record it, if none is recorded yet.

    `sums` are those of the whole slot. Nothing happens where the plan asks nothing.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> ledger = MemoryLedger()
    >>> record_city((0, 0), SlotPlan.empty(two_hats()[0]), a_context(), ledger)
    >>> ledger.progress().recorded
    0
    """
    if (city := plan.city) is None:
        return
    name = city_id(plan.start_ms, plan.end_ms)

    def draw(_: object) -> list[bytes]:
        ((_, bits),) = context.entropy.streams([name])
        queries = city_queries(sums, city.costs)
        noisy = estimate.noisy_integers(queries, noise_of(city.costs.mean), bits)
        found = answer_of(queries, noisy, city.plates)
        mean, spread = city.costs.deviations(city.plates)
        shares = np.add.reduceat(city.rows.weights * city.rows.samples, plan.hat_rows[:-1]).astype(np.float64)
        record = CityRecord(
            round(city.forecast_kmh + found.mean_kmh, 3), round(mean, 3), round(found.spread, 4), round(spread, 4),
            city.plates, tuple(plan.cells.tolist()), tuple((shares / shares.sum()).round(6).tolist()),
        )  # fmt: skip
        return [msgspec.json.encode(record)]

    draw_once(ledger, [name], draw)
    ledger.published([name])  # no reader waits for it


def _terms(asked: CityAsked, counts: SlotCounts) -> bytes:
    """A digest of all that the sums and their noise follow from, beside speeds."""
    rows, costs = asked.rows, asked.costs
    columns = (rows.samples, rows.weights, rows.centres, counts.plate, counts.hat_rows, asked.charges)
    hashed = blake2b(repr(costs).encode(), digest_size=16)
    for column in columns:
        # Little-endian, so that the digest is the same on every machine.
        hashed.update(np.ascontiguousarray(column, "<i8").tobytes())
    hashed.update(counts.cells.astype("<u8").tobytes() + b"".join(counts.plates))
    return hashed.hexdigest().encode()
