"""Record a morning under "add-remove", then play it without a plate, with noise such that the
noised sums are equal.

Everything public follows from noised sums and settings. So all that leaves is then equal, byte for
byte, whatever the plate sent; the exact sums differ by the plate's own vectors alone; and their
squares over 2 sigma^2 cost at most rho.
"""

import random
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import h3
import msgspec
import numpy as np

from tests.forms import changed
from udp_stream.base.units import NANO
from udp_stream.embedded.runtime import (
    EmbeddedRuntime,
    LiveRuntime,
    Outputs,
    release_sink,
    smoothed_sink,
)
from udp_stream.ledger.ids import Id
from udp_stream.ledgers.sqlite import open_sqlite_ledger
from udp_stream.ledgers.statement import statement
from udp_stream.mechanisms import add_remove as mechanism
from udp_stream.mechanisms.add_remove import Entries
from udp_stream.release import add_remove as road
from udp_stream.release.record import Release
from udp_stream.settings import Settings, load
from udp_stream.sources.journal import Journal
from udp_stream.testing import seeded_bits
from udp_stream.windows.clocks import SteadyClock

MINUTE = 60_000
START = 1_704_672_000_000  # 2024-01-08 00:00 UTC
CENTRE = h3.latlng_to_cell(21.19, 72.83, 7)
MINUTES = 93
SLOTS = [
    (START + number * 15 * MINUTE, START + (number + 1) * 15 * MINUTE) for number in range(1, 6)
]
"""A run begins in the first slot, which has no record; the last one is closed two minutes behind
its end."""


@cache
def settings_of(domain, *flags):
    """Slots of 15 minutes, a budget an hour: it is used up by whoever sends much."""
    fixed = (
        "privacy.neighbours=add-remove", f"hat.domain={domain}", "pings.interval=10s", "hat.slot=15m", "kafka.shards=1",
        "hat.resolution=7", "hat.timezone=UTC", "budget.period=1h",
    )  # fmt: skip
    return load(None, (*fixed, *flags), {})


# The city: what each plate sends, as messages of pieces, each with its plate.


class Piece(NamedTuple):
    plate: str
    text: bytes


class Sent(NamedTuple):
    """A message, and the minute in which it comes. Shared ones are arrays, also of a single piece
    that is left."""

    minute: int
    pieces: tuple[Piece, ...]
    is_shared: bool = False

    def without(self, plate):
        return changed(self, pieces=tuple(one for one in self.pieces if one.plate != plate))

    @property
    def message(self):
        texts = [one.text for one in self.pieces]
        return texts[0] if texts and not self.is_shared else b"[" + b",".join(texts) + b"]"


def ping(plate, at_ms, where, speed):
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=round(at_ms))
    place = {"type": "Point", "coordinates": list(where)}
    said = {
        "license_plate": plate,
        "observationDateTime": time.isoformat(),
        "location": place,
        "speed": speed,
    }
    return msgspec.json.encode(said)


CELLS = sorted(h3.grid_disk(CENTRE, 1))
EMPTY, LONELY = CELLS[0], CELLS[1]
"""Of the domain: one in which nobody is, one in which a single plate is."""


def spot(dice, cell):
    lat, lon = h3.cell_to_latlng(cell)
    return lon + dice.uniform(-0.003, 0.003), lat + dice.uniform(-0.003, 0.003)


def drives(
    dice,
    plate,
    every_s=20.0,
    speeds=None,
):
    cell = dice.choice(CELLS[2:])
    for minute in range(MINUTES):
        if dice.random() < 0.3:
            cell = dice.choice(CELLS[2:])
        for second in np.arange(dice.uniform(0, 5), 60, every_s).tolist():
            speed = dice.uniform(3, 60) if speeds is None else speeds()
            yield (
                minute,
                ping(
                    plate, START + minute * MINUTE + 1000 * second - 30_000, spot(dice, cell), speed
                ),
            )


