"""Terms: what a HAT's admission is asked on. The ledger remembers them with the verdict; plans carry them to shards."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.noise import Cost, Measure
from udp_stream.mechanisms.statistic_terms import CompareAt, StatisticTerms
from udp_stream.planning.allowances import EPSILON_NANO_MAX
from udp_stream.planning.policy import Policy


class HatForecast(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is forecast of a HAT's mean before it is taken, in km/h, and what the forecast reads of its counts.

    `deviation` is its standard deviation; `rest` the part of that which no release of another HAT can tell. `prior` is
    the relative speed and the six features of `forecast/model.py`, standardised.

    >>> HatForecast(value=18.0, deviation=5.0, rest=3.0, prior=7 * (0.0,)).deviation
    5.0
    """

    value: float
    deviation: float
    rest: float
    prior: tuple[float, ...]


class Terms(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag="terms.3", tag_field="v"):
    """What a HAT's admission was asked on: what each statistic may cost and how it is taken, or why nothing is asked.

    With the counts and U they fix every plate's charge and, once all is chosen, the plan. So neither a retry nor a
    shard searches again: by then the policy may have changed, and the software too. `period` and `budget_nano` are the
    promise that each plate was asked within, for the record. `kept` has a bit for each of the HAT's rows that
    contributes, the first row's the highest of the first byte; empty: all do. `allowance_nano` is the most that a plate
    may have been charged in the period once it is charged for this; 0: its budget. Of fewer plates than `admitted_min`
    that can pay, or `min_plates`, none is charged. `turn` is the place in which
    the slot's HATs are charged, lowest first, of the same the larger HAT. "unplanned" are HATs that no plan knows.

    A ledger keeps them for ever. Their tag has a version: change it with the fields, and terms of another version are
    refused instead of read as something else. A field that is left out where it says nothing new keeps the tag: older
    software refuses terms that have it, and newer software reads those that lack it.

    >>> Terms((StatisticTerms("mean", 10**9), StatisticTerms("variance", 5 * 10**8))).charge_nano
    1500000000
    >>> Terms(withheld="few_plates").charge_nano
    0
    """

    statistics: tuple[StatisticTerms, ...] = ()
    withheld: Literal["", "few_plates", "budget", "uninformative", "unplanned"] = ""
    kept: bytes = b""
    period: str = ""
    budget_nano: int = 0
    allowance_nano: int = 0
    turn: int = 0
    admitted_min: int = 0
    forecast: HatForecast | None = None
    measure: Measure = "pure"

    @property
    def in_ball(self) -> bool:
        """Whether a plate shares one clip among this HAT and others of the slot."""
        return any(one.around is not None and one.around.ball for one in self.statistics)

    def within(self, policy: Policy) -> Terms:
        """The same under the policy's promise to a plate."""
        return msgspec.structs.replace(
            self,
            period=policy.period,
            budget_nano=policy.budget_nano,
            measure=policy.measure,
        )

    @property
    def charge_nano(self) -> int:
        """The most that an admitted plate pays."""
        return sum(one.epsilon_nano for one in self.statistics)

    @property
    def cost(self) -> Cost:
        """The same, in the measure that it is counted in."""
        return Cost(self.measure, self.charge_nano)

    @property
    def mean_nano(self) -> int:
        """The mean's epsilon; 0 without one."""
        return self.nano_of("mean")

    def nano_of(self, statistic: str) -> int:
        """A statistic's epsilon; 0 where it is not asked for.

        >>> Terms((StatisticTerms("cdf", 5),)).nano_of("cdf"), Terms().nano_of("cdf")
        (5, 0)
        """
        one = self.of(statistic)
        return 0 if one is None else one.epsilon_nano

    def of(self, statistic: str) -> StatisticTerms | None:
        """What is asked of a statistic."""
        return next((one for one in self.statistics if one.statistic == statistic), None)

    def of_kept(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """What the rows that contribute have, of what each of the HAT's rows has; no copy is made if all contribute.

        >>> Terms(kept=bytes([0b101_00000])).of_kept(np.array([7, 8, 9])).tolist()
        [7, 9]
        """
        if self._keeps_all(values.size):
            return values
        kept = self.rows_kept(values.size)
        return values if kept.all() else values[kept]

    def _keeps_all(self, rows: int) -> bool:
        """Whether that is said of this number of rows, and all contribute: nearly always."""
        return not self.kept and all(one.around is None or one.around.plates_count == rows for one in self.statistics)

    def to_rows(self, offered: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """Undo `of_kept`: what each of that many rows has, 0 for those that do not contribute.

        >>> Terms(kept=bytes([0b101_00000])).to_rows(np.array([7, 9]), rows=3).tolist()
        [7, 0, 9]
        """
        if offered.size == rows:
            return offered
        values = np.zeros(rows, dtype=np.int64)
        values[self.rows_kept(rows)] = offered
        return values

    def rows_kept(self, rows: int) -> NDArray[np.bool_]:
        """Which of that many rows contribute; none if that was said of another number of rows.

        >>> Terms(kept=bytes([0b101_00000])).rows_kept(3).tolist(), Terms().rows_kept(2).tolist()
        ([True, False, True], [True, True])
        """
        kept = self._rows_offered(rows)
        forecast = (one.around.plates_count for one in self.statistics if one.around is not None)
        return np.zeros(rows, dtype=bool) if any(plates != kept.sum() for plates in forecast) else kept

    def _rows_offered(self, rows: int) -> NDArray[np.bool_]:
        if not self.kept:
            return np.ones(rows, dtype=bool)
        packed = np.frombuffer(self.kept, dtype=np.uint8)
        if packed.size != -(-rows // 8):
            return np.zeros(rows, dtype=bool)
        return np.unpackbits(packed, count=rows).astype(bool)


def terms_of(policy: Policy, mean_nano: int, variance_nano: int, cdf_nano: int) -> Terms:
    """Terms with these epsilons, as a policy has it; statistics without one are not asked for.

    An automatic epsilon is the larger the less of it plates pay, a fixed one is not.

    >>> from udp_stream.adapters.settings import Settings
    >>> terms = terms_of(Settings().policy, mean_nano=10**9, variance_nano=0, cdf_nano=5 * 10**8)
    >>> [one.statistic for one in terms.statistics], terms.of("mean").compare_at, terms.charge_nano
    (['mean', 'cdf'], 'charge', 1500000000)
    """
    measure = policy.measure
    # At equal charge Baseline is best where charges go by shares; where they go by squares nothing is.
    follows_charge = policy.mean_nano is None and measure == "pure"
    compare_at: CompareAt = "charge" if follows_charge else "epsilon"
    asked: list[StatisticTerms] = []
    if mean_nano:
        asked.append(StatisticTerms("mean", mean_nano, policy.mean, policy.grouping, compare_at, measure))
    if variance_nano:
        asked.append(StatisticTerms("variance", variance_nano, measure=measure))
    if cdf_nano:
        asked.append(StatisticTerms("cdf", cdf_nano, measure=measure))
    return Terms(tuple(asked), measure=measure)


def automatic_nano(allowance_nano: int, policy: Policy) -> int:
    """What each automatic epsilon of the policy (one at least) gets of what plates can spend on a HAT.

    Fixed ones come first. What is left may be less than `least_nano`, and below 0.

    >>> from udp_stream.adapters.settings import Settings
    >>> policy = msgspec.structs.replace(Settings().policy, mean_nano=None, variance_nano=100, cdf_nano=None)
    >>> automatic_nano(1100, policy)
    500
    """
    fixed = (policy.mean_nano or 0) + policy.variance_nano + (policy.cdf_nano or 0)
    automatic = (policy.mean_nano, policy.cdf_nano).count(None)
    return min((allowance_nano - fixed) // automatic, EPSILON_NANO_MAX)


def terms_at(automatic_nano: int, policy: Policy) -> Terms:
    """Terms with this for each automatic epsilon, fixed ones as configured.

    >>> from udp_stream.adapters.settings import Settings
    >>> policy = msgspec.structs.replace(Settings().policy, mean_nano=None, cdf_nano=200)
    >>> terms = terms_at(500, policy)
    >>> terms.nano_of("mean"), terms.nano_of("cdf")
    (500, 200)
    """
    mean_nano, cdf_nano = (automatic_nano if nano is None else nano for nano in (policy.mean_nano, policy.cdf_nano))
    return terms_of(policy, mean_nano, policy.variance_nano, cdf_nano)
