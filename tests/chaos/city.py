"""Real services behind a proxy, and a deployment on them: what chaos happens to."""

import asyncio
import io
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from uuid import uuid4

import msgspec
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.process import free_ports, temporary_folder
from lab.services import RunningKafka, start_kafka
from streams.feed import Feed, Pace
from streams.kafka import records_of
from streams.processors import is_tick
from streams.topics import create_topics, topics_of
from tests.chaos.checks import Collected, Expected, Stranger
from tests.chaos.clips import clips_amiss
from tests.chaos.proxy import Link, Proxy
from tests.chaos.store import Store, store
from tests.chaos.workers import Worker, Workers
from tests.runtime.harness import beside, record_writer
from udp_stream.cli.report import SOFTWARE
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.port import Entry, Ledger
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import ledger_and_keys, mark_beside
from udp_stream.release.charge import ReleaseContext, with_forecaster
from udp_stream.release.forecaster import LedgerHistory
from udp_stream.release.record import Release, Smoothed
from udp_stream.settings import load

FRAME = 4096
BROKEN = Path(__file__).with_name("broken_worker.py")

# Workers come to the broker by a listener of their own, whose advertised address is the proxy's;
# who feeds and who collects does not. Of lines of one name the last one holds.
BEHIND_PROXY = """\
listeners=PLAINTEXT://{{host}}:{{broker}},CONTROLLER://{{host}}:{{controller}},WORKERS://{{host}}:{hidden}
advertised.listeners=PLAINTEXT://{{host}}:{{broker}},WORKERS://{{host}}:{proxied}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,WORKERS:PLAINTEXT
"""

CONFIG = """\
[hat]
slot = "15m"
resolution = 7
grace = "2m"
timezone = "{timezone}"
[speed]
max_kmh = {max_kmh}
[release]
mean = "{mean}"
mean_epsilon = {epsilon}
cdf_epsilon = 0.3
min_plates = 4
[budget]
epsilon = {budget}
accounting = "{accounting}"
[ledger]
url = "{redis}/{database}"
key_file = "{folder}/plates.key"
replicas = {replicas}
[kafka]
bootstrap = "{bootstrap}"
prefix = "{name}."
group = "{name}"
partitions = 4
shards = {shards}
idle_timeout = "1h"
"""


@dataclass(frozen=True)
class Profile:
    """What kind of deployment. `exact`: its terms follow neither from balances nor from releases."""

    name: str
    shards: int
    budget: float
    epsilon: str = "0.4"
    exact: bool = True
    mean: str = "array-averaging"
    timezone: str = "Asia/Kolkata"
    max_kmh: float = 65.0
    replicas: int = 0
    accounting: str = "pure"


AMPLE = Profile("two shards, ample budget", 2, 1000.0)
SCARCE = Profile("one shard, scarce budget", 1, 9.0)
SHARED = Profile("three shards, scarce budget", 3, 9.0)
AUTOMATIC = Profile("two shards, automatic epsilon", 2, 9.0, epsilon='"auto"', exact=False)
FORECASTS = Profile("three shards, means around forecasts", 3, 9.0, exact=False, mean="auto")
SHARED_CLIPS = replace(
    FORECASTS, name="three shards, clips shared in rho", budget=20.0, accounting="approximate"
)
REPLICATED = Profile("two shards, ample budget, a replica", 2, 1000.0, replicas=1)
IN_RHO = Profile(
    "two shards, scarce budget, in rho", 2, 9.0, epsilon="0.8", accounting="approximate"
)


@dataclass(frozen=True)
class Ground:
    kafka: RunningKafka
    store: Store
    proxy: Proxy
    broker_link: Link

    @property
    def proxied(self) -> str:
        return f"127.0.0.1:{self.broker_link.port}"


@contextmanager
def ground(replicas: int = 0) -> Iterator[Ground]:
    hidden, proxied = free_ports(2)
    more = BEHIND_PROXY.format(hidden=hidden, proxied=proxied)
    with Proxy() as proxy, store(proxy, replicas) as kept, temporary_folder("kafka") as folder:
        running_kafka = start_kafka(folder, True, more)
        try:
            yield Ground(running_kafka, kept, proxy, proxy.link(hidden, proxied))
        finally:
            running_kafka.stop()


