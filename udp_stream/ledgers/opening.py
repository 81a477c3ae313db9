"""From a configured ledger URL to an open ledger and its plates' keys; policies it was charged
under; what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import msgspec

from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused, UsageError, needs
from udp_stream.base.files import TLS_FILES, tls_context, with_secrets
from udp_stream.base.logs import WARNING, counted, log_message
from udp_stream.ledger.ids import (
    CLIPS,
    DAY_SUMS,
    NOISED_SUMS,
    UNPUBLISHED_KINDS,
    WITHDRAWN,
    Id,
    kind_of,
)
from udp_stream.ledger.port import Ledger, Mark, Progress
from udp_stream.ledger.rules import archived_s, caveats
from udp_stream.ledgers.keys import (
    PlateKeys,
    adopt,
    kept_mark,
    known_ledger,
    load_or_create_key,
    replace_mark,
)
from udp_stream.ledgers.patience import Patience
from udp_stream.ledgers.sqlite import MAGIC, open_sqlite_ledger
from udp_stream.planning.policy import POLICY_NOTE, Policy, note_policy, written
from udp_stream.planning.promise import NEIGHBOURS
from udp_stream.release.query_pipeline import QUERY_NOTE
from udp_stream.release.record import Release
from udp_stream.release.withdrawal import NOTE
from udp_stream.release.withdrawal import noted as withdrawals
from udp_stream.settings import SQLITE, LedgerSection, Settings, is_file
from udp_stream.settings.rules import check_url
from udp_stream.windows.tables import SlotGrid


@contextmanager
def ledger_and_keys(
    asked: LedgerSection,
    *,
    must_exist: bool = False,
    accept_older: bool = False,
    only_look: bool = False,
    named_elsewhere: str | None = None,
    patience: Patience | None = None,
) -> Iterator[tuple[Ledger, PlateKeys]]:
    """Open the ledger and its key (both made at first use), bound to each other, and no older than
    its mark.

    Its URL is a file, `sqlite:FILE`, or one of Redis. `accept_older`: ignore the mark. `only_look`:
    keep no id of a ledger that is new to this machine. `named_elsewhere`: the id of a ledger whose
    mark is kept elsewhere too, so that it may hold charges although this machine has no mark.
    `patience`: how long a Redis is waited for.

    Raises ConfigError for any other URL, UsageError if `must_exist` and there is none,
    DependencyUnavailable if the store cannot be reached, and PrivacyRefused if it would forget, may
    have forgotten, or belongs to another key.
    """
    if not is_file(asked.place):  # before its key is asked for
        _redis(asked.place)
    key_file, id_file = _key_files(asked)
    known = known_ledger(id_file)
    if (
        must_exist
        and known is None
        and (_is_missing(asked.place) or not (is_file(asked.place) or _is_there(asked)))
    ):
        raise UsageError(
            f"{ledger_place(asked.place)}: no ledger there. Name an existing one with --ledger"
        )
    if must_exist and known is None and (kind := _another_kind(asked.place)):
        raise UsageError(
            f"{ledger_place(asked.place)}: no ledger, but {kind}. Name one with --ledger"
        )
    made = not key_file.exists()
    if made and is_file(asked.place) and not (_is_missing(asked.place) or _is_there(asked)):
        with _opened(asked, None):  # says what it is instead of a ledger: no key is made for that
            pass
    if made and (must_exist or known is not None or _is_there(asked)):
        # Another process may have made both between the two looks: the key first.
        made = not key_file.exists()
        if made:
            raise _no_key(key_file, asked.place)
    # The key comes first: a crash here leaves a key without a ledger, not a ledger without its key.
    keys = PlateKeys(load_or_create_key(key_file))
    with _opened(asked, id_file, patience) as ledger:
        try:
            ledger.bind(keys.fingerprint())
        except PrivacyRefused as error:
            if not made:
                raise
            for file in (
                id_file,
                key_file,
            ):  # another machine has made the ledger meanwhile: ours fits nothing
                file.unlink(missing_ok=True)
            raise _no_key(key_file, asked.place) from error
        if not accept_older:
            if known is None:
                adopt(
                    ledger, id_file, ledger_place(asked.place), named_elsewhere, only_look=only_look
                )
            ledger.compare()
        yield ledger, keys


def replace_mark_of(asked: LedgerSection, ledger: Ledger) -> None:
    """Keep the mark of the ledger as it is: what it is behind was accepted as forgotten."""
    replace_mark(ledger, _key_files(asked)[1])


def mark_beside(asked: LedgerSection) -> Mark | None:
    """The high-water mark that is kept beside the plates' key, if it is there."""
    return kept_mark(_key_files(asked)[1])


