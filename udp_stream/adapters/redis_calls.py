"""The ledger's calls on Redis as steps: what is sent, and what the replies mean. `redis_ledger.py` tells the theory.

Keys, all behind one prefix with a hash tag:

    PREFIX:meta              hash    ledger_id, schema, key_fingerprint, epoch:SHARD
    PREFIX:balance:PERIOD    hash    plate -> spent, charges: two little endian integers of 8 bytes
    PREFIX:periods           set     every period with a balance
    PREFIX:admission:ID      string  a remembered admission, as `redis_packing.py` tells
    PREFIX:order             list    the ids admitted, oldest first
    PREFIX:release:ID        string  the payload that stands
    PREFIX:unpublished       zset    ids recorded and not published, by their number
    PREFIX:recorded          string  how many were recorded: the last one's number
    PREFIX:beat              string  counts what was sent to be waited for, with `replicas`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np

from udp_stream.adapters import redis_packing as packing
from udp_stream.adapters.redis_packing import decoded, encoded
from udp_stream.adapters.redis_steps import Command, Route, Script, Steps, exchange
from udp_stream.errors import ConfigError, DependencyUnavailable, Fenced, PrivacyRefused
from udp_stream.ledger_rules import require_valid
from udp_stream.ports import Admission, Balance, Entry, Verdict

SCHEMA_VERSION = "1"
MEMBERS_MAX = 10_000  # of a HAT
BATCH_MEMBERS, BATCH_HATS = 25_000, 1000  # that one script admits: 25 ms, during which Redis does nothing else
RELEASES_MAX = 20_000  # of a call to `record`: 0.3 s, likewise
PAGE = 500  # what an iterator reads at a time
CHUNK = 5000  # HATs or plates in one round trip

_PREFIX = re.compile(r"[^{}\s]*\{[^{}\s]+\}[^{}\s]*")


class Fence(NamedTuple):
    """Who asks: the holder of a shard since it took this epoch (`take_epoch`)."""

    shard: str
    epoch: int


class Page(NamedTuple):
    """Some entries, and the place after them; `gone` names ids that were admitted and are not there any more."""

    entries: list[Entry]
    after: int
    gone: list[str]


def require_prefix(prefix: str) -> str:
    """The prefix, if all keys behind it lie in one hash slot; ConfigError if not.

    >>> require_prefix("city:{udp}")
    'city:{udp}'
    """
    if _PREFIX.fullmatch(prefix) is None:
        raise ConfigError(f"ledger prefix: expected one hash tag in braces, as in {{udp}}, got {prefix!r}")
    return prefix


@dataclass(frozen=True)
class Calls:
    """The calls on one ledger, by one caller. Every one may raise DependencyUnavailable."""

    route: Route
    scripts: Mapping[str, Script]
    prefix: str
    ledger_id: str
    fence: Fence | None = None

    def _key(self, *names: str) -> bytes:
        return encoded(":".join((self.prefix, *names)))

    def _script(self, name: str, keys: Sequence[bytes], *arguments: bytes | str | int, fenced: bool = True) -> Command:
        shard, epoch = (self.fence.shard, self.fence.epoch) if self.fence and fenced else ("", "")
        keys = (self._key("meta"), *keys)
        return ("EVALSHA", self.scripts[name].sha, len(keys), *keys, self.ledger_id, shard, epoch, *arguments)

    def _exchange(self, commands: Sequence[Command]) -> Steps[list[Any]]:
        replies: list[Any] = []
        for start in range(0, len(commands), CHUNK):
            replies += yield from exchange(self.route, self.scripts, commands[start : start + CHUNK])
        return replies

    def _run(self, *commands: Command) -> Steps[list[list[Any]]]:
        """The replies of scripts, none of which is a refusal."""
        replies = yield from self._exchange(commands)
        for reply in replies:
            if reply[0] != b"ok":
                self._refuse(reply)
        return replies

    def _refuse(self, reply: Sequence[Any]) -> NoReturn:
        name = self.route.name()
        match reply[0].decode(), self.fence:
            case "gone", _:
                raise wiped(name, self.ledger_id)
            case "stale", Fence(shard, epoch) if int(reply[1]) > epoch:
                raise Fenced(f"expected to hold {shard} since epoch {epoch}, got a later one, {int(reply[1])}: stop")
            case "stale", Fence(shard, epoch):
                sentence = f"expected epoch {epoch} of {shard}, got {int(reply[1])}: the ledger has lost writes"
                raise PrivacyRefused(f"{sentence} (a failover?); restore it")
            case "lost", _:
                raise PrivacyRefused(
                    f"the balances of {decoded(reply[1])} are gone from the ledger at {name}: restore it"
                )
            case answer, _:
                raise DependencyUnavailable(f"expected an answer of our script, got {answer!r}")

    def meta(self) -> Steps[dict[str, str]]:
        """What the ledger knows of itself: `schema`, `ledger_id`, and `key_fingerprint` once it is bound."""
        names = ("key_fingerprint", "ledger_id", "schema")
        (values,) = yield from self._exchange([("HMGET", self._key("meta"), *names)])
        return {name: value.decode() for name, value in zip(names, values, strict=True) if value is not None}

    def bind(self, fingerprint: str) -> Steps[None]:
        """Tie the ledger to a plate key; PrivacyRefused if it is tied to another one."""
        ((_, reply),) = yield from self._run(self._script("bind", (), fingerprint, fenced=False))
        if (bound := reply.decode()) != fingerprint:
            raise PrivacyRefused(
                f"expected the plate key {bound} that the ledger at {self.route.name()} was bound to, got "
                f"{fingerprint}: restore the key file"
            )

    def take_epoch(self, shard: str) -> Steps[int]:
        """A new epoch of the shard, larger than all before."""
        ((_, epoch),) = yield from self._run(self._script("epoch", (), shard, fenced=False))
        return int(epoch)

    def standing(self, release_ids: Sequence[str]) -> Steps[list[bytes | None]]:
        """The recorded payload of each id, or None."""
        payloads: list[bytes | None] = []
        for start in range(0, len(release_ids), CHUNK):
            keys = [self._key("release", name) for name in release_ids[start : start + CHUNK]]
            payloads += (yield from self._exchange([("MGET", *keys)]))[0]
        return payloads

    def balances(self, period: str, plates: Sequence[bytes]) -> Steps[Balance]:
        """What each plate has spent in the period."""
        chunks = [plates[start : start + CHUNK] for start in range(0, len(plates), CHUNK)]
        replies = yield from self._exchange([("HMGET", self._key("balance", period), *chunk) for chunk in chunks])
        return packing.balance(value for reply in replies for value in reply)

    def spent(self, plate: bytes) -> Steps[dict[str, int]]:
        """Nano-units that the plate has spent, by period."""
        periods = yield from self.periods()
        found = yield from self._exchange([("HGET", self._key("balance", period), plate) for period in periods])
        pairs = zip(periods, found, strict=True)
        return {period: packing.spent_and_charges(one)[0] for period, one in pairs if one is not None}

    def periods(self) -> Steps[list[str]]:
        """Every period with a balance, sorted."""
        (found,) = yield from self._exchange([("SMEMBERS", self._key("periods"))])
        return sorted(decoded(period) for period in found)

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> Steps[list[Verdict]]:
        """As `ports.Ledger.admit`; Fenced and PrivacyRefused leave whatever was charged before remembered."""
        require_valid(budget, plates, admissions)
        for one in admissions:
            if one.members.size > MEMBERS_MAX:
                raise ValueError(
                    f"expected at most {MEMBERS_MAX} members, got {one.members.size} in {one.release_id!r}"
                )
        packed = np.frombuffer(b"".join(plates), dtype=f"V{len(plates[0]) if plates else 1}")
        asked = [(one, packed[one.members].tobytes()) for one in admissions]
        batches = _batches(asked)
        replies = yield from self._run(*(self._admit(period, budget, batch) for batch in batches))
        answers = [answer for _, of_batch in replies for answer in of_batch]
        return [
            Verdict(packing.amounts(answer), one.terms)
            if status == b"new"
            else packing.recalled(packing.remembered(answer), names, one.members.size)
            for (one, names), (status, answer) in zip(asked, answers, strict=True)
        ]

    def _admit(self, period: str, budget: int, batch: Sequence[tuple[Admission, bytes]]) -> Command:
        keys = [self._key("order"), self._key("periods"), self._key("balance", period)]
        arguments: list[bytes | int] = [encoded(period), int(budget)]
        for one, plates in batch:
            keys.append(self._key("admission", one.release_id))
            head, charges = packing.head_of(period, budget, one), packing.amounts_of(one.charges)
            arguments += encoded(one.release_id), int(one.min_admitted), head, plates, charges
        return self._script("admit", keys, *arguments)

    def record(self, releases: Sequence[tuple[str, bytes]]) -> Steps[list[bytes]]:
        """As `ports.Ledger.record`: one script, all or nothing."""
        if not releases:
            return []
        if len(releases) > RELEASES_MAX:
            raise ValueError(f"expected at most {RELEASES_MAX} releases in a call, got {len(releases)}")
        keys = [self._key("recorded"), self._key("unpublished")]
        arguments: list[bytes] = []
        for name, payload in releases:
            keys += self._key("admission", name), self._key("release", name)
            arguments += encoded(name), payload
        (reply,) = yield from self._exchange([self._script("record", keys, *arguments)])
        if reply[0] == b"unadmitted":
            name = releases[reply[1] - 1][0]
            raise PrivacyRefused(f"expected an admission before the record of {name!r}, got none")
        if reply[0] != b"ok":
            self._refuse(reply)
        return [ours if stands == 1 else stands for (_, ours), stands in zip(releases, reply[1], strict=True)]

    def published(self, release_ids: Sequence[str]) -> Steps[None]:
        """Remember that these payloads have reached their readers; ids without a payload are left alone."""
        names = [encoded(name) for name in release_ids]
        chunks = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)]
        yield from self._exchange([("ZREM", self._key("unpublished"), *chunk) for chunk in chunks])

    def unpublished_page(self, after: int) -> Steps[tuple[list[tuple[str, bytes]], int]]:
        """Payloads recorded after that number and not published, and the last one's number; none: that was all."""
        window = (f"({after}", "+inf", "WITHSCORES", "LIMIT", 0, PAGE)
        (found,) = yield from self._exchange([("ZRANGEBYSCORE", self._key("unpublished"), *window)])
        if not found:
            return [], after
        names = [decoded(name) for name in found[::2]]
        payloads = yield from self.standing(names)
        kept = [(name, payload) for name, payload in zip(names, payloads, strict=True) if payload is not None]
        return kept, int(float(found[-1]))

    def entries_page(self, after: int) -> Steps[Page]:
        """Entries from that place in the order; the same place again: that was all."""
        (names,) = yield from self._exchange([("LRANGE", self._key("order"), after, after + PAGE - 1)])
        if not names:
            return Page([], after, [])
        ids = [decoded(name) for name in names]
        # A payload is looked up before its place in the queue: what is seen and waits no more was published.
        admissions, payloads, waiting = yield from self._exchange(
            [
                ("MGET", *(self._key("admission", name) for name in ids)),
                ("MGET", *(self._key("release", name) for name in ids)),
                ("ZMSCORE", self._key("unpublished"), *names),
            ]
        )
        entries, gone = [], []
        for name, blob, payload, number in zip(ids, admissions, payloads, waiting, strict=True):
            if blob is None:
                gone.append(name)
            else:
                entries.append(packing.entry_of(name, blob, payload, waiting=number is not None))
        return Page(entries, after + len(names), gone)

    def snapshot(self, period: str) -> Steps[tuple[int, list[tuple[str, bytes, int, int]]]]:
        """How many admissions there were, and (period, plate, spent, charges) of the period's plates at that moment."""
        keys = (self._key("order"), self._key("balance", period))
        ((_, length, flat),) = yield from self._run(self._script("snapshot", keys, fenced=False))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return length, [(period, plate, *packing.spent_and_charges(balance)) for plate, balance in pairs]

    def unadmitted_page(self, cursor: int) -> Steps[tuple[list[str], int]]:
        """Ids that have a payload and no admission, some of them, and where to look on; 0: that was all."""
        start = self._key("release", "")
        pattern = re.sub(rb"([\[\]*?\\])", rb"\\\1", start) + b"*"
        ((next_cursor, keys),) = yield from self._exchange([("SCAN", cursor, "MATCH", pattern, "COUNT", PAGE)])
        names = [decoded(key[len(start) :]) for key in keys]
        present = yield from self._exchange([("EXISTS", self._key("admission", name)) for name in names])
        return [name for name, there in zip(names, present, strict=True) if not there], int(next_cursor)


def _batches(asked: Sequence[tuple[Admission, bytes]]) -> list[Sequence[tuple[Admission, bytes]]]:
    """The same in order, cut into what a script takes."""
    starts, members = [0], 0
    for at, (one, _) in enumerate(asked):
        members += one.members.size
        if members > BATCH_MEMBERS or at - starts[-1] == BATCH_HATS:
            starts.append(at)
            members = one.members.size
    return [asked[start:end] for start, end in pairwise([*starts, len(asked)]) if start < end]


def wiped(name: str, ledger_id: str) -> PrivacyRefused:
    """The refusal where a ledger was and is not any more: every plate would get its budget again."""
    return PrivacyRefused(
        f"expected the ledger {ledger_id} at {name}, got none or another one: it has been wiped; restore it from its "
        "append-only file or a backup, or release nothing more from this feed"
    )
