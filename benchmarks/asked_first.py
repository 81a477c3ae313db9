"""Would it pay to ask first whether a HAT has moved? A day's error with a question before each mean, and without.

`python -m benchmarks.asked_first FOLDER [--seeds N] [--feeds NAME,...] [--set SECTION.KEY=VALUE ...] [QUESTION ...]`.
FOLDER as for `benchmarks.accuracy`; the counts prior is trained on other years. Without a QUESTION the whole grid.

The question: of the plates of a HAT that is to be measured, is the share whose mean speed lies farther than t from what
was forecast of them below q? Yes: nothing moved, the HAT is withheld, and what its mean would have cost is left for
later slots. No: it is measured as without a question. So the budget of a plate and day is the same.

QUESTION is KIND:NUMBER,..., and the kinds are, from what there is to what nobody could have:

* `asked:t,q,part,rounds`: the setting `release.ask_first`, for `part` of the price of a mean, in even rounds;
* `free:t,q`: the same count, exact, at no cost;
* `free-learnt:t,q,d`: and the reader takes a yes for a measurement of the forecast that is off by d km/h;
* `oracle:d`: skipped where the HAT's true mean is within d of its forecast. No question about a HAT saves more at less
  harm; `oracle-learnt:d,e`: and taken for a measurement off by e.

Printed for each question: the day's error over all HATs less that of the same seed without a question, both over the
constant's error (± is a 95 % interval of the mean over seeds, Student's t; below 0 is better), the share of questions
that were answered yes, HATs measured, and the share of all charges that went to questions.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import DAYS, Feeds, student
from benchmarks.forecast_days import OURS, Day, changed
from udp_stream.adapters.settings import load
from udp_stream.forecast.bank import Told
from udp_stream.forecast.prior import Coefficients, prior_of
from udp_stream.forecast.slot import SlotForecast
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.ledger.port import Balance
from udp_stream.planning.around import terms_around
from udp_stream.planning.hat_plan import HatPlans, SlotInPeriod
from udp_stream.planning.policy import Policy
from udp_stream.planning.terms import Terms
from udp_stream.release.context import ReleaseContext, around_forecasts
from udp_stream.release.forecaster import Forecaster
from udp_stream.release.history import History, LedgerHistory
from udp_stream.release.record import QUESTION, Mean, Release, decode, kind_of, release_id
from udp_stream.release.road import release_slot
from udp_stream.testing import SeededEntropy
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.grid import cell_name
from udp_stream.windows.slot_tables import SlotCounts, SlotValues

Floats = NDArray[np.float64]

KINDS = {"asked": 4, "free": 2, "free-learnt": 3, "oracle": 1, "oracle-learnt": 2}
"""Questions, with how many numbers each takes."""

GRID = (
    *("oracle:1", "oracle:2", "oracle:3", "oracle-learnt:2,2"),
    *(f"free:{t},{q}" for t in (5, 8, 12) for q in (0.1, 0.2, 0.3, 0.5)),
    *(f"free-learnt:{t},{q},4" for t, q in ((5, 0.5), (8, 0.3), (12, 0.1), (12, 0.2))),
    *(f"asked:{t},{q},{part},{rounds}" for t, q in ((5, 0.5), (8, 0.3), (12, 0.1))
      for part in (0.02, 0.1, 0.25) for rounds in (1, 4)),
)  # fmt: skip


class Question(NamedTuple):
    """What is asked before a mean; `kind` is one of KINDS."""

    kind: str
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, text: str) -> Question:
        kind, _, numbers = text.partition(":")
        found = tuple(float(number) for number in numbers.split(",")) if numbers else ()
        if KINDS.get(kind) != len(found):
            raise ValueError(f"expected KIND:NUMBER,... with a kind of {', '.join(KINDS)}, got {text!r}")
        return cls(kind, found)

    @property
    def learnt_kmh(self) -> float | None:
        """By how much a forecast is taken to be off where the answer was yes, if that is learnt."""
        return self.numbers[-1] if self.kind.endswith("-learnt") else None


@dataclass
class Tally:
    """What came of a run's questions."""

    asked: int = 0
    skipped: int = 0
    forecasts: dict[str, float] = field(default_factory=dict)