def ledger_place(url: str) -> str:
    """Where a ledger is, without user and password: a file's absolute path, or a Redis's host, port
    and database."""
    if is_file(url):
        return str(_path(url).resolve())
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are no address; who opens it says what is expected
        return f"{url.partition('://')[0]}://..."
    host = parts.netloc.rpartition("@")[2]
    (asked,) = parse_qs(parts.query).get("db", [""])[-1:]
    if parts.scheme == "unix":
        return f"{parts.path}/{asked or '0'}"
    port = ":6379" if "redis" in parts.scheme and ":" not in host.rpartition("]")[2] else ""
    return f"{host}{port}/{asked or parts.path.strip('/') or '0'}"


def has_mark(asked: LedgerSection) -> bool:
    """Whether this machine keeps which ledger it is, and how far it had come."""
    return known_ledger(_key_files(asked)[1]) is not None


def is_here(asked: LedgerSection) -> bool:
    """Whether this machine has used the ledger before, or has its file."""
    return has_mark(asked) or (is_file(asked.place) and not _is_missing(asked.place))


def ledger_there(asked: LedgerSection) -> str | None:
    """The id of the ledger, as this machine or a Redis knows it; None if there is none, or a file
    that was never opened here. DependencyUnavailable if a Redis does not answer."""
    known = known_ledger(_key_files(asked)[1])
    if known is not None or is_file(asked.place):
        return known
    found: str | None = _redis(asked.place).ledger_at(asked.place, client=_client(asked))
    return found


def ledger_files(asked: LedgerSection) -> list[tuple[str, Path]]:
    """Files of a ledger on this machine, made already or not: what each file is, and its path."""
    url = asked.place
    key_file, id_file = _key_files(asked)
    files = [("the plates' key", key_file), ("the id of the ledger", id_file)]
    if is_file(url):
        real = os.path.realpath(_path(url))  # SQLite keeps its log beside what a link leads to
        logs = [
            ("the log of the ledger", Path(f"{real}{suffix}"))
            for suffix in ("-wal", "-shm", "-journal")
        ]
        files += [("the ledger", _path(url)), *logs]
    return files


def inspect_ledger(asked: LedgerSection) -> str:
    """A sentence on the ledger that a worker would find; nothing is made. Raises as
    `ledger_and_keys`, and if the key is gone."""
    url = asked.place
    key_file, id_file = _key_files(asked)
    known = known_ledger(id_file)
    if known is None and _is_missing(url):
        folder = _path(url).resolve().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise DependencyUnavailable(
                f"{ledger_place(url)}: expected a folder in which it can be made"
            )
        return f"{ledger_place(url)} will be made at first use"
    there = known is not None or _is_there(asked)
    if there and not key_file.exists():
        raise _no_key(key_file, url)
    if known is None and not is_file(url):
        _redis(url).inspect_redis(url, asked.replicas, _client(asked))
        what = (
            "it has a ledger, new to this machine"
            if there
            else "a ledger will be made at first use"
        )
        return f"a durable Redis at {ledger_place(url)}; {what}"
    with ledger_and_keys(asked, only_look=True):
        return f"opens at {ledger_place(url)}, bound to the key in {key_file.absolute()}"


