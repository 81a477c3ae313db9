"""The ledger's rules as pure functions, for all stores alike: rolling budgets, calls, balances,
high-water marks."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import zip_longest
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Flags, Integers
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import parse_duration
from udp_stream.ledger.ids import NEVER_ENDS, closes_at, end_of
from udp_stream.ledger.port import (
    LAST_NAME,
    Admission,
    Balance,
    Entry,
    Ledger,
    Mark,
    Progress,
    Verdict,
)

# Rolling budgets: no stretch of a given length, wherever it begins, may cost a plate more than its
# budget. Balances are of short *spans* of time, such as an hour, named by the window's length and
# their ends:
#
#     rolling 1d from 2024-01-08T06:00:00+05:30 to 2024-01-08T07:00:00+05:30
#
# A charge belongs to one span, which holds all the pings that it is for. It is admitted if in every
# *window*, that is every stretch of the length, what was charged in the spans that the window
# touches stays within the budget.
#
# 1. Two spans are touched by a single window if from the end of the earlier to the start of the
#    later it is less than the length. So a window of a day touches up to 25 whole hours. A touched
#    span is counted whole.
# 2. Slide a window later, until the first of its spans is about to leave. It has lost none, and may
#    have won some. So only windows that end so have to be looked at: one for each span at most, and
#    one in all where slots are charged in their order.
# 3. All charges of a call belong to one span, which every such window touches. So each plate has
#    a number for the call: the most that it was charged *elsewhere*, in the other spans of any
#    one window. With it, a charge is decided as in a calendar's period. Spans on both sides count,
#    as slots may be charged out of order.
# 4. Only spans within a length before and after are looked at, however long the history.
#
# Names of one window length and unit (what stands behind the end) are a single account, whatever
# their zone, and however their spans lie to each other. They are ordered by their text, which is
# local time. So names at most so far away lie between two others (`names_around`), with a day on
# either side for the zones.

ROLLING = "rolling "
"""Beginning of the names of rolling budgets."""

_NAME = re.compile(rf"{ROLLING}([^ ]+) from ([^ ]+) to ([^ ]+)( .*)?")
_DAY_S = 86_400


class AccountSpan(NamedTuple):
    """Unix seconds from `start` to before `end`, of the account of windows of this length; `unit`
    is what is behind.

    >>> span_of("rolling 1d from 1970-01-01T06:00:00+00:00 to 1970-01-01T07:00:00+00:00")
    AccountSpan(length='1d', unit='', start=21600.0, end=25200.0)
    """

    length: str
    unit: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return parse_duration(self.length)

    def shares_window(self, other: AccountSpan) -> bool:
        is_one_account = (self.length, self.unit) == (other.length, other.unit)
        return (
            is_one_account
            and max(self.start, other.start) - min(self.end, other.end) < self.seconds
        )


def span_name(length: str, start: str, end: str) -> str:
    """The name of a span from and to these times, ISO-8601 with offsets."""
    return f"{ROLLING}{length} from {start} to {end}"


@lru_cache(maxsize=2**16)
def span_of(name: str) -> AccountSpan | None:
    """The span of this name; None for the name of any other period."""
    if (match := _NAME.fullmatch(name)) is None:
        return None
    try:
        start, end = (datetime.fromisoformat(text) for text in match.group(2, 3))
        seconds = parse_duration(match[1])
    except ValueError:
        return None
    if (
        start.tzinfo is None
        or end.tzinfo is None
        or not start < end
        or not 0 < seconds < float("inf")
    ):
        return None
    return AccountSpan(match[1], match[4] or "", start.timestamp(), end.timestamp())


def names_around(name: str) -> tuple[str, str] | None:
    """Two names between which, by their text, all lie that share a window with this span; None for
    another period."""
    if (span := span_of(name)) is None:
        return None
    # Names tell where spans start: one that ends within reach may start its own length earlier.
    back = span.start - 2 * (span.seconds + _DAY_S)
    ahead = span.end + span.seconds + _DAY_S
    prefix = account_prefix(span)
    return prefix + _text(back), prefix + _text(ahead)


def account_prefix(span: AccountSpan) -> str:
    """Beginning of the names of spans with windows of this length."""
    return f"{ROLLING}{span.length} from "


def _text(seconds: float) -> str:
    """In universal time, without its offset; the first or the last time that has a text, if it is
    beyond."""
    try:
        return (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
    except OverflowError:
        return (datetime.min if seconds < 0 else datetime.max).isoformat(timespec="seconds")


class WindowSpans(NamedTuple):
    """The spans that share a window with one, without itself, and which of them each window has:
    windows x spans.

    >>> edges = [f"2024-01-08T{hour:02}:00:00Z" for hour in range(7)]
    >>> hours = [span_name("2h", *ends) for ends in zip(edges, edges[1:])]
    >>> windows = windows_around(hours[2], hours)
    >>> [hours.index(name) for name in windows.others], windows.inside.astype(int).tolist()
    ([0, 1, 3, 4], [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    >>> windows.most(np.array([[1], [2], [3], [4]]))  # charged in each of the four, by one plate
    array([7])
    """

    others: tuple[str, ...]
    inside: Flags

    def most(self, amounts: Integers) -> Integers:
        if not self.others:
            return np.zeros(amounts.shape[1], np.int64)
        most: Integers = np.max(self.inside.astype(np.int64) @ amounts, axis=0)
        return most


def windows_around(name: str, known: Iterable[str]) -> WindowSpans:
    """The windows that touch this span, by what they touch of the known ones; none for a period of
    another kind."""
    ours = span_of(name)
    if ours is None:
        return WindowSpans((), np.zeros((1, 0), bool))
    found = ((other, span_of(other)) for other in known if other != name)
    spans = sorted(
        ((other, span) for other, span in found if span is not None and ours.shares_window(span)),
        key=lambda one: (one[1].start, one[0]),
    )
    starts, ends = (
        np.array([getattr(span, side) for _, span in spans], np.float64)
        for side in ("start", "end")
    )
    leaving = np.unique(
        np.append(ends[(ends <= ours.end) & (ends + ours.seconds > ours.start)], ours.end)
    )[:, None]
    inside = (ends >= leaving) & (starts < leaving + ours.seconds)
    return WindowSpans(tuple(other for other, _ in spans), _largest(inside))


def _largest(sets: Flags) -> Flags:
    """The rows that are part of no other; of equal ones the first. One, where all other spans are
    earlier."""
    lacking = sets.astype(np.int64) @ ~sets.T  # of each row, how much of it another lacks
    is_part = lacking == 0
    number = np.arange(len(sets))
    is_equal = is_part & is_part.T
    redundant = (is_part & ~is_equal) | (is_equal & (number[:, None] > number))
    kept: Flags = sets[~redundant.any(axis=1)]
    return kept


class RollingSums:
    """Charges of plates in spans, charge after charge: the most in any window. For reading
    entries through.

    >>> edges = [f"2024-01-08T{hour:02}:00:00Z" for hour in range(5)]
    >>> hours = [span_name("2h", *ends) for ends in zip(edges, edges[1:])]
    >>> sums = RollingSums()
    >>> [sums.charge(hour, [b"plate"], [3]) for hour in (hours[0], hours[3], hours[1], hours[2])]
    [[3], [3], [6], [9]]
    """

    def __init__(self) -> None:
        self._by_plate: dict[bytes, dict[str, int]] = defaultdict(dict)
        self._names: list[str] = []
        self._known: set[str] = set()
        self._windows: tuple[str, WindowSpans] | None = None

    def charge(self, period: str, plates: Sequence[bytes], amounts: Sequence[int]) -> list[int]:
        """Add what each plate was charged in the span: its most in any window that touches it, this
        included."""
        windows = self._around(period)
        balances = [self._by_plate[plate] for plate in plates]
        for balance, amount in zip(balances, amounts, strict=True):
            balance[period] = balance.get(period, 0) + amount
        # Python's integers: a ledger that was tampered with may hold any amounts.
        table = np.array(
            [[balance.get(other, 0) for balance in balances] for other in windows.others],
            dtype=object,
        )
        if not windows.others or not plates:
            return [balance[period] for balance in balances]
        elsewhere = np.max(windows.inside.astype(object) @ table, axis=0)
        return [balance[period] + most for balance, most in zip(balances, elsewhere, strict=True)]

    def _around(self, period: str) -> WindowSpans:
        if period not in self._known:
            self._known.add(period)
            insort(self._names, period)
        if self._windows is None or self._windows[0] != period:
            bounds = names_around(period)
            self._windows = (
                period,
                windows_around(period, between(self._names, *bounds) if bounds else ()),
            )
        return self._windows[1]


def between(names: Sequence[str], first: str, last: str) -> list[str]:
    """Those of sorted names that are neither before the first nor behind the last."""
    return list(names[bisect_left(names, first) : bisect_right(names, last)])


def largest_budgets(ledger: Ledger, periods: Collection[str]) -> dict[str, int]:
    """The largest budget that anything was admitted under in each of these periods; reads every
    entry."""
    found: dict[str, int] = {}
    wanted = set(periods)
    for entry in ledger.entries():
        if entry.period in wanted:
            found[entry.period] = max(entry.budget, found.get(entry.period, 0))
    return found


def compared_ranges(period: str) -> list[tuple[str, str]]:
    """Between which names the periods lie that may overlap this one: of a rolling budget's own
    spans those near by alone."""
    span = span_of(period)
    bounds = names_around(period)
    if span is None or bounds is None:
        return [("", LAST_NAME)]
    prefix = account_prefix(span)
    # `~` sorts behind every date: other accounts come whole, our own only between the bounds.
    return [("", prefix), bounds, (f"{prefix}~", LAST_NAME)]


def budget_balances(ledger: Ledger, period: str, plates: Sequence[bytes]) -> Balance:
    """Charges of the plates against a budget: in the period or, in a span of a rolling one, the
    most in any window. Others may charge meanwhile; `admit` looks for itself."""
    return ledger.view(period, plates, ()).balance


# Calls: what they must satisfy, which plates they charge, whether balances add up. Every store uses
# these.

AMOUNT_LIMIT = 2**53
"""Amounts lie below it: integers that every store and language on the way (Lua, JSON) holds
exactly."""

MEMBERS_MAX = 20_000_000
"""Plates of a HAT, 24 bytes each: Redis takes values of 512 MB."""


def require_valid(budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]) -> None:
    """Raise ValueError, naming the rule, unless a call to `Ledger.admit` makes sense; nothing is
    charged then.

    Plates are distinct (else one plate would have two balances) and of equal length; members index
    them and are distinct within a HAT (a charge per plate and HAT); charges and the budget are
    nano-units below `AMOUNT_LIMIT`.

    >>> twice = Admission("hat", np.array([0, 0]), np.array([1, 1]), min_admitted=0, terms=b"")
    >>> require_valid(10, [b"plate"], [twice])
    Traceback (most recent call last):
    ValueError: expected distinct members in each admission, got a repeated one in 'hat'
    """
    if not 0 <= budget < AMOUNT_LIMIT:
        raise ValueError(f"expected 0 <= budget < 2**53 nano-units, got {budget}")
    if len(set(plates)) != len(plates):
        raise ValueError("expected distinct plates in a call, got a repeated one")
    if len(lengths := {len(plate) for plate in plates}) > 1 or 0 in lengths:
        raise ValueError(
            f"expected plates of one length, at least 1 byte, got lengths {sorted(lengths)}"
        )
    for admission in admissions:
        _require_shape(admission)
    if admissions:
        _require_values(len(plates), admissions)


def decide(
    charged: Integers,
    charges: Integers,
    limit: int | Integers,
    min_admitted: int,
) -> Integers:
    """Nano-units charged to each member (0: HALT), from their balances and the most that each may
    have been charged; none if fewer than `min_admitted` have enough.

    >>> decide(np.array([0, 8]), np.array([3, 3]), 10, min_admitted=1)
    array([3, 0])
    >>> decide(np.array([0, 8]), np.array([3, 3]), 10, min_admitted=2)
    array([0, 0])
    >>> decide(np.array([0, 0]), np.array([3, 3]), np.array([2, 20]), min_admitted=1)
    array([0, 3])
    """
    # Each is below 2**53, so the sum fits in 64 bits.
    affordable = charged + charges <= limit
    if np.count_nonzero(affordable) < min_admitted:
        return np.zeros_like(charges)
    return charges * affordable


class Charges(NamedTuple):
    """Amounts that a call charges, decided from balances that may have grown since.

    `charged` has an array for each HAT, an amount for each member, 0: HALT. Of each plate of the
    call there are the sum `asked`, the number of its charges `times`, and `room`: the largest
    balance before the call under which all this is decided again. Balances only grow, so who was
    halted stays halted, and who pays has to be looked at alone.
    """

    charged: list[Integers]
    asked: Integers
    times: Integers
    room: Integers


def decide_in_order(balances: Integers, budget: int, admissions: Sequence[Admission]) -> Charges:
    """Charges of these HATs, one HAT after the other; none was asked about before.

    `balances` has the plates of the call, which members index.

    >>> hats = [Admission(id_, np.array([0, 1]), np.array([3, 2]), 1, b"") for id_ in ("first", "second")]
    >>> found = decide_in_order(np.array([0, 8]), 10, hats)
    >>> [charged.tolist() for charged in found.charged]
    [[3, 2], [3, 0]]
    >>> found.asked.tolist(), found.times.tolist(), found.room.tolist()
    ([6, 2], [2, 1], [4, 8])
    """
    if admissions and (charges := _all_pay(balances, budget, admissions)):
        return charges
    decided = []
    asked = np.zeros(len(balances), np.int64)
    times = np.zeros(len(balances), np.int64)
    room = np.full(len(balances), AMOUNT_LIMIT)
    for one in admissions:
        members = one.members
        before = asked[members]
        limit = budget if one.allowances is None else np.minimum(one.allowances, budget)
        charged = decide(balances[members] + before, one.charges, limit, one.min_admitted)
        after = before + charged
        pays = charged > 0
        decided.append(charged)
        asked[members] = after
        times[members] += pays
        room[members] = np.where(pays, np.minimum(room[members], limit - after), room[members])
    return Charges(decided, asked, times, room)


def _all_pay(balances: Integers, budget: int, admissions: Sequence[Admission]) -> Charges | None:
    """The decision if every plate can pay for all HATs within the least allowance: then for each,
    in any order. Nearly always so; None if not."""
    if any(one.members.size < one.min_admitted for one in admissions):
        return None
    members = np.concatenate([one.members for one in admissions])
    amounts = np.concatenate([one.charges for one in admissions])
    limits = [
        one.allowances.min(initial=budget) for one in admissions if one.allowances is not None
    ]
    limit = min([budget, *limits])
    # Doubles add exactly below 2**53, where all budgets lie, and from there on stay above.
    asked = np.bincount(members, amounts, len(balances))
    if np.any((asked > 0) & (balances + asked > limit)):
        return None
    times = np.bincount(members, minlength=len(balances))
    whole = asked.astype(np.int64)
    return Charges([one.charges.copy() for one in admissions], whole, times, limit - whole)


def misfits(
    entries: Iterable[Entry], balances: Iterable[tuple[str, bytes, int, int]]
) -> Iterator[str]:
    """A sentence for each charge over its budget, and for each balance that is not the sum of its
    charges.

    In a span of a rolling budget a charge is over it where the sum in some window is.

    `entries` come oldest first; `balances` are (period, plate, charged, charges), each plate and
    period once.

    >>> entry = Entry("hat", "2024-05-01", 10, (b"p",), np.array([4]), payload=None, published=False)
    >>> list(misfits([entry], [("2024-05-01", b"p", 4, 1)]))
    []
    >>> list(misfits([entry], [("2024-05-01", b"p", 3, 1)]))
    ['plate 70 in 2024-05-01: expected 4 charged in 1 entries, got 3 in 1']
    """
    sums: dict[tuple[str, bytes], tuple[int, int]] = {}
    rolling = RollingSums()
    for entry in entries:
        amounts = entry.charged.tolist()
        in_window = (
            rolling.charge(entry.period, entry.plates, amounts) if span_of(entry.period) else ()
        )
        for plate, amount, most in zip_longest(entry.plates, amounts, in_window):
            charged, charges = sums.get((entry.period, plate), (0, 0))
            after = charged + amount if most is None else most
            if amount < 0 or (amount > 0 and after > entry.budget):
                yield f"{entry.release_id}: charging {amount} puts plate {plate.hex()} over its budget {entry.budget}"
            if amount:
                sums[entry.period, plate] = (charged + amount, charges + 1)
    claimed = {(period, plate): (charged, charges) for period, plate, charged, charges in balances}
    for key in {**sums, **claimed}:
        expected = sums.get(key, (0, 0))
        got = claimed.get(key, (0, 0))
        if expected != got:
            sentence = (
                f"expected {expected[0]} charged in {expected[1]} entries, got {got[0]} in {got[1]}"
            )
            yield f"plate {key[1].hex()} in {key[0]}: {sentence}"


def _require_shape(admission: Admission) -> None:
    name = admission.release_id
    members = admission.members
    charges = admission.charges
    if members.size > MEMBERS_MAX:
        raise ValueError(f"expected at most {MEMBERS_MAX} members, got {members.size} in {name!r}")
    if members.dtype != np.int64 or charges.dtype != np.int64:
        raise ValueError(
            f"expected int64 members and charges, got {members.dtype} and {charges.dtype} in {name!r}"
        )
    if members.ndim != 1 or members.shape != charges.shape:
        raise ValueError(
            f"expected one charge per member, got shapes {members.shape}, {charges.shape} in {name!r}"
        )
    if admission.allowances is not None and (
        admission.allowances.dtype != np.int64 or admission.allowances.shape != members.shape
    ):
        raise ValueError(
            f"expected an int64 allowance per member, got {admission.allowances.shape} in {name!r}"
        )
    if admission.min_admitted < 0:
        raise ValueError(f"expected min_admitted >= 0, got {admission.min_admitted} in {name!r}")


def _require_values(plates: int, admissions: Sequence[Admission]) -> None:
    """All admissions at once; the first that breaks a rule is named."""
    members = np.concatenate([admission.members for admission in admissions])
    charges = np.concatenate([admission.charges for admission in admissions])
    owners = np.repeat(
        np.arange(len(admissions)), [admission.members.size for admission in admissions]
    )

    def refuse(rule: str, broken: Flags, owners: Integers) -> None:
        if broken.any():
            raise ValueError(
                f"expected {rule} in {admissions[owners[np.argmax(broken)]].release_id!r}"
            )

    refuse(f"0 <= member < {plates}, got one outside", (members < 0) | (members >= plates), owners)
    allowances = np.concatenate(
        [one.charges if one.allowances is None else one.allowances for one in admissions]
    )
    refuse(
        "0 <= allowance < 2**53 nano-units, got one outside",
        (allowances < 0) | (allowances >= AMOUNT_LIMIT),
        owners,
    )
    refuse(
        "0 < charge < 2**53 nano-units, got one outside",
        (charges <= 0) | (charges >= AMOUNT_LIMIT),
        owners,
    )
    # An integer for each admission and member: two that are equal lie side by side once sorted.
    # Members are known to be inside by now: no two pairs share an integer.
    pairs = np.sort(owners * max(plates, 1) + members)
    refuse(
        "distinct members in each admission, got a repeated one",
        pairs[1:] == pairs[:-1],
        pairs // max(plates, 1),
    )


# An admission in bytes: amounts little endian in 8 bytes each, plates in turn.


class Decision(NamedTuple):
    """The decision on a HAT: its plates, packed; what each was charged (0: HALT); its terms.

    >>> Decision(b"onetwo", np.array([4, 0]), b"terms").names()
    [b'one', b'two']
    """

    plates: bytes
    charged: Integers
    terms: bytes

    def names(self) -> list[bytes]:
        return cut(self.plates, self.charged.size)

    def recalled(self, plates: bytes, members: int) -> Verdict:
        """The verdict on the plates asked about: 0 for those that the first call did not name. The
        caller's own."""
        if plates == self.plates and members == self.charged.size:
            return Verdict(self.charged.copy(), self.terms)
        charged = dict(zip(self.names(), self.charged.tolist(), strict=True))
        return Verdict(
            np.array([charged.get(plate, 0) for plate in cut(plates, members)], np.int64),
            self.terms,
        )


def column(plates: Sequence[bytes]) -> NDArray[np.void]:
    """Plates of equal length as an array: `column(plates)[members].tobytes()` are the members',
    packed."""
    return np.frombuffer(b"".join(plates), dtype=f"V{len(plates[0]) if plates else 1}")


def cut(plates: bytes, count: int) -> list[bytes]:
    """`count` plates of equal length out of their bytes."""
    width = len(plates) // max(count, 1)
    return [plates[i * width : (i + 1) * width] for i in range(count)]


def amounts(blob: bytes) -> Integers:
    """Integers out of their bytes; the caller's own."""
    return np.frombuffer(blob, "<i8").astype(np.int64)


def amounts_of(values: Integers) -> bytes:
    """Undo `amounts`."""
    return values.astype("<i8").tobytes()


# A ledger's past. A backup, a volume's snapshot, a lost write-ahead log: each leaves a ledger that
# is sound in itself and has forgotten its last charges and records. It would charge plates too
# little and draw published HATs a second time. So a mark is kept apart from it: how many HATs it
# had admitted and recorded when something was last published from it, and the digest of a record
# that it held by then.
#
# 1. The mark is raised after records are kept and before they are published, so some mark knows
#    what a reader has seen.
# 2. A ledger is *behind* a mark if it holds fewer HATs, or another record or none where the mark
#    names one. The record shows a ledger that went back and has come as far again since.
# 3. A ledger that is behind is refused, until a person accepts in words what is forgotten. The
#    ledger, its records and its statement remember that for ever. Each acceptance begins a new
#    *era*. A mark of an earlier era is forgiven up to what was accepted. One that the ledger is not
#    behind needs no forgiving, whatever its era: several machines may keep marks, and each
#    acceptance is of one of them.
#
# Marks are public: they tell counts, and name a record that is published.

ARCHIVED = "archived"
"""Among what a ledger knows of itself: up to when nothing new is admitted or recorded, in Unix
seconds."""


def archived_s(meta: Mapping[str, str]) -> int | None:
    """Up to when a ledger is archived, Unix seconds; None if it is not."""
    return int(meta[ARCHIVED]) if ARCHIVED in meta else None


def iso_utc(seconds: int) -> str:
    """A time in words."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()


def archived(release_id: str, seconds: int) -> PrivacyRefused:
    """The refusal of an id of a time that is archived."""
    return PrivacyRefused(
        f"{release_id} is of a time before {iso_utc(seconds)}, up to which the ledger is archived: nothing of it is "
        "charged or drawn any more. Start again: then pings of that time are late"
    )


def never_admitted(release_id: str) -> PrivacyRefused:
    """The refusal of a record before its charge."""
    return PrivacyRefused(f"expected an admission before the record of {release_id!r}, got none")


def require_open(release_ids: Iterable[str], closed: int | None) -> None:
    """PrivacyRefused if any of these ids is closed, as its time is archived: up to `closed`."""
    for release_id in release_ids:
        if closed is not None and closes_at(release_id) <= closed:
            raise archived(release_id, closed)


def require_closed(release_ids: Iterable[str], closed: int | None) -> None:
    """ValueError unless these ids are of times in which nothing new is admitted: up to `closed`."""
    for release_id in release_ids:
        if closed is None or end_of(release_id) > closed:
            raise ValueError(f"expected ids of times that are closed, got {release_id!r}")


VOLATILE = "volatile"
"""The note of when a ledger was first used in a store that may lose charges."""

_FORGOTTEN = "forgotten:"


class AcceptedRollback(msgspec.Struct, frozen=True):
    """The acceptance of a person: in which words, when, and the mark that the ledger was behind.

    >>> AcceptedRollback("two HATs are forgotten", "2026-11-22", Mark("5eed", 0, 8, 6)).mark.admitted
    8
    """

    words: str
    at: str
    mark: Mark


def digest_of(payload: bytes) -> bytes:
    """16 bytes that tell a record from any other draw of its HAT."""
    return blake2b(payload, digest_size=16).digest()


def forgotten(meta: Mapping[str, str]) -> list[AcceptedRollback]:
    """Acceptances on this ledger, oldest first, from what it knows of itself; as many eras
    have ended."""
    found: list[AcceptedRollback] = []
    while (text := meta.get(f"{_FORGOTTEN}{len(found)}")) is not None:
        found.append(msgspec.json.decode(text, type=AcceptedRollback))
    return found


def forget(ledger: Ledger, what: AcceptedRollback) -> bool:
    """Note for ever what was accepted: an era ends. False if another acceptance came first."""
    name = f"{_FORGOTTEN}{len(forgotten(ledger.meta()))}"
    text = msgspec.json.encode(what).decode()
    return ledger.note(name, text) == text


def caveats(meta: Mapping[str, str]) -> tuple[str, ...]:
    """Why a plate may have lost more than the ledger knows: a sentence for each reason, for records
    and statements."""
    found = [one.words for one in forgotten(meta)]
    if since := meta.get(VOLATILE):
        found.append(f"charges may have been lost since {since} (ledger.allow_volatile)")
    return tuple(found)


class LedgerState(NamedTuple):
    """A look at a ledger: its facts about itself, how far it is, and the digests of
    some records.

    >>> seen = LedgerState({"ledger_id": "5eed"}, Progress(8, 6, "first", "last"), {"last": b"digest"})
    >>> seen.mark("last")
    Mark(ledger_id='5eed', era=0, admitted=8, recorded=6, release_id='last', digest=b'digest')
    """

    meta: Mapping[str, str]
    progress: Progress
    digests: Mapping[str, bytes]

    def mark(self, release_id: str = "") -> Mark:
        """How far the ledger was; `release_id` is among those that were looked at."""
        digest = self.digests.get(release_id, b"")
        progress = self.progress
        era = len(forgotten(self.meta))
        name = release_id if digest else ""
        return Mark(self.meta["ledger_id"], era, progress.admitted, progress.recorded, name, digest)


def see(ledger: Ledger, *release_ids: str) -> LedgerState:
    """Look at the ledger, and at these records; an empty id names none."""
    named = [name for name in dict.fromkeys(release_ids) if name]
    seen = ledger.view("", (), named)
    payloads = zip(named, seen.payloads, strict=True)
    digests = {name: digest_of(payload) for name, payload in payloads if payload is not None}
    return LedgerState(seen.meta, seen.progress, digests)


def behind(seen: LedgerState, mark: Mark) -> str | None:
    """In which way the ledger is behind the mark, whose record was looked at; None if it is not."""
    now = seen.mark(mark.release_id)
    if now.era < mark.era:
        return "it does not remember what was accepted as forgotten"
    if any(one.mark.era == mark.era and one.mark.at_least(mark) for one in forgotten(seen.meta)):
        return None
    if now.admitted < mark.admitted or now.recorded < mark.recorded:
        if now.era > mark.era:
            return f"it has held {_amounts_in_words(mark)}, more than was accepted as forgotten"
        return f"it holds {_amounts_in_words(now)}, and has held {_amounts_in_words(mark)}"
    if now.digest != mark.digest and end_of(mark.release_id) > (
        archived_s(seen.meta) or -NEVER_ENDS
    ):
        return f"its record of {mark.release_id} is gone or another one"
    return None


def require_not_behind(seen: LedgerState, mark: Mark, place: object) -> None:
    """Raise PrivacyRefused if the ledger at this place is behind the mark, or another."""
    if (now := seen.meta["ledger_id"]) != mark.ledger_id:
        raise PrivacyRefused(f"expected the ledger {mark.ledger_id} at {place}, got {now}")
    if (how := behind(seen, mark)) is not None:
        raise PrivacyRefused(
            f"the ledger at {place} went back in time: {how}. It is an older copy, or has lost its last writes. "
            "Continuing would charge plates too little and draw published HATs again. Restore the newest copy. If "
            "there is none, `udp-stream ledger accept-older` says what is forgotten and how to accept it"
        )


def _amounts_in_words(mark: Mark) -> str:
    return f"{mark.admitted:,} charged and {mark.recorded:,} recorded HATs"
