"""The ledger in Redis: the promises of `ports.py`, kept by Lua scripts and a synced append-only file.

Theory of operation. Redis runs one script at a time and nothing in between, so a script is a transaction.
`redis_admit.lua` takes some hundred HATs, in the order given: one that is remembered is answered with that; if the
caller's epoch is stale, it refuses; else it decides for every plate. At its end it charges and remembers, all at once.
A slot's scripts are one pipeline. `redis_record.lua` takes all payloads of a call and keeps the first of each id, or
none of them. Sending any of it twice is harmless, so whatever went unanswered is sent again (`redis_steps.py`).

**One hash slot.** The plates of a HAT are paid or not paid together (`min_admitted`), so one script must reach all of
them, and with them the order of admissions, the payloads and the fencing epochs; in a cluster a script reaches one
hash slot. Hence all keys of a deployment share one hash tag, `{udp}` unless told otherwise: in a cluster the ledger
lives on one shard and its replicas, and a second city takes another prefix. One core is far more than one city needs.
Measured on two shared cores with every write synced: 3,000 HATs of 50 plates are admitted in 0.2 s (650,000 plates a
second) and recorded in 0.07 s, one HAT alone in 0.6 ms. Redis does nothing else during a script: 25 ms for 25,000
plates (`BATCH_MEMBERS`), 20 ms for the largest HAT taken (`MEMBERS_MAX`), 30 ms for the payloads of the slot.

**Durability.** Opening refuses a server that would forget what it has answered: it needs `appendonly yes`,
`appendfsync always`, `no-appendfsync-on-rewrite no` and `maxmemory-policy noeviction`, in a cluster on every master.
With these a killed server comes back with every answer it gave. A *failover* is another matter: replication does not
wait, and a promoted replica may lack the last charges. Open with `replicas=1`: then nothing is answered before so many
replicas have it (WAIT). Also set `min-replicas-to-write 1`, so that a master that is cut off stops by itself, and give
replicas the same settings as masters: they are not looked at. A holder of an epoch that the promoted replica never
heard of is stopped.

**A wiped ledger** would give every plate its budget again. Each ledger has an id, kept in Redis and, with `id_file`,
beside the plate key. Opening refuses a Redis that has no ledger or another one where the file knows one; every script
refuses if the id is gone, so that a FLUSHALL stops releases at once; and no script charges a period whose balances are
gone.

**Fencing.** A worker that takes over a shard takes its next epoch (`take_epoch`); whoever held an earlier one can
neither admit nor record anything new (`Fenced`), only read what stands.

**Size.** A HAT of 50 plates with a payload of 1.5 kB takes 3 kB of memory, for ever; nothing expires. What may be moved
away by hand, while nothing runs and after an export of the entries: of HATs whose slots the input log cannot bring
again (older than its topic keeps), all of a period at once, `admission:ID`, `release:ID`, their places in `order`, and
at last `balance:PERIOD` and its place in `periods`. Never earlier: without its admission a HAT would be drawn anew.
`redis_calls.py` lists the keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from udp_stream.adapters.redis_calls import Calls, Fence, Page, require_prefix
from udp_stream.adapters.redis_durability import known_ledger, opening, remember_ledger, require_durable
from udp_stream.adapters.redis_steps import load_scripts, route_to
from udp_stream.adapters.redis_wire import Wire
from udp_stream.errors import Fenced, PrivacyRefused
from udp_stream.ledger_rules import misfits
from udp_stream.ports import Admission, Balance, Entry, Verdict

__all__ = ["DEFAULT_PREFIX", "Fence", "Fenced", "RedisLedger", "inspect_redis", "open_redis_ledger"]

DEFAULT_PREFIX = "{udp}"


def open_redis_ledger(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    id_file: str | os.PathLike[str] | None = None,
    allow_volatile: bool = False,
    replicas: int = 0,
) -> RedisLedger:
    """Open the ledger at `url`, or make it if there is none; use it as a context manager.

    `url` is redis://, rediss:// or unix://, or redis+cluster:// of any node. `id_file` remembers which ledger it was,
    so that a wiped one is noticed. `replicas` is how many of them must have a write before it is answered.

    Raises ConfigError for another URL or a prefix without a hash tag, DependencyUnavailable if Redis cannot be reached,
    and PrivacyRefused if it would forget (unless `allow_volatile`, which logs a warning), or has forgotten.
    """
    route, scripts = route_to(url, require_prefix(prefix), replicas), load_scripts()
    known = known_ledger(id_file)
    wire = Wire()
    try:
        ledger_id = wire.drive(opening(route, scripts, prefix, known, allow_volatile))
        if id_file is not None and known is None:
            remember_ledger(id_file, ledger_id)
    except BaseException:
        wire.close()
        raise
    return RedisLedger(wire, Calls(route, scripts, prefix, ledger_id))


def inspect_redis(url: str) -> None:
    """Ask every server that writes whether it would forget; nothing is made. Raises as `open_redis_ledger`."""
    wire = Wire()
    try:
        wire.drive(require_durable(route_to(url, DEFAULT_PREFIX)))
    finally:
        wire.close()


class RedisLedger:
    """A `ports.Ledger` in Redis, for any number of threads; make it with `open_redis_ledger`.

    Any call may raise DependencyUnavailable once it has asked again for some ten seconds; what it asked for may then be
    remembered or not, and asking again tells. A call that charges or records raises PrivacyRefused if the ledger was
    wiped, and Fenced where the caller holds a `Fence` that is stale.
    """

    def __init__(self, wire: Wire, calls: Calls) -> None:
        """Take over connections to what is known to be a ledger, and durable."""
        self._wire = wire
        self._calls = calls

    def __enter__(self) -> Self:
        """Open already; closes on leaving."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, whatever happened."""
        self.close()

    def close(self) -> None:
        """Close the connections, also those of ledgers made with `fenced`."""
        self._wire.close()

    @property
    def ledger_id(self) -> str:
        """Names this ledger among all others: 32 hex digits."""
        return self._calls.ledger_id

    def take_epoch(self, shard: str) -> int:
        """The next epoch of a shard; from now on holders of earlier ones are refused."""
        return self._wire.drive(self._calls.take_epoch(shard))

    def fenced(self, fence: Fence) -> RedisLedger:
        """The same ledger over the same connections, whose `admit` and `record` are refused once the fence is stale."""
        return RedisLedger(self._wire, replace(self._calls, fence=fence))

    def meta(self) -> dict[str, str]:
        """What the ledger knows of itself: `schema`, `ledger_id`, and `key_fingerprint` once it is bound."""
        return self._wire.drive(self._calls.meta())

    def bind(self, fingerprint: str) -> None:
        """Tie the ledger to the key of its plates' hashes, for ever.

        Raises PrivacyRefused if it is tied to another key: every plate would look new and get its budget again.
        """
        self._wire.drive(self._calls.bind(fingerprint))

    def standing(self, release_ids: Sequence[str]) -> list[bytes | None]:
        """The recorded payload of each id, or None."""
        return self._wire.drive(self._calls.standing(release_ids))

    def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        """What each plate has spent in the period."""
        return self._wire.drive(self._calls.balances(period, plates))

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before.

        ValueError, charging nobody, if a rule of `require_valid` is broken or a HAT has more than MEMBERS_MAX members.
        """
        return self._wire.drive(self._calls.admit(period, budget, plates, admissions))

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Keep the first payload of each id and return the ones that stand.

        Raises PrivacyRefused, keeping none of them, if any id was never admitted; ValueError for more than
        RELEASES_MAX releases.
        """
        return self._wire.drive(self._calls.record(releases))

    def published(self, release_ids: Sequence[str]) -> None:
        """Remember that these payloads have reached their readers; ids without a payload are left alone."""
        self._wire.drive(self._calls.published(release_ids))

    def unpublished(self) -> Iterator[tuple[str, bytes]]:
        """Recorded payloads that were never marked as published, oldest first; publish them while iterating, freely."""
        last, before = 0, -1
        while last != before:
            before = last
            page, last = self._wire.drive(self._calls.unpublished_page(last))
            yield from page

    def spent(self, plate: bytes) -> dict[str, int]:
        """Nano-units that the plate has spent, by period."""
        return self._wire.drive(self._calls.spent(plate))

    def entries(self) -> Iterator[Entry]:
        """Every admission ever made, oldest first; those made while iterating are among them.

        Raises PrivacyRefused at one that is listed and not there any more.
        """
        for page in self._pages():
            for name in page.gone:
                raise PrivacyRefused(
                    f"expected the admission of {name!r}, got none: the ledger has lost it; restore it"
                )
            yield from page.entries

    def verify(self) -> list[str]:
        """Recompute every balance from the entries: a sentence for each discrepancy.

        Checks that no charge ever went over the budget of its admission, that the balances of each period are the sums
        of what was charged until the moment they were read, and that every payload was admitted. Others may write
        meanwhile.
        """
        first, balances = self._wire.drive(self._calls.snapshot(""))
        until: dict[str, int] = {}
        for period in self._wire.drive(self._calls.periods()):
            until[period], of_period = self._wire.drive(self._calls.snapshot(period))
            balances += of_period
        gone: list[str] = []
        sums = list(misfits(self._entries_until(until, first, gone), balances))
        missing = [f"{name}: admitted, but its admission is gone" for name in gone]
        return missing + sums + [f"{name}: released, but never admitted" for name in self._unadmitted()]

    def _entries_until(self, until: dict[str, int], otherwise: int, gone: list[str]) -> Iterator[Entry]:
        """Entries up to the place at which the balances of their period were read; ids that are lost go to `gone`."""
        for page in self._pages():
            gone += page.gone
            start = page.after - len(page.entries) - len(page.gone)
            for place, entry in enumerate(page.entries, start):
                if place < until.get(entry.period, otherwise):
                    yield entry

    def _pages(self) -> Iterator[Page]:
        after, before = 0, -1
        while after != before:
            before = after
            page = self._wire.drive(self._calls.entries_page(after))
            after = page.after
            yield page

    def _unadmitted(self) -> Iterator[str]:
        cursor = -1
        while cursor:
            found, cursor = self._wire.drive(self._calls.unadmitted_page(max(cursor, 0)))
            yield from found