def _key_files(asked: LedgerSection) -> tuple[Path, Path]:
    url = asked.place
    key_file = asked.key_file or (f"{_path(url)}.key" if is_file(url) else "udp-stream.ledger.key")
    return Path(key_file), Path(f"{key_file}.ledger-id")


def _no_key(key_file: Path, url: str) -> PrivacyRefused:
    """Require the key of a ledger that exists: a new key would fit no plate in it, and might be
    taken for the lost key."""
    return PrivacyRefused(
        f"{key_file.absolute()}: the key of the ledger's plates is not there, and the ledger at {ledger_place(url)} "
        f"needs it: restore it from the backup, or copy it there, and {key_file.name}.ledger-id beside it, from a "
        "machine that works on this ledger. No new key is made: under one every plate would get a new budget"
    )


def _opened(
    asked: LedgerSection, id_file: Path | None, patience: Patience | None = None
) -> AbstractContextManager[Ledger]:
    url = asked.place
    if is_file(url):
        return open_sqlite_ledger(_path(url), id_file=id_file)
    opened: AbstractContextManager[Ledger] = _redis(url).open_redis_ledger(
        url,
        id_file=id_file,
        allow_volatile=asked.allow_volatile,
        replicas=asked.replicas,
        client=_client(asked),
        patience=patience,
    )
    return opened


def _redis(url: str) -> Any:
    """The module of Redis ledgers, imported only where it is asked for; ConfigError for a URL of
    something else."""
    check_url(url)
    with needs("Redis client", "redis"):
        from udp_stream.ledgers import redis as opening
    return opening


def _client(asked: LedgerSection) -> dict[str, Any]:
    """Options of the Redis client. ConfigError for an unusable file, DependencyUnavailable if TLS
    fails."""
    from udp_stream.ledgers.redis_connection import require_tls

    if asked.url.startswith("rediss"):
        files = (str(asked.client.get(name.partition(".")[2], "")) for name in TLS_FILES["ledger"])
        require_tls(asked.url, tls_context("ledger", *files))
    return with_secrets("ledger", asked.client)


def _is_missing(url: str) -> bool:
    return is_file(url) and not _path(url).exists()


def _is_there(asked: LedgerSection) -> bool:
    """Whether a SQLite file, or a part of a Redis ledger, is there. DependencyUnavailable if Redis
    does not answer."""
    if not is_file(url := asked.place):
        return _redis(url).ledger_at(url, client=_client(asked)) is not None
    if not _path(url).is_file():
        return False
    try:
        with _path(url).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _another_kind(url: str) -> str:
    if not is_file(url) or _is_missing(url):
        return ""
    if _path(url).is_dir():
        return "a folder"
    with _path(url).open("rb") as file:
        head = file.read(len(MAGIC))
    return "" if head == MAGIC or head.strip(b"\0") == b"" else "a file of another kind"


def _path(url: str) -> Path:
    return Path(url.removeprefix(SQLITE))


BUDGET = (
    "budget.epsilon",
    "budget.rho",
    "budget.delta",
    "budget.period",
    "budget.accounting",
    "neighbours",
)
NAMED_MAX = 3  # other policies that a warning names


def other_policies(ledger: Ledger, policy: Policy) -> dict[str, str]:
    """How our settings differ from each other policy that the ledger was charged under, by its
    fingerprint.

    Noted policies are known, and of older ledgers those of the first and the latest HAT. The latest
    HAT's comes first.
    """
    noted = _policies(ledger.meta())
    ours = written(policy)
    others = [
        one for one in dict.fromkeys([*_of_ends(ledger), *noted]) if one != policy.fingerprint()
    ]
    changes = {one: _changes(noted[one], ours) if noted.get(one) else "" for one in others}
    return {one: difference(changes, one, policy) for one in others}


def slots_of(ledger: Ledger, settings: Settings) -> SlotGrid:
    """Slots in the ledger's zone, else in ours."""
    name = zone_of(ledger)
    return (
        settings.calendar.slots
        if name is None
        else SlotGrid(settings.policy.slot_seconds, ZoneInfo(name))
    )


