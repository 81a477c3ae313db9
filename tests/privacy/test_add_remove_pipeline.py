"""Record and play: days with and without a plate on the same noised sums, by the whole road, with
crashes between.

Every byte that readers get is equal, and the sums differ by no more than the plate was charged,
slot by slot. So what readers get tells as much of a plate as its charges say
(`docs/mechanisms/add_remove.md`).
"""

import json
import random
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from tests.contract.add_remove import CELLS, FLAGS, HOUR, context_of
from tests.failing import Died, DyingLedger
from tests.forms import long_but, soaked
from tests.unit.test_flow import START
from udp_stream.ledger.ids import DAY_SUMS, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.ledgers.statement import statement
from udp_stream.mechanisms import add_remove as mechanism
from udp_stream.planning import policy
from udp_stream.release import add_remove
from udp_stream.release.promise import PROMISES, release_slot
from udp_stream.release.record import Smoothed
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.units import NANO
from udp_stream.windows.tables import SlotPings, tabulate

MIDNIGHT = START - 10 * HOUR
HOURS = 20, 21, 22, 23, 24, 25, 46, 47, 48
"""Those from the fifth on are of another day and budget, with sums of the city, and of the day at
its end; the last is around what that told."""

PLATES = (
    "busy",
    "rare",
    "absurd",
    "thousands",
    "once",
    "away",
    *(f"other {number}" for number in range(8)),
)
DOMAIN = load(None, FLAGS, {}).domain
ELSEWHERE = 0x87283472BFFFFFF


@dataclass
class Tape:
    """The sums of each slot before and after noise; played, noise is what makes of other sums the
    same output."""

    sums: dict = field(default_factory=dict)
    out: dict = field(default_factory=dict)
    slot: str = ""

    def streams(self, release_ids):
        """As entropy, it learns what is drawn."""
        (self.slot,) = release_ids
        return SeededEntropy(1).streams(release_ids)

    @contextmanager
    def running(self, sums):
        """It keeps the sums of each slot here, and plays what it has of the slot."""

        def noised(vectors, cells, query, bits):
            sums[self.slot] = _sums(vectors, cells), query.sigma
            if self.slot not in self.out:
                self.out[self.slot] = mechanism.noised(vectors, cells, query, bits)
            return self.out[self.slot]

        with patch.object(add_remove, "noised", noised):
            yield


def _sums(vectors, cells):
    found = np.zeros((2, cells), np.int64)
    np.add.at(found[0], vectors.cell, vectors.residual)
    np.add.at(found[1], vectors.cell, vectors.weight)
    return found


def pings_of(seed, without=""):
    """By hour; what a plate sends follows from its own dice."""
    dice = {plate: random.Random(f"{seed} {plate}") for plate in PLATES}
    found = {}
    for hour in HOURS:
        rows = []
        for plate in PLATES:
            mine = [(plate, *one) for one in _sent(plate, hour, dice[plate])]
            rows += mine if plate != without else []
        found[hour] = rows
    return found


def key_of(plate):
    return plate.ljust(12).encode()


def _sent(plate, hour, dice):
    """(ms of the slot, cell, km/h)."""
    if plate == "once":
        return [(0, int(DOMAIN[0]), 0)] * (hour == HOURS[0])
    if plate == "rare" and dice.random() < 0.6:
        return []
    home, pings = (
        dice.randrange(CELLS),
        {"busy": 360, "thousands": 3000}.get(plate, dice.randrange(1, 200)),
    )
    at, cells = sorted(dice.sample(range(3_600_000), pings)), [int(cell) for cell in DOMAIN]
    top = 10**6 if plate == "absurd" else 65
    goes = (
        [ELSEWHERE] if plate == "away" else [cells[home], cells[(home + dice.randrange(2)) % CELLS]]
    )
    return [(ms, dice.choice(goes), dice.choice([0, dice.randrange(65), top])) for ms in at]


def slot_of(hour, rows):
    names = sorted({plate for plate, *_ in rows})
    columns = (
        np.array([names.index(plate) for plate, *_ in rows], "u4"), np.array([ms for _, ms, *_ in rows], "u4"),
        np.array([cell for *_, cell, _ in rows], "u8"),
        np.array([kmh * 4096 for *_, kmh in rows], "i8").clip(0, 2**31 - 1).astype("i4"),
    )  # fmt: skip
    start = MIDNIGHT + hour * HOUR
    return tabulate(SlotPings(start, start + HOUR, tuple(map(key_of, names)), *columns))


def outputs(tape, pings, dice=None):
    """What readers get of a morning, and the ledger. With dice, processes die and others take over."""
    ledger, told, estimates = MemoryLedger(), {}, []
    context = replace(context_of(), entropy=tape)
    for hour in HOURS:
        contents = slot_of(hour, pings[hour])
        slot = contents[0].start_ms, contents[0].end_ms
        while True:
            dying = (
                ledger
                if dice is None
                else DyingLedger(ledger, dice.randrange(40), answered=dice.random() < 0.5)
            )
            try:
                release_slot(
                    *contents, context, dying, lambda recorded: told.update(recorded.payloads)
                )
            except Died:
                took_over = PROMISES["add-remove"].with_forecaster(context)
                context = replace(took_over, plate_day=context.plate_day)
            else:
                break
        estimates += [Smoothed.encode(one) for one in context.smoothed(slot, ledger)]
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    seen = (
        list(told.items()),
        estimates,
        json.dumps(statement(load(None, FLAGS, {}), ledger)),
        ledger.progress(),
    )
    return seen, ledger