@dataclass
class City:
    ground: Ground
    folder: Path
    messages: Sequence[bytes]
    profile: Profile
    config: Path
    places: list[Worker]
    session_s: float
    fault: str | None = None
    stuck_s: float = 120.0
    flags: dict[str, str] = field(default_factory=lambda: {"kafka.idle_timeout": "1h"})

    @property
    def feed_alive(self) -> Path:
        return self.folder / "feed.alive"

    @cached_property
    def settings(self):
        return load(self.config, (), {})

    def workers(self) -> Workers:
        return Workers(self._command, self.places, self.folder)

    def _command(self, place: Worker) -> list[object]:
        flags = {
            "kafka.bootstrap": self.ground.proxied,
            **self.flags,
            "ledger.url": self.ledger_url(place.link),
        }
        static = ["--instance", place.name] if self.places.index(place) % 2 == 0 else []
        sets = [word for key, value in flags.items() for word in ("--set", f"{key}={value}")]
        return [
            self.fault or "small_parts", self.session_s, self.stuck_s, "worker", "--config", self.config, *sets,
            *static,
        ]  # fmt: skip

    def ledger_url(self, link: Link) -> str:
        return f"redis://127.0.0.1:{link.port}/{self.settings.ledger.url.rpartition('/')[2]}"

    def tell_time(self) -> None:
        """Workers started from now on take silence for the end of a slot: for when the day was fed."""
        self.flags["kafka.idle_timeout"] = "1s"

    def feed(
        self, seconds: float, messages: Sequence[bytes] | None = None, batch: int = 20
    ) -> None:
        messages = self.messages if messages is None else messages
        topic = topics_of(self.settings.kafka).pings.name
        rate = len(messages) / seconds if seconds else None
        with Feed(self.settings.kafka, topic, batch, Pace(rate)) as sender:
            for first in range(0, len(messages), 256):
                sender.send(list(messages[first : first + 256]))

    def feed_apart(self, seconds: float) -> None:
        log = self.folder / "log.ndjson"
        log.write_bytes(b"".join(message + b"\n" for message in self.messages))
        flags = [
            "--rate",
            str(len(self.messages) / seconds),
            "--batch",
            "20",
            "--alive",
            self.feed_alive,
        ]
        feed = [sys.executable, "-m", "udp_stream", "feed", log, "--config", self.config, *flags]
        with (self.folder / "feed.err").open("wb") as said:
            subprocess.run([str(word) for word in feed], stderr=said, cwd=self.folder, check=True)

    def expected(self) -> dict[str, Expected]:
        """What the embedded runtime says of the same log, under the same key."""
        out, settings = io.BytesIO(), self.settings
        with ledger_and_keys(beside(settings.ledger, self.folder / "embedded.ledger")) as (
            ledger,
            keys,
        ):
            runtime = EmbeddedRuntime(
                settings, ledger, OsEntropy(), keys.hash_plate, "chaos", record_writer(out)
            )
            runtime.run(self._frames())
            charged = {
                entry.release_id: dict(zip(entry.plates, entry.charged.tolist(), strict=True))
                for entry in ledger.entries()
            }
        records = [Release.decode(line) for line in out.getvalue().splitlines()]
        return {
            record.release_id: Expected(record, charged[record.release_id]) for record in records
        }

    def _frames(self) -> Iterator[list[bytes]]:
        return (
            list(self.messages[first : first + FRAME])
            for first in range(0, len(self.messages), FRAME)
        )

    def done(self) -> set[str]:
        with ledger_and_keys(self.settings.ledger, accept_older=True) as (
            ledger,
            _,
        ):  # to be judged by the checks
            return {entry.release_id for entry in ledger.entries() if entry.published}

    def estimated(self) -> bool:
        """Whether all that is to be said is said, as far as numbers tell; ask once all is recorded."""
        topics, kafka = topics_of(self.settings.kafka), self.settings.kafka
        said = {id_ for id_, _ in map(_with_id, asyncio.run(records_of(kafka, topics.smoothed)))}
        return len(said) >= self._estimates_in_all

    @cached_property
    def _estimates_in_all(self) -> int:
        with ledger_and_keys(self.settings.ledger, accept_older=True) as (ledger, _):
            return len(self._estimates(ledger))

    def _estimates(self, ledger: Ledger) -> tuple[bytes, ...]:
        """What follows from the ledger, whoever planned what, slot after slot; nothing without
        forecasts."""
        settings = self.settings
        if not settings.policy.forecasts:
            return ()
        given = ReleaseContext(settings.policy, settings.calendar, OsEntropy(), SOFTWARE)
        context, slots = with_forecaster(given), sorted(LedgerHistory(ledger).slots_since(0))
        return tuple(
            Smoothed.encode(one) for slot in slots for one in context.smoothed(slot, ledger)
        )

    def recorded(self) -> bytes | None:
        try:
            return self._redis.get("{udp}:recorded")
        except (OSError, RedisError):
            return None

    def marked(self) -> int:
        mark = mark_beside(self.settings.ledger)
        return 0 if mark is None else mark.recorded

    @cached_property
    def _redis(self) -> Redis:
        return Redis.from_url(
            self.settings.ledger.url, socket_timeout=0.5, retry=Retry(NoBackoff(), 0)
        )

    def collect(
        self, expected: dict[str, Expected], strangers: Iterable[Stranger] = ()
    ) -> Collected:
        topics, kafka = topics_of(self.settings.kafka), self.settings.kafka
        strangers, said = (
            tuple(strangers),
            [place.said.read_text(errors="replace") for place in self.places],
        )
        logged = Counter[bytes]()
        for record in asyncio.run(records_of(kafka, topics.pings)):
            if not is_tick(record.headers):
                logged.update(_pings_in(record.value))
        with ledger_and_keys(self.settings.ledger, accept_older=True) as (
            ledger,
            keys,
        ):  # to be judged by the checks
            entries, wanted = tuple(ledger.entries()), self._estimates(ledger)
            balances = balances_of(ledger, entries, expected.values())
            misfits, waiting = tuple(ledger.verify()), tuple(id_ for id_, _ in ledger.unpublished())
            clips = clips_amiss(self.settings, ledger, keys.hash_plate, self._frames())
        return Collected(
            fed=Counter(self.messages),
            logged=logged,
            expected=expected,
            released=tuple(map(_with_id, asyncio.run(records_of(kafka, topics.release)))),
            latest=tuple(map(_with_id, asyncio.run(records_of(kafka, topics.latest)))),
            smoothed=tuple(map(_with_id, asyncio.run(records_of(kafka, topics.smoothed)))),
            estimates=wanted,
            entries=entries,
            balances=balances,
            misfits=misfits,
            unpublished=waiting,
            told="".join([*said, *(one.told for one in strangers)]),
            plates=frozenset({f"GJ05ZZ{number:04}" for number in range(1, 1000)}),
            strangers=strangers,
            clips_amiss=clips,
        )