def zone_of(ledger: Ledger) -> str | None:
    """The zone of the ledger's latest HAT, else of a policy that it notes."""
    noted = _policies(ledger.meta())
    for fingerprint in (*_of_ends(ledger), *noted):
        with suppress(
            KeyError, ValueError, OSError
        ):  # none is noted, or none that this machine knows
            return ZoneInfo(noted[fingerprint]["hat.timezone"]).key
    return None


def other_budgets(meta: Mapping[str, str], policy: Policy) -> list[str]:
    """How our budget differs from those that a ledger notes, if it notes some and none of them is
    ours.

    >>> from msgspec.structs import replace
    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> ledger, ours = MemoryLedger(), Settings().policy
    >>> note_policy(ledger, replace(ours, delta=1e-5))
    >>> other_budgets(ledger.meta(), ours)
    ['budget.epsilon 9.151092 -> 10, budget.delta 1e-05 -> 1e-06']
    """
    policies = (written(policy), *filter(None, _policies(meta).values()))
    ours, *theirs = ({key: keys[key] for key in BUDGET if key in keys} for keys in policies)
    return [] if ours in theirs else list(dict.fromkeys(_changes(one, ours) for one in theirs))


def difference(others: Mapping[str, str], fingerprint: str, policy: Policy) -> str:
    """How our settings differ from that policy: what `other_policies` told of it, else both
    fingerprints."""
    return others.get(fingerprint) or f"policy {fingerprint} -> {policy.fingerprint()}"


def named(differences: Sequence[str]) -> str:
    """The first few, in a single clause.

    >>> named(["speed.unit kmh -> mps", "hat.slot 6h -> 1h", "hat.slot 6h -> 2h", "hat.slot 6h -> 3h"])
    'speed.unit kmh -> mps; hat.slot 6h -> 1h; hat.slot 6h -> 2h; and 1 more'
    """
    more = len(differences) - NAMED_MAX
    return "; ".join([*differences[:NAMED_MAX], *([f"and {more} more"] if more > 0 else [])])


def _of_ends(ledger: Ledger) -> list[str]:
    progress = progress_of(ledger)
    found = list[str]()
    for payload in ledger.recorded(
        [one for one in (progress.newest, progress.oldest) if one is not None]
    ):
        with suppress(
            msgspec.DecodeError, UnicodeDecodeError
        ):  # `ledger export` and `ledger verify` say so
            found += [] if payload is None else [Release.decode(payload).policy]
    return found


def progress_of(ledger: Ledger) -> Progress:
    """How far a ledger is; its newest entry is no withdrawal, which may be of any time."""
    newest = next(
        (release_id for release_id in ledger.newest() if kind_of(release_id) != WITHDRAWN), None
    )
    return ledger.progress()._replace(newest=newest)


