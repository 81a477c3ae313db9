"""The whole of a ledger in Redis, read through: its periods, its admissions in order, and what does not add up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from udp_stream.adapters.ledgers.redis import packing
from udp_stream.adapters.ledgers.redis.packing import decoded, encoded
from udp_stream.adapters.ledgers.redis.session import Session
from udp_stream.ledger.port import LAST_NAME, Entry
from udp_stream.ledger.rolling import between
from udp_stream.ledger.rules import misfits

PAGE = 500  # what an iterator reads at a time


def periods(session: Session, first: str = "", last: str = LAST_NAME) -> list[str]:
    """Every period in which some plate was charged, sorted; of names from the first to the last."""
    ends = (b"[" + encoded(first), b"[" + encoded(last))
    names, spans = session.exchange(("SMEMBERS", session.key("periods")), ("ZRANGEBYLEX", session.key("spans"), *ends))
    return between(sorted(decoded(name) for name in {*names, *spans}), first, last)


def discrepancies(session: Session) -> list[str]:
    """A sentence for each, as `RedisLedger.verify` promises."""
    # Before the periods are listed: entries of a period that begins later lie behind this place.
    first, balances = _snapshot(session, "")
    until: dict[str, int] = {}
    for period in periods(session):
        until[period], of_period = _snapshot(session, period)
        balances += of_period
    gone: list[str] = []
    sums = list(misfits(_entries_until(session, until, first, gone), balances))
    missing = [f"{name}: admitted, but its admission is gone" for name in gone]
    return missing + sums + [f"{name}: released, but never admitted" for name in _unadmitted(session)]


def _snapshot(session: Session, period: str) -> tuple[int, list[tuple[str, bytes, int, int]]]:
    """How many admissions there were, and (period, plate, charged, charges) of the period's plates at that moment."""
    keys = (session.key("order"), session.key("balance", period))
    ((_, length, flat),) = session.run(session.script("snapshot", keys, fenced=False))
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return length, [(period, plate, *packing.spent_and_charges(value)) for plate, value in pairs]


def _entries_until(session: Session, until: dict[str, int], otherwise: int, gone: list[str]) -> Iterator[Entry]:
    """Entries up to the place at which the balances of their period were read; ids that are lost go to `gone`."""
    for place, (name, entry) in enumerate(listed(session)):
        if entry is None:
            gone.append(name)
        elif place < until.get(entry.period, otherwise):
            yield entry


def listed(session: Session) -> Iterator[tuple[str, Entry | None]]:
    """Every admission ever made, oldest first: its id, and None where it is not there any more."""
    key, start = session.key, 0
    while names := session.exchange(("LRANGE", key("order"), start, start + PAGE - 1))[0]:
        ids = [decoded(name) for name in names]
        # A payload is looked up before its place in the queue: what is seen and waits no more was published.
        admissions, payloads, waiting = session.exchange(
            ("MGET", *(key("admission", name) for name in ids)),
            ("MGET", *(key("release", name) for name in ids)),
            ("ZMSCORE", key("unpublished"), *names),
        )
        for name, blob, payload, number in zip(ids, admissions, payloads, waiting, strict=True):
            yield name, None if blob is None else packing.entry_of(name, blob, payload, waiting=number is not None)
        start += len(names)


def newest(session: Session) -> Iterator[str]:
    """The id of every admission, newest first."""
    end = int(session.exchange(("LLEN", session.key("order")))[0])
    while end > 0:
        start = max(0, end - PAGE)
        names = session.exchange(("LRANGE", session.key("order"), start, end - 1))[0]
        yield from (decoded(name) for name in reversed(names))
        end = start


def _unadmitted(session: Session) -> Iterator[str]:
    """Ids that have a payload and no admission."""
    start = session.key("release", "")
    pattern = re.sub(rb"([\[\]*?\\])", rb"\\\1", start) + b"*"
    # Not 0, with which SCAN both begins and ends.
    cursor: int | None = None
    while cursor != 0:
        ((after, keys),) = session.exchange(("SCAN", cursor or 0, "MATCH", pattern, "COUNT", PAGE))
        names = [decoded(key[len(start) :]) for key in keys]
        present = session.exchange(*(("EXISTS", session.key("admission", name)) for name in names))
        yield from (name for name, there in zip(names, present, strict=True) if not there)
        cursor = int(after)