def rare(dice, plate):
    for _ in range(dice.randint(1, 3)):
        minute = dice.randrange(18, MINUTES - 4)
        yield minute, ping(plate, START + minute * MINUTE, spot(dice, LONELY), dice.uniform(0, 60))


def absurd(dice, plate):
    """It reports 0 or the limit in turn, and more than any bus can drive."""
    said = 0, 64.9, 0, 199.0, 201, 5000, -3, 1e300, "20", None
    return drives(dice, plate, 12.0, lambda: dice.choice(said))


def floods(dice, plate):
    yield from drives(dice, plate)
    minute = dice.randrange(20, 80)
    for number in range(2500):
        yield (
            minute,
            ping(
                plate, START + minute * MINUTE - 37 * number, spot(dice, dice.choice(CELLS[2:])), 60
            ),
        )


def late(dice, plate):
    for minute, text in drives(dice, plate, 30.0):
        yield min(minute + dice.choice([0, 0, 1, 2, 3, 10, 16, 40]), MINUTES - 1), text


def ahead(dice, plate):
    """Its clock is ahead by seconds to decades, or 1,024 weeks behind."""
    for minute in range(MINUTES):
        for off in (0, 30, dice.choice([29, 31, 60, 100, 900, 86_400, 10**9]), -7168 * 86_400):
            yield (
                minute,
                ping(
                    plate, START + minute * MINUTE + 30_000 + 1000 * off, spot(dice, CELLS[3]), 60
                ),
            )


def broken(dice, plate):
    for minute, text in drives(dice, plate):
        whole = (
            text,
            b"[%s,%s]" % (text, text),
            b'{"results": [%s, {}]}' % text,
            msgspec.json.encode(text.decode()),
        )
        wrong = (
            (b"speed", b"v"),
            (b"Point", b"Line"),
            (b"+00:00", b""),
            (b"2024", b"20x4"),
            (b'"speed":', b'"speed":NaN'),
        )
        none = b"not json", b"", b"{}", b"[]", b"17", text[: dice.randrange(len(text))]
        yield minute, dice.choice([*whole, *none, *(text.replace(*one) for one in wrong)])


def outside(dice, plate):
    for minute, text in drives(dice, plate):
        yield (
            minute,
            dice.choice([text, text.replace(b"21.", b"22."), text.replace(b"72.", b"272.")]),
        )


def repeats(dice, plate):
    """The same moment several times, also elsewhere and at other speeds; and under its name with
    spaces."""
    for minute, text in drives(dice, plate):
        yield minute, text
        said = msgspec.json.decode(text)
        said |= {
            "speed": dice.choice([0, 65]),
            "location": {"coordinates": list(spot(dice, dice.choice(CELLS[2:])))},
        }
        said["license_plate"] = dice.choice([plate, f" {plate} ", f"\u200b{plate}"])
        yield min(minute + dice.randrange(2), MINUTES - 1), msgspec.json.encode(said)


def in_knots(dice, plate):
    """As if in another unit: in metres a second at first, then thrice as fast."""
    share = iter([0.28] * 100 + [3.0] * 10**4)
    return drives(dice, plate, 20.0, lambda: dice.uniform(3, 60) * next(share))


KINDS = {
    "busy": partial(drives, every_s=4.0), "usual": drives, "rare": rare, "absurd": absurd, "floods": floods,
    "late": late, "ahead": ahead, "broken": broken, "outside": outside, "repeats": repeats, "knots": in_knots,
}  # fmt: skip
USUAL = 6
"""Plates as any others, beside one or two of each kind."""


def plates_of(seed):
    """Their names begin with their kind."""
    return [
        *(f"{kind}-{seed}" for kind in KINDS),
        *(f"usual-{seed}-{number}" for number in range(USUAL)),
    ]