def _changes(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    keys = [
        key
        for key in [*ours, *sorted(theirs.keys() - ours.keys())]
        if theirs.get(key) != ours.get(key)
    ]
    return ", ".join(f"{key} {_value(theirs, key)} -> {_value(ours, key)}" for key in keys)


def _value(keys: Mapping[str, str], key: str) -> str:
    """The value of a key in a policy. Without a mapping, a feed is in the contract's form."""
    return keys.get(key) or ("unset" if key.startswith("source.") else "unknown")


def _policies(meta: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name in sorted(name for name in meta if name.startswith(POLICY_NOTE)):
        keys = found[name.removeprefix(POLICY_NOTE)] = {}
        with suppress(msgspec.DecodeError):
            keys |= msgspec.json.decode(meta[name], type=dict[str, str])
    return found


# A wrong ledger is a second budget for every plate. So each verb that opens one names it on stderr
# before a charge.


def ledger_sentence(
    place: str, meta: Mapping[str, str], progress: Progress, slots: SlotGrid
) -> str:
    """Which ledger it is, whether it is new (it holds nothing yet), and since when it holds what."""
    if not progress.admitted:
        return f"ledger {place}, new"
    made = f", made {meta['made']}" if "made" in meta else ""
    first, latest = (
        slot_start(release_id, slots) for release_id in (progress.oldest, progress.newest)
    )
    kinds = [kind_of(release_id or "") for release_id in (progress.oldest, progress.newest)]
    has_slots = not {NOISED_SUMS, DAY_SUMS}.isdisjoint(kinds) or kinds[-1] == CLIPS
    holds = [counted_charges(progress.admitted, meta, with_slots=has_slots)]
    holds += [f"the first of the slot {first}"] if first else []
    if (closed := archived_s(meta)) is not None:
        holds.append(f"archived before {slots.iso(closed * 1000)}")
    holds += [f"the latest of {'' if first else 'the slot '}{latest}"] if latest else []
    return f"ledger {place}{made}: {', '.join(holds)}"


SECRET = "Its charges are secret: for operators alone"


def has_secret_charges(meta: Mapping[str, str]) -> bool:
    """Whether it was charged where whole plates are hidden: then charges tell of pings that nobody
    may know of.

    >>> has_secret_charges({f"{POLICY_NOTE}5eed": '{"neighbours":"add-remove"}'}), has_secret_charges({})
    (True, False)
    """
    noted = {keys.get("neighbours", "") for keys in _policies(meta).values()}
    return any(not NEIGHBOURS[name].public_counts for name in noted & NEIGHBOURS.keys())


def counted_charges(number: int, meta: Mapping[str, str], *, with_slots: bool = False) -> str:
    """So many admissions in words: HATs, and what else a ledger of these notes has charged for or
    remembered."""
    others = ["slots"] * with_slots
    others += ["withdrawals"] * any(name.startswith(NOTE) for name in meta)
    others += ["rounds of queries"] * any(name.startswith(QUERY_NOTE) for name in meta)
    return f"{number:,} HATs and {' and '.join(others)}" if others else counted(number, "HAT")


def log_ledger(asked: LedgerSection, ledger: Ledger, settings: Settings) -> None:
    """Name an open ledger on stderr."""
    place = ledger_place(asked.place)
    slots = slots_of(ledger, settings)
    meta = ledger.meta()
    sentence = ledger_sentence(place, meta, progress_of(ledger), slots)
    if not settings.privacy.relation.public_counts or has_secret_charges(meta):
        sentence += f". {SECRET}, as all that logs, summaries and metrics count"
    log_message(sentence)


def begin_run(asked: LedgerSection, ledger: Ledger, settings: Settings) -> dict[str, str]:
    """Name a run's ledger on stderr, warn of other settings that it was charged under, and return
    `other_policies`."""
    log_ledger(asked, ledger, settings)
    for text in settings.grid.warnings():
        log_message(text, "zones", level=WARNING)
    others = other_policies(ledger, settings.policy)
    if others and ledger.progress().admitted:
        different = named(list(others.values()))
        text = f"the ledger holds HATs made under other settings ({different}): these HATs keep their records"
        log_message(text, "ledger", level=WARNING)
    return others


def begin_work(settings: Settings, ledger: Ledger) -> dict[str, str]:
    """As `begin_run`, for a worker; its settings are noted at once, because what comes will be
    charged under them."""
    others = begin_run(settings.ledger, ledger, settings)
    note_policy(ledger, settings.policy)
    return others


@contextmanager
def trial_ledger(settings: Settings) -> Iterator[LedgerSection]:
    """A ledger for one run, and a key of its own beside it: the configured key belongs to another
    ledger. Says so."""
    configured = settings.ledger.place
    is_used = settings.ledger.url or Path(ledger_place(configured)).exists()
    untouched = (
        f" The configured ledger {ledger_place(configured)} is not touched." if is_used else ""
    )
    with TemporaryDirectory(prefix="udp-stream-trial-") as folder:
        log_message(
            "trial: this ledger is for this run only and is deleted afterwards. Another run draws every HAT again, so "
            f'do not publish these records beside others; each says "trial": true.{untouched}'
        )
        yield LedgerSection(url=f"{folder}/trial.ledger")


def slot_start(release_id: str | None, slots: SlotGrid) -> str | None:
    """When the slot of an id starts; None for an id that tells none, or no time that there is."""
    try:
        id_ = Id.of(release_id or "")
        return slots.iso(id_.start * 1000) if id_.seconds else None
    except (ValueError, OverflowError, OSError):
        return None


class Holdings(NamedTuple):
    """Counts of a ledger: entries (HATs, rounds of queries, clips that a slot's HATs share), those
    with a record, periods, doubts, the newest id, the zone, and how many HATs a person has
    withdrawn.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> Holdings.of(MemoryLedger())
    Holdings(charged=0, recorded=0, unpublished=0, periods=0, caveats=(), newest=None, zone=None, withdrawn=0)
    """

    charged: int
    recorded: int
    unpublished: int
    periods: int
    caveats: tuple[str, ...]
    newest: str | None = None
    zone: str | None = None
    withdrawn: int = 0

    @classmethod
    def of(cls, ledger: Ledger) -> Holdings:
        progress = progress_of(ledger)
        meta = ledger.meta()
        withdrawn = sum(
            one.hats for one in withdrawals(meta)
        )  # each is admitted and recorded like a HAT
        unpublished = sum(
            kind_of(release_id) not in UNPUBLISHED_KINDS for release_id, _ in ledger.unpublished()
        )
        return cls(
            progress.admitted - withdrawn,
            progress.recorded - withdrawn,
            unpublished,
            len(ledger.periods()),
            caveats(meta),
            progress.newest,
            zone_of(ledger),
            withdrawn,
        )


class LedgerView(NamedTuple):
    """A ledger. `holdings` is None where this machine cannot tell, or it is refused. `status` is
    an exit status: 0, 4 (out of reach) or 5 (refused, as a Redis that could lose writes).

    >>> print(LedgerView("sqlite", "/data/city.ledger", "opens", Holdings(118, 118, 0, 1, ())))
    sqlite at /data/city.ledger: opens; 118 entries, 118 recorded, 0 not published yet, in 1 period
    """

    kind: str
    place: str
    said: str
    holdings: Holdings | None = None
    status: int = 0

    def __str__(self) -> str:
        if self.holdings is None:
            return f"{self.kind} at {self.place}: {self.said}"
        held = self.holdings
        withdrawn = f"{held.withdrawn:,} withdrawn, " if held.withdrawn else ""
        holds = (
            f"{counted(held.charged, 'entry', 'entries')}, {held.recorded:,} recorded, {withdrawn}"
            f"{held.unpublished:,} not published yet, in {counted(held.periods, 'period')}"
        )
        return f"{self.kind} at {self.place}: {'; '.join([self.said, holds, *held.caveats])}"


def look_at(asked: LedgerSection) -> LedgerView:
    """A ledger as seen from this machine; nothing is made. ConfigError for what is no ledger's URL.
    Entries are counted where this machine has its id or file, and its key."""
    kind = "sqlite" if is_file(asked.place) else "redis"
    place = ledger_place(asked.place)
    try:
        if not is_here(asked):
            said = inspect_ledger(asked)
            return LedgerView(
                kind, place, "is not made yet" if said.endswith("at first use") else said
            )
        with ledger_and_keys(asked, only_look=True) as (ledger, _):
            said = (
                "opens"
                if kind == "sqlite"
                else "answers, and keeps every write that it has answered"
            )
            said += f". {SECRET}" if has_secret_charges(ledger.meta()) else ""
            return LedgerView(kind, place, said, Holdings.of(ledger))
    except (DependencyUnavailable, PrivacyRefused) as error:
        return LedgerView(kind, place, str(error), status=error.exit_status)
