"""One round of chaos: a day is fed, and closed, while the adversary strikes; then quiet; then the
checks."""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.chaos.adversary import Adversary
from tests.chaos.checks import violations
from tests.chaos.city import Ground, Profile, build
from tests.chaos.strangers import Strangers
from udp_stream.sources.fleet import IST, Fleet, Imperfections

QUIET_S = 120.0
"""After the last fault, for all to be done by those who are there."""
TAIL = 0.2
"""The share of the time in which nothing is fed any more and the last slots close by ticks."""
MOST = 0.8
LONGER = 3
LONGER_S = 300.0
"""Faults go on until most HATs are recorded, for at most so much longer, or until so many seconds
have passed."""
BREATH_S = 10.0
"""Then each fault waits so long at most until something has been recorded since the last one."""


@dataclass(frozen=True)
class Round:
    seed: int
    profile: Profile
    hats: int
    messages: int
    kills: int
    done: Counter[str]
    starts: int
    endings: Counter[str]
    before_quiet: int
    quiet_s: float
    violations: list[str]

    def told(self) -> str:
        done = ", ".join(f"{name} {times}" for name, times in sorted(self.done.items()))
        lines = [
            f"seed {self.seed}: {self.profile.name}; {self.messages:,} messages, {self.hats:,} HATs",
            f"  {self.kills} kills of serving workers ({done}); {self.starts} starts",
            *(f"    {times} x {how}" for how, times in self.endings.most_common()),
            f"  {self.before_quiet:,} HATs recorded before the last fault, all after {self.quiet_s:.0f} s more",
            *(f"  VIOLATION {one}" for one in self.violations),
            f"  {len(self.violations)} violations",
        ]
        return "\n".join(lines)


def synthetic_day(
    seed: int, buses: int = 60, ping_seconds: float = 30, hours: float = 18
) -> list[bytes]:
    """A day of a fleet with its faults, without pings hours late or far ahead: a file and a topic
    differ on those."""
    faults = Imperfections(late=0.0, far_future=0.0)
    start = datetime(2024, 1, 8, 5, 0, tzinfo=IST)
    fleet = Fleet(
        seed=seed,
        buses=buses,
        start=start,
        hours=hours,
        ping_seconds=ping_seconds,
        imperfections=faults,
    )
    return [message for batch in fleet.messages() for message in batch]


def play(
    on: Ground, folder: Path, messages: Sequence[bytes], profile: Profile, *, seed: int, seconds: float,
    regulars: int = 3, guests: int = 1, database: int = 0, kills: int = 0,
) -> Round:  # fmt: skip
    """One round with at least so many kills; the seed chooses what is done and when, as far as the
    machine lets it."""
    city = build(on, folder, messages, profile, places=regulars + guests, database=database)
    expected = city.expected()
    with city.workers() as workers, Strangers(city) as strangers:
        adversary = Adversary(city, workers, strangers, random.Random(seed), regulars)
        for place in city.places[:regulars]:
            workers.want(place, True)
        feeding = _in_thread(lambda: city.feed_apart(seconds * (1 - TAIL)))
        while (
            feeding.is_alive() and not city.feed_alive.exists()
        ):  # a feed that finds no broker ends at once
            time.sleep(0.1)
        began = time.monotonic()
        while feeding.is_alive() or time.monotonic() < began + seconds * (1 - TAIL):
            adversary.rest()
            adversary.strike()
        feeding.join()
        city.tell_time()
        for place in city.places:
            workers.kill(place)
        while time.monotonic() < began + seconds or (
            time.monotonic() < began + max(LONGER * seconds, LONGER_S)
            and int(city.recorded() or 0) < MOST * len(expected)
        ):
            adversary.rest()
            if time.monotonic() > began + seconds:
                _until_more_is_recorded(city)
            adversary.strike()
        adversary.leave_nothing_out(kills)
        adversary.relent()
        before_quiet = int(city.recorded() or 0)
        began = time.monotonic()
        missed = _wait(city, expected)
        quiet_s = time.monotonic() - began
        troubles = workers.end()
        came = strangers.seen()
    endings = workers.endings + Counter(f"stranger, status {one.status}" for one in came)
    seen = city.collect(expected, came)
    found = violations(seen, exact=profile.exact, strictly_once=city.settings.kafka.transactions)
    return Round(
        seed, profile, len(expected), len(messages), adversary.kills, adversary.done, workers.starts, endings,
        before_quiet, quiet_s, missed + troubles + found,
    )  # fmt: skip


def _until_more_is_recorded(city) -> None:
    before, deadline = city.recorded(), time.monotonic() + BREATH_S
    while city.recorded() in (before, None) and time.monotonic() < deadline:
        time.sleep(0.1)


def _wait(city, expected) -> list[str]:
    deadline = time.monotonic() + QUIET_S
    while not expected.keys() <= city.done():
        if time.monotonic() > deadline:
            return [f"not all was done {QUIET_S:g} s after the last fault"]
        time.sleep(1)
    while not city.estimated():
        if time.monotonic() > deadline:
            return [f"not all was estimated {QUIET_S:g} s after the last fault"]
        time.sleep(1)
    return []


def _in_thread(work) -> threading.Thread:
    def whole() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (the log is then not whole, which the checks will tell)
            print(f"the feed ended: {error}", file=sys.stderr)

    thread = threading.Thread(target=whole, name="feed", daemon=True)
    thread.start()
    return thread
