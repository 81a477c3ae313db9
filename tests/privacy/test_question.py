"""What a question before a release costs: its count's sensitivity, its noise, and one plate's losses in whole days."""

from dataclasses import dataclass, field
from itertools import product

import msgspec
import numpy as np
import pytest
from scipy import stats

from tests.privacy import test_forecast_audit as days
from tests.unit.test_flow import a_context, slot
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.lifecycle import HatState
from udp_stream.queries import elimination
from udp_stream.queries.elimination import Elimination, Round
from udp_stream.queries.splits import Parts
from udp_stream.release import question
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import with_forecaster
from udp_stream.release.decide import decide
from udp_stream.release.outcome import hats_of
from udp_stream.release.question import _Asking, far_from_forecast
from udp_stream.release.record import QUESTION, kind_of
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

AROUND = "release.mean=forecast-clip", "release.cdf_epsilon=0"
ONE_ROUND = (*AROUND, "release.ask_first=0.2", "release.ask_far_kmh=14", "release.ask_rounds=1")
A_DAY = (*days.MEAN, "release.ask_first=0.4", "release.ask_far_kmh=6", "release.ask_share=0.5", "release.ask_rounds=3")


@pytest.mark.parametrize("by_plate", [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_a_plate_moves_the_count_by_at_most_one_whatever_was_forecast(by_plate):
    counts, moved = np.array(by_plate), set()
    for forecasts, far, rest in product(product((0, 1, 3), repeat=2), (1, 2), product(range(4), repeat=by_plate[1])):
        found = [
            far_from_forecast(np.array([*own, *rest]), counts, np.array(forecasts), far)
            for own in product(range(4), repeat=by_plate[0])
        ]
        moved.add(max(found) - min(found))
        assert min(found) >= 0 and max(found) <= 2
    assert moved == {0, 1}


def far_plates(counts, values, terms, hat):
    """The count by its definition, plate by plate."""
    (around,) = (one.around for one in terms.statistics if one.around is not None)
    rows = range(*counts.rows(hat).indices(counts.count.size))
    means = [values.speed[values.starts[row] : values.starts[row + 1]].mean() for row in rows]
    return sum(abs(mean - here) > terms.question.far for mean, here in zip(means, around.plates_quanta, strict=True))


@pytest.mark.parametrize("measure", ["pure", "zcdp"])
@pytest.mark.parametrize("off", [1.0, 0.7, 1.3])
def test_a_round_has_its_noise_and_one_30_percent_off_is_caught(measure, off, monkeypatch):
    honest = elimination.Tariff.parts

    def parts(self, round_, plates):
        whole = honest(self, round_, plates)
        return Parts(whole.charge, np.rint(whole.t * off).astype(np.int64), whole.s)

    monkeypatch.setattr(elimination.Tariff, "parts", parts)
    flags = ("budget.accounting=approximate",) if measure == "zcdp" else ()
    counts, values = slot()
    context, ledger, bits = with_forecaster(a_context(*ONE_ROUND, *flags)), MemoryLedger(), seeded_bits(measure)
    plan = plan_slot(counts, context, ledger)
    hat = decide(hats_of(counts), counts, plan, context.policy)[0]
    assert hat.state is HatState.ASKED
    asking, truth = _Asking(hat, hat.terms.question, counts, values), far_plates(counts, values, hat.terms, 0)
    drawn = np.array([msgspec.json.decode(asking.drawn(bits))[0] for _ in range(600)])
    charge = int(hat.charged.max()) / NANO
    law = stats.norm(0, 1 / np.sqrt(2 * charge)) if measure == "zcdp" else stats.laplace(0, 1 / charge)
    between = np.random.default_rng(1).uniform(-0.5, 0.5, drawn.size)  # whole numbers, beside a law that has others
    noise = drawn - truth + between
    size = law.expect(abs)
    deviations = (np.abs(noise).mean() / size - 1) * np.sqrt(drawn.size) / (law.std() ** 2 / size**2 - 1) ** 0.5
    assert (abs(deviations) < 4) == (off == 1) and law.std() > 4
    assert off != 1 or stats.kstest(noise, law.cdf).pvalue > 1e-4


@dataclass
class Rounds:
    """Of a run: each round's true count, what came of it, and the loss per step."""

    truth: list[int] = field(default_factory=list)
    noisy: list[int] = field(default_factory=list)
    per_step: list[float] = field(default_factory=list)


def run(monkeypatch, messages, seed, given=None):
    """A day with questions; `given` is an earlier day, whose outputs this one has to have."""
    this, real = Rounds(), Elimination.draw

    def draw(self, state, plates, positions, bits, noise=None):
        parts, at = self._tariff.parts(state.rounds, plates), len(this.noisy)
        found = real(self, state, plates, positions, bits, noise)
        if given is not None:
            found = Round(plates, np.array([[given[1].noisy[at]]]))
        this.truth.append(int(positions[0, 0]))
        this.noisy.append(int(found.values[0, 0]))
        this.per_step.append(float(1 / parts.scale[0]))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Elimination, "draw", draw)
        done = days.run(patched, messages, seed, A_DAY, given=None if given is None else given[0].noisy)
    return done, this


@dataclass(frozen=True)
class Audit:
    """In nano-epsilon: what outputs tell of the plate, the most that they could, of that by rounds; what it paid."""

    seen: float
    most: float
    most_by_rounds: float
    charged: int
    charged_for_rounds: int


def audited(monkeypatch, plate, seed):
    fast, fast_rounds = run(monkeypatch, days.of_plate(plate, 65), seed)  # far from any forecast
    slow, slow_rounds = run(monkeypatch, days.of_plate(plate, 19), seed, (fast, fast_rounds))
    assert slow.ledger.calls == fast.ledger.calls and slow.payloads == fast.payloads
    a, b, out, per_step = map(np.array, (fast_rounds.truth, slow_rounds.truth, fast_rounds.noisy, slow_rounds.per_step))
    assert fast_rounds.per_step == slow_rounds.per_step and np.abs(a - b).max() == 1
    seen, most = float((np.abs(out - b) - np.abs(out - a)) @ per_step), float(np.abs(a - b) @ per_step)
    by_rounds = most
    for one, other, found in zip(fast.queries, slow.queries, fast.noisy, strict=True):
        steps = one.s / one.t
        seen += float((np.abs(found - other.integers) - np.abs(found - one.integers)) @ steps)
        most += float(np.abs(one.integers - other.integers) @ steps)
    key = days.key_of(plate)
    for_rounds = sum(
        dict(zip(entry.plates, entry.charged.tolist(), strict=True)).get(key, 0)
        for entry in fast.ledger.entries()
        if kind_of(entry.release_id) == QUESTION
    )
    charged = sum(fast.ledger.charged_by_period(key).values())
    return Audit(seen * NANO, most * NANO, by_rounds * NANO, charged, for_rounds)


@pytest.fixture(scope="module")
def busiest():
    """The plate that pays the most."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        done, _ = run(monkeypatch, list(days.with_speeds(lambda _: None)), "which")
    plates = {ping["license_plate"] for ping in days.day()}
    return max(sorted(plates), key=lambda plate: sum(done.ledger.charged_by_period(days.key_of(plate)).values()))


@pytest.mark.parametrize("seed", range(2))
def test_what_a_plate_loses_to_questions_and_releases_stays_under_its_ledger(monkeypatch, busiest, seed):
    one = audited(monkeypatch, busiest, seed)
    assert abs(one.seen) <= one.most * (1 + 1e-9) and one.most <= one.charged <= 10 * NANO
    assert 0.2 * NANO < one.most_by_rounds <= one.charged_for_rounds * (1 + 1e-9)
    assert one.most > 0.5 * one.charged  # there is something to lose, and it is seen


def test_rounds_that_are_charged_too_little_are_caught(monkeypatch, busiest):
    honest = question._parts
    monkeypatch.setattr(question, "_parts", lambda asked: [part // 3 for part in honest(asked)])
    one = audited(monkeypatch, busiest, 1)
    assert one.most_by_rounds > one.charged_for_rounds > 0