class Knowing:
    """The planner around forecasts, who knows the answer to a question before each mean, and pays nothing for it.

    It sees speeds: nothing here is a release.
    """

    def __init__(self, question: Question, forecaster: Forecaster) -> None:
        """`values` are to be set before each slot."""
        self.values: SlotValues | None = None
        self.tally = Tally()
        self._question, self._forecaster = question, forecaster

    def __call__(
        self, counts: SlotCounts, balance: Balance, in_period: SlotInPeriod, policy: Policy, history: History,
        plans: HatPlans,
    ) -> Sequence[Terms]:  # fmt: skip
        forecast = self._forecaster.forecast(counts, Learnt(history, self.tally, self._question.learnt_kmh))
        terms = terms_around(counts, forecast, in_period, policy, plans)
        spent = balance.charged.copy()
        means = self._means(counts)
        for hat in sorted(range(len(terms)), key=lambda hat: terms[hat].turn):
            if terms[hat].withheld:
                continue
            rows, asked = counts.rows(hat), terms[hat]
            plates, charges = counts.plate[rows], plans.of(counts.count[rows], asked).charges
            can_pay = spent[plates] + charges <= (asked.allowance_nano or policy.budget_nano)
            if can_pay.sum() < max(asked.admitted_min, policy.min_plates):
                continue  # it is not measured, or without a question
            self.tally.asked += 1
            if not self._is_alike(counts, hat, np.arange(rows.start, rows.stop)[can_pay], forecast, means):
                spent[plates[can_pay]] += charges[can_pay]
                continue
            self.tally.skipped += 1
            id_ = release_id(cell_name(int(counts.cells[hat])), counts.start_ms, counts.end_ms)
            self.tally.forecasts[id_] = float(forecast.mean[hat])
            terms[hat] = Terms(withheld="uninformative", forecast=asked.forecast)
        return terms

    def _is_alike(
        self, counts: SlotCounts, hat: int, rows: NDArray[np.int64], forecast: SlotForecast, means: Floats
    ) -> bool:
        """The answer: nothing moved."""
        kind, numbers = self._question
        if kind.startswith("oracle"):
            here = counts.rows(hat)
            truth = np.average(means[here], weights=counts.count[here])
            return abs(float(truth) - float(forecast.mean[hat])) < numbers[0]
        far = int((np.abs(means[rows] - forecast.plates[rows]) > numbers[0]).sum())
        return far < numbers[1] * rows.size

    def _means(self, counts: SlotCounts) -> Floats:
        """Of each row, km/h."""
        if self.values is None:
            raise RuntimeError("expected the slot's values")
        sums = np.add.reduceat(self.values.speed, self.values.starts[:-1])
        found: Floats = sums / counts.count / QUANTA_PER_KMH
        return found


class Learnt:
    """History in which a HAT that was found alike was measured as forecast, off by so many km/h; as it is for None."""

    def __init__(self, history: History, tally: Tally, off_kmh: float | None) -> None:
        self._history, self._tally, self._off_kmh = history, tally, off_kmh

    def releases(self, start_ms: int, end_ms: int, cells: Sequence[int]) -> list[Release | None]:
        return [self._with(one) for one in self._history.releases(start_ms, end_ms, cells)]

    def city(self, start_ms: int, end_ms: int) -> Told | None:
        return self._history.city(start_ms, end_ms)

    def slots_since(self, start_ms: int) -> dict[tuple[int, int], list[int]]:
        return self._history.slots_since(start_ms)

    def _with(self, one: Release | None) -> Release | None:
        if one is None or self._off_kmh is None or one.release_id not in self._tally.forecasts:
            return one
        value = max(0.0, self._tally.forecasts[one.release_id])
        off = self._off_kmh / 1.2533
        mean = Mean(value, "question", None, 1.0, off, off, (0.0, value + 1), off)
        return msgspec.structs.replace(one, mean=mean)


class Result(NamedTuple):
    """Of a day and seed: errors over the constant's, all HATs and those of at least ten plates; shares."""

    error: float
    error_large: float
    yes: float
    measured: float
    to_questions: float