@cache
def city(seed):
    """By minute, in an order and in messages that are drawn once. A third of what is JSON shares a
    message."""
    dice, found = random.Random(f"city {seed}"), []
    by_minute = defaultdict(list)
    for plate in plates_of(seed):
        own = random.Random(f"{seed} {plate}")
        for minute, text in KINDS[plate.partition("-")[0]](own, plate):
            by_minute[minute].append(Piece(plate, text))
    for minute, pieces in sorted(by_minute.items()):
        dice.shuffle(pieces)
        shared = []
        for piece in pieces:
            if dice.random() < 0.33 and _is_element(piece.text):
                shared.append(piece)
            else:
                found.append(Sent(minute, (piece,)))
            if len(shared) > dice.randrange(2, 9):
                found.append(Sent(minute, tuple(shared), True))
                shared = []
        found += [Sent(minute, tuple(shared), True)] if shared else []
    return tuple(found)


def _is_element(text):
    """Unreadable pieces make a whole message unreadable: where several share it, that is assumed to
    be alike."""
    try:
        return isinstance(msgspec.json.decode(text), dict | int)
    except msgspec.DecodeError:
        return False


DAYS = [
    (START + minute * MINUTE, START + (minute + 15) * MINUTE)
    for minute in (1425, 1440, 2850, 2865, 2880)
]
"""The slot that ends a first day; of a second one, the first slot and the last two; and the slot
behind it, which follows from what its day's sums told."""


def over_days(sent):
    """The same messages with the times of these slots in place of those of `SLOTS`."""

    def later(found):
        minute = 60 * int(found[1]) + int(found[2])
        moved = minute + (1410 if minute < 45 else 2805)
        time = datetime.fromtimestamp(START / 1000 + 60 * moved, UTC)
        return time.strftime("%Y-%m-%dT%H:%M").encode()

    def moved(piece):
        return changed(piece, text=re.sub(rb"2024-01-08T(\d\d):(\d\d)", later, piece.text))

    return [changed(one, pieces=tuple(map(moved, one.pieces))) for one in sent]


def without(sent, plate, leaves_empty):
    """Also from messages of others. Its own messages stay as empty arrays, or go."""
    found = (one.without(plate) for one in sent)
    return [one for one in found if one.pieces or leaves_empty]


# The tape.


def hash_of(plate):
    return plate.encode().ljust(16, b".")


class NamedBits:
    def __init__(self, name):
        self.name, self._bits = name, seeded_bits(name)

    def __call__(self, count):
        return self._bits(count)


class Drawn(NamedTuple):
    """Exact sums of a slot, the vectors that they are of, and their plates' hashes."""

    exact: np.ndarray[Any, Any]
    vectors: Entries
    plates: tuple[bytes, ...]
    sigma: int

    def own(self, plate):
        found = np.zeros_like(self.exact)
        for number, cell, residual, weight in zip(
            *(column.tolist() for column in self.vectors), strict=True
        ):
            if self.plates[number] == plate:
                found[:, cell] += residual, weight
        return found


@dataclass
class Tape:
    """The entropy of a run. Noised sums are kept by name; those that are `given` are played."""

    given: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    seed: object = 0
    noised: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    drawn: dict[str, Drawn] = field(default_factory=dict)
    plates: tuple[bytes, ...] = ()
    running: ClassVar["Tape | None"] = None
    """For planted faults, which read what is secret."""

    def streams(self, names):
        for number, name in enumerate(names):
            yield slice(number, number + 1), NamedBits(name)

    @contextmanager
    def runs(self):
        """Sums are made by the road itself: only what is added to them is ours."""
        charge, honest = road._charge, mechanism.discrete_gaussian

        def watched(name, asked, counts, *rest):
            self.plates = counts.plates
            return charge(name, asked, counts, *rest)

        def noised(vectors, cells, query, bits):
            with patch.object(
                mechanism, "discrete_gaussian", lambda _, sigmas: np.zeros(len(sigmas), np.int64)
            ):
                exact = mechanism.noised(vectors, cells, query, bits)
            self.drawn[bits.name] = Drawn(exact, vectors, self.plates, query.sigma)
            noise = honest(
                seeded_bits(f"{self.seed} {bits.name}"), np.full(exact.size, query.sigma)
            )
            self.noised[bits.name] = self.given.get(bits.name, exact + noise.reshape(exact.shape))
            return self.noised[bits.name]

        with (
            patch.multiple(road, _charge=watched, noised=noised),
            patch.object(Tape, "running", self),
        ):
            yield


