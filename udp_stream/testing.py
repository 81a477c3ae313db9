"""For tests, examples and `reproduce` only: bits from a seed, a small slot, a query.

Nothing here may run in a deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from hashlib import blake2b

import numpy as np

from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.port import Bits, Ledger
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.add_remove import AddRemoveRules, sigma_of
from udp_stream.planning.policy import BudgetCalendar, Policy, PositionPeriods
from udp_stream.queries.standing import StandingQuery
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.pipeline import RecordedSlot
from udp_stream.release.promise import release_slot
from udp_stream.release.query_pipeline import QueryContext, RecordedAnswer, record_moment
from udp_stream.release.record import QueryResult
from udp_stream.windows.grid import HEXAGONS
from udp_stream.windows.positions import Moment
from udp_stream.windows.tables import SlotCounts, SlotGrid, SlotPings, SlotValues, tabulate

SLOT_START = 1_641_009_600_000
SLOT_END = 1_641_013_200_000
"""Start and end of the slot, Unix ms: 2022-01-01, from 04:00 to 05:00 UTC."""

_CELLS = (609161983530369023, 609162003226820607)


def seeded_bits(seed: int | str) -> Bits:
    """Bits that follow from the seed alone: reproducible, and therefore not private."""
    digest = blake2b(str(seed).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest))).bytes


class SeededEntropy:
    """Entropy of releases that follows from the seed and a release's id, whatever else is released
    beside it, in any process."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed

    def streams(self, release_ids: Sequence[str]) -> Iterator[tuple[slice, Bits]]:
        for i, release_id in enumerate(release_ids):
            yield slice(i, i + 1), seeded_bits(f"{self._seed}/{release_id}")


class SeededSlots:
    """Bits that go on from release to release, by the seed: quicker, and a release that is drawn again,
    as of another rehearsed city, has other noise."""

    def __init__(self, seed: int | str) -> None:
        self._bits = seeded_bits(seed)

    def streams(self, release_ids: Sequence[str]) -> Iterator[tuple[slice, Bits]]:
        yield slice(0, len(release_ids)), self._bits


def seven_pings() -> SlotPings:
    """The pings of a slot: four plates in a cell, the last in another cell too; 10 to 60 km/h."""
    return SlotPings(
        SLOT_START,
        SLOT_END,
        plates=(b"hash of A", b"hash of B", b"hash of C", b"hash of D"),
        plate=np.array([0, 1, 1, 2, 2, 3, 3], np.uint32),
        time=np.arange(7, dtype=np.uint32) * 1000,
        cell=np.array(_CELLS, np.uint64)[[0, 0, 0, 0, 0, 0, 1]],
        speed=np.array([10, 20, 30, 40, 50, 60, 30], np.int32) * QUANTA_PER_KMH,
    )


def two_hats() -> tuple[SlotCounts, SlotValues]:
    """The tables of `seven_pings`: a HAT of four plates, and a HAT of a single plate."""
    return tabulate(seven_pings())


def a_context() -> ReleaseContext:
    """A small deployment: cells of resolution 7, hours and days of UTC, mean and CDF of HATs of two
    plates or more."""
    policy = Policy(
        grid=HEXAGONS, slot_seconds=3600, timezone="UTC", grace_ms=60_000, max_speed=65 * QUANTA_PER_KMH, unit="kmh",
        reject_above_kmh=200, box=None, budget_nano=10 * NANO, period="1d", period_seconds=86_400, mean="baseline",
        grouping="best-fit", prices={"mean": NANO // 2, "cdf": NANO // 4}, bins=(0.0, 20.0, 40.0, 65.0), min_plates=2,
    )  # fmt: skip
    calendar = BudgetCalendar(policy, SlotGrid(policy.slot_seconds, UTC), SlotGrid(86_400, UTC))
    return ReleaseContext(policy, calendar, SeededEntropy(1), "udp-stream example")


def some_rules() -> AddRemoveRules:
    """Rules of "add-remove" over the two cells of `seven_pings`: hours, a ping every ten seconds,
    rho 1.54 a day."""
    cells = np.array(sorted(_CELLS), np.uint64)
    sigma = sigma_of(1_539_278_763, slots=24, plates=False)
    return AddRemoveRules(
        cells, 360, sigma, 12, plates=False, slot_hours=1.0, max_kmh=65.0, digest="5eed"
    )


def released_slot() -> RecordedSlot:
    """The slot that the pipeline releases from `two_hats`, on a ledger in memory."""
    return release_slot(*two_hats(), a_context(), MemoryLedger(), publish=lambda _: None)


def a_query() -> StandingQuery:
    """How many plates are in a square of two kilometres, at rho 20 per square km in four rounds."""
    return StandingQuery(
        name="in-the-middle", kind="range", center=(0.0, 0.0), box=(-0.009, -0.009, 0.009, 0.009), every_s=900,
        age_s=600, rounds=4, measure="zcdp", budget_nano=20 * NANO, period="1d", period_budget_nano=200 * NANO,
    )  # fmt: skip


def a_moment() -> Moment:
    """Eight plates in a row to the east, a kilometre and a half apart, the first three in the
    square's reach."""
    lon = np.array([0.0, 0.0, 0.0135, 0.027, 0.0405, 0.054, 0.0675, 0.081])
    plates = tuple(f"hash {i}".encode() for i in range(8))
    at_ms = 1_641_011_400_000
    return Moment(at_ms, plates, np.zeros(8), lon, np.full(8, at_ms - 60_000))


def a_query_context(seed: int | str = 1) -> QueryContext:
    """Context of queries: days of UTC, rho 200 per square km."""
    days = SlotGrid(86_400, UTC)
    periods = PositionPeriods("zcdp", 200 * NANO, "1d", days)
    return QueryContext(periods, replace(a_context(), entropy=SeededEntropy(seed)))


def answer_moment(
    queries: Sequence[StandingQuery],
    moment: Moment,
    context: QueryContext,
    ledger: Ledger,
    publish: Callable[[Sequence[RecordedAnswer]], None] = lambda _: None,
) -> Sequence[RecordedAnswer]:
    """Answer these queries at a moment, as a runtime does: record, publish, inform the ledger."""
    found = record_moment(queries, moment, context, ledger)
    publish(found.answers)
    found.published(ledger)
    return found.answers


def a_result() -> QueryResult:
    """The answer of `a_query` at `a_moment`, on a ledger in memory."""
    (one,) = answer_moment([a_query()], a_moment(), a_query_context(), MemoryLedger())
    return QueryResult.decode(one.payload)