def run(day: Day, seed: int, prior: Coefficients | None, question: Question | None, flags: Sequence[str]) -> Result:
    """A day on a ledger of its own, as `forecast_days.run`, with a question before each mean or without."""
    asked = question if question is not None and question.kind == "asked" else None
    known = question if question is not None and question.kind != "asked" else None
    settings = load(None, (*day.feed.flags, *OURS, *flags, *([] if asked is None else _as_settings(asked))), {})
    policy, slots, ledger = settings.policy, settings.calendar.slots, MemoryLedger()
    planner, reader = (Forecaster(slots, policy.max_speed, "benchmark", policy.counts_read) for _ in range(2))
    knowing = Knowing(known or Question("oracle", (0.0,)), planner)
    plans = around_forecasts(planner) if known is None else knowing
    context = ReleaseContext(policy, settings.calendar, SeededEntropy(seed), "benchmark", plans, forecaster=planner)
    value: list[float] = []
    measured, tally = 0, knowing.tally
    with changed(prior_of, __defaults__=("plates", prior)):
        for counts, values in day.slots:
            knowing.values = values
            out = release_slot(counts, values, context, ledger, lambda _: None)
            reader.saw(counts)
            history = Learnt(LedgerHistory(ledger), tally, None if question is None else question.learnt_kmh)
            found = {one.release_id: one for one in reader.smoothed((counts.start_ms, counts.end_ms), history)}
            value += [found[id_].value_kmh for id_ in out.payloads]
            records = [decode(payload) for payload in out.payloads.values()]
            measured += sum(one.mean is not None for one in records)
            tally.asked += sum(one.question is not None for one in records)
            tally.skipped += sum(one.question is not None and not one.question.moved for one in records)
    estimate, charged = np.array(value), Counter[str]()
    for entry in ledger.entries():
        charged[kind_of(entry.release_id)] += int(entry.charged.sum())
    return Result(
        day.over_constant(estimate), day.over_constant(estimate, 10), tally.skipped / max(1, tally.asked), measured,
        charged[QUESTION] / max(1, charged.total()),
    )  # fmt: skip


def _as_settings(question: Question) -> list[str]:
    names = "ask_far_kmh", "ask_share", "ask_first", "ask_rounds"
    return [f"release.{name}={number:g}" for name, number in zip(names, question.numbers, strict=True)]


def said(differences: Floats) -> str:
    """Mean and interval."""
    if differences.size < 2:
        return f"{differences.mean():+.4f}"
    half = student(differences.size - 1) * differences.std(ddof=1) / np.sqrt(differences.size)
    return f"{differences.mean():+.4f}±{half:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("questions", nargs="*", metavar="QUESTION")
    parser.add_argument("--set", action="append", default=[], dest="flags", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--feeds", default=",".join(DAYS))
    asked = parser.parse_args()
    feeds = Feeds(asked.folder, asked.flags)
    names = [name for name in feeds.names if name in asked.feeds.split(",")]
    if not names:
        parser.error(f"expected one of {', '.join(DAYS)}.ndjson.gz in {asked.folder}, got none")
    days = [feeds.day(name, 7) for name in names]
    priors = [feeds.prior(day.year, 7) for day in days]

    def runs(question: Question | None) -> Floats:
        """(days, seeds, figures)."""
        return np.array(
            [
                [run(day, seed, prior, question, asked.flags) for seed in range(asked.seeds)]
                for day, prior in zip(days, priors, strict=True)
            ]
        )

    without = runs(None)
    for day, errors in zip(days, without, strict=True):
        mean = errors.mean(axis=0)
        print(f"without, {day.feed.name}: {mean[0]:.4f}/{mean[1]:.4f}, measured {mean[3]:.0f}", flush=True)
    for text in asked.questions or GRID:
        found = runs(Question.of(text))
        off = found[..., 0] - without[..., 0]
        per_day = "  ".join(said(one) for one in off)
        shares = found.mean(axis=(0, 1))
        more = found[..., 3].sum() / without[..., 3].sum()
        large = said((found[..., 1] - without[..., 1]).mean(axis=0))
        print(
            f"{text:<24}{said(off.mean(axis=0))} (>=10 plates {large})  yes {shares[2]:.2f}  measured {more:.2f}"
            f"  to questions {shares[4]:.3f} | {per_day}",
            flush=True,
        )


if __name__ == "__main__":
    main()