# Both runtimes, over a ledger in a file.


class Died(Exception):
    """The process ended here."""


@dataclass
class Fate:
    """When processes die: at minutes, before or behind messages and tick; and at effects, by their
    number in their process: before, or behind them. Neither follows from pings."""

    minutes: list[tuple[int, int]] = field(default_factory=list)
    effects: list[tuple[int, bool]] = field(default_factory=list)
    number: int = 0
    log: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, seed, most=6):
        dice = random.Random(f"fate {seed}")
        minutes = sorted(
            (dice.randrange(MINUTES), dice.randrange(3)) for _ in range(dice.randint(1, most))
        )
        return cls(
            minutes,
            [(dice.randrange(14), dice.random() < 0.5) for _ in range(dice.randint(1, most))],
        )

    def begin(self):
        self.number = 0
        self.log.append("begin")

    def at_minute(self, minute, part):
        if self.minutes and self.minutes[0] == (minute, part):
            self.minutes.pop(0)
            raise Died

    def effect(self, name, does):
        self.number += 1
        self.log.append(name)
        dies = bool(self.effects) and self.effects[0][0] < self.number
        if not dies:
            return does()
        _, is_behind = self.effects.pop(0)
        if is_behind:
            does()
        raise Died


class WatchedLedger:
    """Dies by its fate at what changes the ledger."""

    WRITES = "admit", "record", "published", "mark"

    def __init__(self, ledger, fate):
        self._ledger, self._fate = ledger, fate

    def __getattr__(self, name):
        call = getattr(self._ledger, name)
        if name not in self.WRITES:
            return call
        return lambda *given: self._fate.effect(name, lambda: call(*given))


@dataclass
class Told:
    """All that left a run, in order; the statement; the names of its effects. And what each plate
    was charged for each id, which is secret."""

    releases: list[bytes] = field(default_factory=list)
    estimates: list[bytes] = field(default_factory=list)
    statement: dict[str, Any] = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)
    charged: dict[str, dict[bytes, int]] = field(default_factory=dict)


def live(folder, settings, sent, tape, fate=None):
    """By the minute, through the journal. What the source sent in a minute comes whole, or not at
    all, as the journal has it; processes die, and the next one goes on."""
    told, fate, at, part, is_done = Told(), fate or Fate(), 0, 0, False
    by_minute = defaultdict(list)
    for one in sent:
        by_minute[one.minute].append(one.message)
    now = [START / 1000 + 10.0]
    with tape.runs():
        while not is_done:
            began = now[0]
            clock = SteadyClock(lambda: now[0], lambda began=began: now[0] - began, hears=False)
            try:
                with ExitStack() as stack:
                    opened = stack.enter_context(open_sqlite_ledger(folder / "ledger"))
                    journal = stack.enter_context(Journal(folder / "journal", "the ledger 5eed"))
                    fate.begin()
                    runtime = LiveRuntime(
                        settings, WatchedLedger(opened, fate), tape, hash_of, "test", journal,
                        Outputs(
                            lambda lines: fate.effect("release", lambda: told.releases.extend(lines)),
                            lambda lines: fate.effect("smoothed", lambda: told.estimates.extend(lines)),
                            written=frozenset(Release.decode(one).release_id for one in told.releases),
                        ),
                        clock=clock,
                    )  # fmt: skip
                    runtime.start()
                    while at < MINUTES + 3:  # a process believes its clock after a minute
                        now[0] = START / 1000 + 60 * at + 30
                        while part < 3:
                            part += 1  # a part at which the process dies is over
                            fate.at_minute(at, part - 1)
                            if part == 1 and at in by_minute:
                                runtime.take(by_minute[at])
                            if part == 2:
                                runtime.tick()
                        at, part = at + 1, 0
                    runtime.stop()
                    is_done = True
            except Died:
                continue
        with open_sqlite_ledger(folder / "ledger") as ledger:
            _finish(told, settings, ledger, fate)
    return told