def violations(seed, plate):
    """What tells that `plate` was there, beyond its charges."""
    tape, others, dice = Tape(), {}, random.Random(f"dies {seed} {plate}")
    with tape.running(tape.sums):
        whole, ledger = outputs(tape, pings_of(seed), dice)
    with tape.running(others):
        without, other_ledger = outputs(
            tape, pings_of(seed, without=plate), random.Random(f"{dice.random()}")
        )
    found = [
        f"output {number}"
        for number, (one, other) in enumerate(zip(whole, without, strict=True))
        if one != other
    ]
    charged = {
        entry.release_id: dict(zip(entry.plates, entry.charged.tolist(), strict=True))
        for entry in ledger.entries()
    }
    spent = {}
    for entry in ledger.entries():
        if entry.release_id not in tape.sums:
            continue
        (sums, sigma), (other, _) = tape.sums[entry.release_id], others[entry.release_id]
        squares = int(((sums - other) ** 2).sum())
        nano = charged[entry.release_id].get(key_of(plate), 0)
        if squares * NANO > nano * 2 * sigma**2:
            found.append(f"{entry.release_id}: {squares / (2 * sigma**2)} of {nano / NANO}")
        spent[entry.period] = spent.get(entry.period, 0) + squares / (2 * sigma**2)
    found += [
        f"{period}: {rho}"
        for period, rho in spent.items()
        if rho > context_of().policy.budget_nano / NANO
    ]
    kept = {
        e.release_id: dict(zip(e.plates, e.charged.tolist(), strict=True))
        for e in other_ledger.entries()
    }
    found += [f"charges of {id_}" for id_, one in charged.items()
              if {name: nano for name, nano in one.items() if name != key_of(plate)} != kept.get(id_)]  # fmt: skip
    return found


@pytest.mark.parametrize("plate", PLATES[:7])
@pytest.mark.parametrize("seed", [*long_but(range(2), range(8)), *soaked(range(8, 150))])
def test_without_a_plate_readers_get_the_same_bytes_and_the_sums_differ_by_its_charges(seed, plate):
    assert violations(seed, plate) == []


def test_charges_are_spent_in_these_mornings():
    """Else they prove nothing: the busiest lose most of a share in each hour, and crashes happen."""
    tape = Tape()
    with tape.running(tape.sums):
        _, ledger = outputs(tape, pings_of(0))
    charged = dict.fromkeys(map(key_of, PLATES), 0)
    for entry in ledger.entries():
        for name, nano in zip(entry.plates, entry.charged.tolist(), strict=True):
            charged[name] += nano
    (of_day,) = (entry for entry in ledger.entries() if kind_of(entry.release_id) == DAY_SUMS)
    assert of_day.charged.sum() > 0 and of_day.release_id in tape.out
    # Those of the city and its bins of speed are behind the cells.
    assert any(out.shape[1] == CELLS + 1 + 6 for out in tape.out.values())
    thousands, away, once = (charged[key_of(name)] for name in ("thousands", "away", "once"))
    assert thousands > 0.9 * context_of().policy.budget_nano and away == 0 < once
    calls = DyingLedger(MemoryLedger())
    release_slot(*slot_of(20, []), context_of(), calls, lambda _: None)
    assert 10 < len(calls.calls) < 40


def a_record_for_cells_with_pings_alone(planted):
    ids_of = add_remove._ids_of
    planted(
        add_remove,
        _ids_of=lambda domain, counts, grid: ids_of(
            domain[np.isin(domain, counts.cells)], counts, grid
        ),
    )


def a_count_in_an_interval(planted):
    saw, amounts = add_remove.AddRemoveForecaster.saw, add_remove.AddRemoveForecaster._amounts

    def remembers(self, counts):
        self.leak = len(counts.plates)
        saw(self, counts)

    def tells(self, found):
        high = found.traffic_high + self.leak / 100
        return amounts(self, type(found)(**{**_fields(found), "traffic_high": high}))

    planted(add_remove.AddRemoveForecaster, saw=remembers, _amounts=tells)


def _fields(found):
    return {name: getattr(found, name) for name in type(found).__dataclass_fields__}


def a_factor_that_reads_another_plate(planted):
    def shared(left, *slots):
        return mechanism.allowances(left, *slots) // max(1, left.size) * 8

    planted(add_remove, allowances=shared)


def a_charge_of_k_q_for_k2_q(planted):
    """Shortened by k, where k^2 q is the charge's square over q: the ledger has less than the
    vector costs."""

    def shortened(vectors, charged, query):
        price = vectors.charges(charged.size, query)
        more = np.minimum(price, np.sqrt(charged.astype(float) * price).astype(np.int64))
        return mechanism.shortened(vectors, np.maximum(charged, more), query)

    planted(add_remove, shortened=shortened)


def plates_in_the_statement(planted):
    without = SimpleNamespace(**vars(policy) | {"ending_of": lambda _: ""})
    planted("udp_stream.ledgers.statement", names=without)


@pytest.mark.parametrize(
    "fault",
    [
        a_record_for_cells_with_pings_alone, a_count_in_an_interval, a_factor_that_reads_another_plate,
        a_charge_of_k_q_for_k2_q, plates_in_the_statement,
    ],
)  # fmt: skip
def test_planted_faults_are_found(planted, fault):
    fault(planted)
    assert any(violations(0, plate) for plate in ("busy", "thousands", "once"))
