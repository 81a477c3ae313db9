"""The promise to a plate: which inputs have to look alike, and how a budget is stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from udp_stream.base.units import amount_text, nano_allowance
from udp_stream.ledger.filters import epsilon_of, rho_nano_of
from udp_stream.mechanisms.noise import MEASURES, Measure


@dataclass(frozen=True)
class NeighbourRelation:
    """Which inputs have to look alike: a plate's `differing` data, by `speed.from`, with the rest
    `alike`.

    `public` are the quantities that are not protected, for the statement. Without `public_counts`
    no record shows counts, and charges are secret. `in_processing_time`: slots close by the wall's
    time, so that no plate decides over another's pings. The names of budget periods under it have
    the `ending`, so that no ledger adds up charges of two promises.

    The rest are words. For summaries: what is `protected`, and what is not for whom (`beyond`);
    estimates are beside a guess by `guessed_from`. For the statement: `kinds` of releases, {} for
    the statistics that were asked for, how plates are charged, and how charges add up.

    >>> NEIGHBOURS["swap-values"].adjacency("field")
    "swap-values: the same plates with the same number of pings in every cell and slot, one plate's speeds differing \
anywhere"
    """

    name: str
    alike: str
    differing: Mapping[str, str]
    public: tuple[str, ...]
    public_counts: bool
    protected: str
    beyond: str
    guessed_from: str
    kinds: str
    charges: str
    composition: str
    in_processing_time: bool = False
    has_trees: bool = True
    ending: str = ""

    def adjacency(self, speed_from: str) -> str:
        return f"{self.name}: {self.alike}, one plate's {self.differing[speed_from]}"


OF_A_SWAP = 4
"""Factor on rho of a change of speeds under "add-remove": it is a removal and an addition, so it
costs up to four times either."""

NEIGHBOURS: dict[str, NeighbourRelation] = {
    "swap-values": NeighbourRelation(
        name="swap-values",
        alike="the same plates with the same number of pings in every cell and slot",
        differing={
            "field": "speeds differing anywhere",
            "movement": "positions differing anywhere, each within its cell: speeds are derived from them",
        },
        public=(
            "that a plate was in a cell in a slot, and how many pings it sent there",
            "numbers of plates and samples, refusals by reason, which cells exist",
        ),
        public_counts=True,
        protected="each plate's speeds",
        beyond="Not protected: the presence of a plate in a HAT, and its number of pings.",
        guessed_from="counts",
        kinds="{} of bus speeds, each where it was asked for",
        charges="each plate its own share of the noise's sensitivity, which its number of pings tells",
        composition="basic, per plate: the sum of what it was charged; never more than the bound of arXiv "
        "2405.06261, the largest charge of a release times the most releases that one plate is in",
    ),
    "add-remove": NeighbourRelation(
        name="add-remove",
        alike="the same pings of all other plates",
        differing=dict.fromkeys(("field", "movement"), "pings all added or removed"),
        public=(),
        public_counts=False,
        protected="all pings of each plate",
        beyond="Not for readers: the ledger, and all that counts pings, as this summary, logs and metrics.",
        guessed_from="traffic",
        kinds="noised sums of bus speeds around forecasts, and of traffic, of every cell of a public domain, by slot and by "
        "day, and of all cells",
        charges="each plate the squares of its own vector of a slot, which is shortened to a share of what it has "
        "left; secret, as are balances and which plates are admitted",
        composition="an individual filter of concentrated differential privacy (arXiv 2008.11193): the sum of what a "
        "plate is charged is at most its budget, on every path",
        in_processing_time=True,
        has_trees=False,
        ending=" of whole plates",
    ),
}
"""Neighbour relations by the value of a policy's `neighbours`."""


@dataclass(frozen=True)
class Accounting:
    """A way to state a budget, and the measure of its losses: this class promises an amount of the
    measure.

    `key` is the setting that holds the promise, `variant` its name in OpenDP's registry of
    deployments.

    >>> ACCOUNTINGS["approximate"].in_words(1_539_278_763, 1e-6), ACCOUNTINGS["pure"].in_words(10**10, 1e-6)
    ('epsilon 10 with delta 1e-06 (rho 1.539278763)', 'epsilon 10')
    """

    measure: Measure
    key: str
    variant: str
    has_delta: bool = True

    def nano(self, promised: float, delta: float) -> int:  # noqa: ARG002
        """The budget of what is promised, rounded down."""
        return nano_allowance(promised)

    def promised(self, nano: int, delta: float) -> str:  # noqa: ARG002
        return amount_text(nano)

    def in_words(self, nano: int, delta: float) -> str:
        """An amount that a plate can lose, as promised; of a rho with the epsilon that it implies."""
        amount = f"{self.measure.unit} {amount_text(nano)}"
        return f"{amount} (epsilon {_with_delta(nano, delta)})" if self.has_delta else amount


class ApproximateAccounting(Accounting):
    """Promises an epsilon with a delta: its budget is the largest rho that implies them.

    >>> ACCOUNTINGS["approximate"].promised(1_539_278_763, 1e-6)
    '10'
    """

    def nano(self, promised: float, delta: float) -> int:
        return rho_nano_of(nano_allowance(promised), delta)

    def promised(self, nano: int, delta: float) -> str:
        return epsilon_text(epsilon_of(nano, delta))

    def in_words(self, nano: int, delta: float) -> str:
        return f"epsilon {_with_delta(nano, delta)} (rho {amount_text(nano)})"


ACCOUNTINGS: dict[str, Accounting] = {
    "pure": Accounting(MEASURES["pure"], "budget.epsilon", "Pure DP", has_delta=False),
    "zcdp": Accounting(MEASURES["zcdp"], "budget.rho", "zCDP"),
    "approximate": ApproximateAccounting(MEASURES["zcdp"], "budget.epsilon", "Approximate DP"),
}
"""Accountings by the value of `budget.accounting`; the last of a measure stands for it where
settings say another measure."""


def accounting_of(measure: str, configured: str) -> str:
    """The accounting of a charge in this measure: the configured, or the last where that is of
    another measure."""
    found = [name for name, one in ACCOUNTINGS.items() if one.measure.name == measure]
    return configured if configured in found else found[-1]


def epsilon_text(epsilon: float) -> str:
    """An epsilon of six decimals with all of them: it was rounded up, and fewer digits could be
    less."""
    return f"{epsilon:.6f}".rstrip("0").rstrip(".")


def _with_delta(nano: int, delta: float) -> str:
    return f"{epsilon_text(epsilon_of(nano, delta))} with delta {delta:g}"