def replayed(folder, settings, sent, tape, fate=None):
    """A recording, in frames that follow from what is in it; after a death from its beginning, as a
    file is."""
    messages, fate = [one.message for one in sent], fate or Fate()
    frames = [messages[at : at + 500] for at in range(0, len(messages), 500)]

    def write(name, to, lines):
        fate.effect(name, lambda: to.extend(lines))

    with tape.runs():
        while True:
            told = Told()
            try:
                with open_sqlite_ledger(folder / "ledger") as opened:
                    fate.begin()
                    to = release_sink(partial(write, "release", told.releases))
                    more = smoothed_sink(partial(write, "smoothed", told.estimates))
                    ledger = WatchedLedger(opened, fate)
                    EmbeddedRuntime(
                        settings, ledger, tape, hash_of, "test", to, smooth=more, slots=SLOTS
                    ).run(frames)
                    _finish(told, settings, opened, fate)
                    return told
            except Died:
                continue


def _finish(told, settings, ledger, fate):
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    told.statement, told.effects = statement(settings, ledger), fate.log
    told.charged = {
        entry.release_id: dict(zip(entry.plates, entry.charged.tolist(), strict=True))
        for entry in ledger.entries()
    }


# The audit.


class Leak(AssertionError):
    """Something public, or another plate's part of a sum, follows from a plate."""


@dataclass
class Recorded:
    """A run, its tape, and the plays of it."""

    settings: Settings
    told: Told | None
    tape: Tape

    @classmethod
    def of(
        cls,
        drive,
        folder,
        settings,
        sent,
        *rest,
    ):
        folder.mkdir(parents=True)
        tape = Tape()
        told = drive(folder, settings, sent, tape, *rest)
        return cls(settings, told, tape)

    def plays(self, drive, folder, sent, plate, *rest):
        """Leak, unless what is played without this plate is the same. The share of rho that its
        squares cost in the period where they cost most; and whether it moved anything."""
        folder.mkdir(parents=True)
        tape = Tape(self.tape.noised)
        told = drive(folder, self.settings, sent, tape, *rest)
        assert self.told is not None
        for name in ("releases", "estimates", "statement", "effects"):
            require(getattr(told, name) == getattr(self.told, name), f"{name} follow from {plate}")
        charges = [
            {
                id_: {one: nano for one, nano in of.items() if one != hash_of(plate)}
                for id_, of in run.charged.items()
            }
            for run in (self.told, told)
        ]
        require(charges[0] == charges[1], f"charges of others follow from {plate}")
        return self.share_of(tape, plate)

    def share_of(self, tape, plate):
        require(tape.drawn.keys() == self.tape.drawn.keys(), "slots are the same")
        spent, moved = defaultdict(Fraction), False
        for name, drawn in self.tape.drawn.items():
            played = tape.drawn[name]
            off = drawn.exact - played.exact
            start_s, _ = Id.of(name).slot
            period = self.settings.calendar.slot_in_period(1000 * start_s).period
            cost = Fraction(int((off.astype(object) ** 2).sum()) * NANO, 2 * drawn.sigma**2)
            if self.told is not None:
                paid = self.told.charged[name].get(hash_of(plate), 0)
                require(cost <= paid, f"{plate} costs {float(cost)} of {paid} paid")
            spent[period] += cost
            require(
                np.array_equal(off, drawn.own(hash_of(plate))),
                f"parts of others follow from {plate}",
            )
            moved |= bool(off.any())
        share = max(spent.values()) / self.settings.policy.budget_nano
        require(share <= 1, f"{plate} costs {float(share)} of rho")
        return float(share), moved


def require(holds, what):
    if not holds:
        raise Leak(what)
