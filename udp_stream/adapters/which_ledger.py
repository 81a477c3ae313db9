"""Which ledger a run is on, said on stderr before anything is charged; and the ledger of one run only.

A wrong ledger is a second budget for every plate. So each verb that opens one names it in full, says whether it is new,
and what it holds since when.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

from udp_stream.adapters.policy_keys import named, note_policy, other_policies
from udp_stream.adapters.settings import SQLITE, LedgerSection, Settings, is_file
from udp_stream.adapters.words import counted
from udp_stream.hats import SlotGrid
from udp_stream.ports import Ledger, Progress
from udp_stream.release import slot_of


def ledger_place(url: str) -> str:
    """Where a ledger is, without user and password: a file's absolute path, or a Redis's host, port and database.

    >>> ledger_place("sqlite:/data/city.ledger"), ledger_place("redis://user:secret@ledger:6379/2")
    ('/data/city.ledger', 'ledger:6379/2')
    >>> ledger_place("redis://ledger?db=2&password=secret"), ledger_place("unix:///run/redis.sock?db=1")
    ('ledger:6379/2', '/run/redis.sock/1')
    """
    if is_file(url):
        return str(Path(url.removeprefix(SQLITE)).resolve())
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


def ledger_sentence(place: str, meta: Mapping[str, str], progress: Progress, slots: SlotGrid) -> str:
    """Which ledger it is, whether it is new (it holds nothing yet), and since when it holds what.

    >>> from datetime import timedelta, timezone
    >>> slots = SlotGrid(3600, timezone(timedelta(hours=5, minutes=30)))
    >>> held = Progress(118, 118, "87608c4d2ffffff-1704673800-3600", "87608c4d2ffffff-1704713400-3600")
    >>> print(ledger_sentence("/data/city.ledger", {"made": "2026-11-20T09:12:44Z"}, held, slots))
    ... # doctest: +NORMALIZE_WHITESPACE
    ledger /data/city.ledger, made 2026-11-20T09:12:44Z: 118 HATs, the first of the slot 2024-01-08T06:00:00+05:30,
    the latest of 2024-01-08T17:00:00+05:30
    >>> ledger_sentence("/data/city.ledger", {"made": "2026-11-20T09:12:44Z"}, Progress(0, 0, None, None), slots)
    'ledger /data/city.ledger, new'
    """
    if not progress.admitted:
        return f"ledger {place}, new"
    made = f", made {meta['made']}" if "made" in meta else ""
    first, latest = (_slot(release_id, slots) for release_id in (progress.oldest, progress.newest))
    holds = [counted(progress.admitted, "HAT")]
    holds += [f"the first of the slot {first}"] if first else []
    holds += [f"the latest of {'' if first else 'the slot '}{latest}"] if latest else []
    return f"ledger {place}{made}: {', '.join(holds)}"


def say_ledger(place: LedgerSection, ledger: Ledger, settings: Settings) -> None:
    """Name an open ledger on stderr."""
    say(ledger_sentence(ledger_place(place.url), ledger.meta(), ledger.progress(), settings.calendar.slots))


def begin_run(place: LedgerSection, ledger: Ledger, settings: Settings) -> dict[str, str]:
    """Name the ledger of a run on stderr, and warn where it was charged under other settings than these.

    Returns how ours differ from each of them, by its fingerprint (`policy_keys.other_policies`).
    """
    say_ledger(place, ledger, settings)
    others = other_policies(ledger, settings.policy)
    if others:
        say(
            f"warning: the ledger holds HATs made under other settings ({named(list(others.values()))}): HATs that "
            "stand in it come out as they were"
        )
    return others


def begin_work(settings: Settings, ledger: Ledger) -> None:
    """As `begin_run`, for a worker; its settings are noted at once, because what comes will be charged under them."""
    begin_run(settings.ledger, ledger, settings)
    note_policy(ledger, settings.policy)


@contextmanager
def trial_ledger(settings: Settings) -> Iterator[LedgerSection]:
    """A ledger for one run, and a key of its own beside it: the configured key belongs to another ledger. Says so."""
    configured = settings.ledger.url
    is_used = configured != LedgerSection().url or Path(ledger_place(configured)).exists()
    untouched = f" The configured ledger {ledger_place(configured)} is not touched." if is_used else ""
    with TemporaryDirectory(prefix="udp-stream-trial-") as folder:
        say(
            "trial: the ledger is for this run only and gone afterwards. Another run draws every HAT again, so do not "
            f'publish these records beside others; each says "trial": true.{untouched}'
        )
        yield LedgerSection(url=f"{folder}/trial.ledger")


def _slot(release_id: str | None, slots: SlotGrid) -> str | None:
    """When the slot of an id starts; None for an id that tells none, or no time that there is."""
    try:
        return None if release_id is None else slots.iso(slot_of(release_id)[0] * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def say(sentence: str) -> None:
    """A sentence of ours on stderr."""
    print(f"udp-stream: {sentence}", file=sys.stderr, flush=True)