def balances_of(
    ledger: Ledger, entries: Iterable[Entry], expected: Iterable[Expected]
) -> dict[tuple[str, bytes], tuple[int, int]]:
    entries = tuple(entries)
    asked = {plate for entry in entries for plate in entry.plates}
    plates = sorted(asked.union(*(one.charged for one in expected)))
    balances = {}
    for period in {entry.period for entry in entries}:
        balance = ledger.balances(period, plates)
        pairs = zip(balance.charged.tolist(), balance.charges.tolist(), strict=True)
        balances |= {(period, plate): pair for plate, pair in zip(plates, pairs, strict=True)}
    return balances


def _pings_in(value: bytes) -> list[bytes]:
    try:
        return [bytes(one) for one in msgspec.json.decode(value, type=list[msgspec.Raw])]
    except msgspec.DecodeError:
        return [value]


def _with_id(record) -> tuple[str, bytes]:
    return dict(record.headers)["ce_id"].decode(), record.value


def build(
    on: Ground, folder: Path, messages: Sequence[bytes], profile: Profile, *, places: int, session_s: float = 5,
    fault: str | None = None, database: int = 0,
) -> City:  # fmt: skip
    """A city of its own on the ground: topics, keys and links of names that nobody else has."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "city.toml"
    text = CONFIG.format(
        timezone=profile.timezone, max_kmh=profile.max_kmh, epsilon=profile.epsilon, budget=profile.budget,
        mean=profile.mean, accounting=profile.accounting,
        redis=f"redis://127.0.0.1:{on.store.link().port}", replicas=profile.replicas, database=database,
        folder=folder, bootstrap=on.kafka.bootstrap,
        name=f"c{uuid4().hex[:8]}", shards=profile.shards,
    )  # fmt: skip
    config.write_text(text)
    links = [on.store.link() for _ in range(places)]
    names = [f"worker-{number}" for number in range(places)]
    workers = [
        Worker(name, link, folder / f"{name}.err") for name, link in zip(names, links, strict=True)
    ]
    for worker in workers:
        worker.said.touch()
    city = City(on, folder, messages, profile, config, workers, session_s, fault)
    create_topics(city.settings.kafka)
    return city
