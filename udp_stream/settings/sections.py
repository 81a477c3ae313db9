"""The sections of the configuration, a frozen value each, with defaults; `docs/configuration.md`
gives the reasons."""

from __future__ import annotations

import dataclasses
import difflib
import json
import time
from collections.abc import Callable
from functools import cached_property
from math import inf
from typing import Annotated, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np

from udp_stream.base.arrays import Cells
from udp_stream.base.errors import ConfigError
from udp_stream.base.units import QUANTA_PER_KMH, nano_charge
from udp_stream.mechanisms.base import Cap, Levels
from udp_stream.mechanisms.statistics import STATISTICS, priced
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.json import JSON, FeedForm, exchanged, mapped_form, without_speeds
from udp_stream.pings.mapping import (
    FIELDS,
    PRESETS,
    SECONDS_AGO,
    WITHOUT_SPEED,
    FeedMapping,
    Preset,
)
from udp_stream.pings.times import EPOCHS, OF_A_DAY
from udp_stream.planning.policy import (
    BudgetCalendar,
    CountsReleased,
    Grouping,
    Mean,
    OneBudget,
    Policy,
    PositionPeriods,
    RequestedCdf,
    Schedule,
    SpeedFrom,
    Suppression,
    span_seconds,
)
from udp_stream.planning.promise import ACCOUNTINGS, NEIGHBOURS, Accounting, NeighbourRelation
from udp_stream.queries.standing import StandingQuery
from udp_stream.settings.domain import digest_of, read_domain
from udp_stream.settings.grids import GRIDS
from udp_stream.settings.limits import (
    Budget,
    Epsilon,
    Section,
    budget_period,
    milliseconds,
    require,
    whole_seconds,
)
from udp_stream.settings.queries import (
    PositionBudget,
    QueriesSection,
    QuerySection,
    standing_queries,
)
from udp_stream.windows.clocks import SteadyClock, WindowRules
from udp_stream.windows.grid import Grid
from udp_stream.windows.headings import Headings
from udp_stream.windows.positions import MomentRules
from udp_stream.windows.slots import ReadingRules
from udp_stream.windows.tables import PINGS_MAX, SlotGrid

Option: TypeAlias = str | int | float | bool


class KafkaSection(Section, frozen=True, kw_only=True):
    """For the deployment on Kafka; the embedded runtime reads `idle_timeout` alone.

    `partitions` are those of the pings topic, `shards` those of the shuffle topic. `replication` 0
    leaves it to the broker. A silent partition gets a tick record after `idle_timeout`.
    `transactions` publish a slot exactly once, for readers of committed records. `client` has
    options of kafka-python, which go to the clients unchanged; a secret is in a file
    (`sasl_plain_password_file`).
    """

    bootstrap: str = "localhost:9092"
    client: dict[str, Option] = {}  # noqa: RUF012
    prefix: str = ""
    group: str = "udp-stream"
    partitions: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    shards: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    replication: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    retention: str = "7d"
    idle_timeout: str = "1m"
    transactions: bool = True

    @property
    def is_set(self) -> bool:
        """Whether a key is set that only workers and their clients read; `run` reads
        `idle_timeout`, too.

        >>> KafkaSection(idle_timeout="2m").is_set, KafkaSection(prefix="surat.").is_set
        (False, True)
        """
        return self != KafkaSection(idle_timeout=self.idle_timeout)

    @property
    def protocol(self) -> str:
        """The protocol of the brokers' listener, by Kafka's name."""
        return str(self.client.get("security_protocol", "PLAINTEXT"))


class LiveSection(Section, frozen=True, kw_only=True):
    """For sources that go on until they are stopped. Surat's and Delhi's buses report every 10 s.

    While the newest ping is older than `max_age` none is read into a slot. `token_header` carries
    the token of HTTP. Secrets are in files, never in here.
    """

    every: str = "10s"
    timeout: str = "10s"
    max_age: str = "10m"
    format: Literal["auto", "json", "gtfs-rt"] = "auto"
    token_file: str = ""
    token_header: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9-]+$")] = "token"
    ca_file: str = ""
    queue: str = ""
    topics: tuple[str, ...] = ()
    username: str = ""
    password_file: str = ""


SQLITE = "sqlite:"

DEFAULT_LEDGER = "sqlite:udp-stream.ledger"
"""In the current folder: a first run needs no service and no setting."""


class LedgerSection(Section, frozen=True, kw_only=True):
    """Where balances are kept. `client` has options of redis-py, which go to the client unchanged;
    the password is in a file (`password_file`).

    A run on a single machine takes `DEFAULT_LEDGER` if no `url` is given. Workers share a ledger,
    so they need a `url`.
    """

    url: str = ""
    key_file: str = ""
    client: dict[str, Option] = {}  # noqa: RUF012
    replicas: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    allow_volatile: bool = False

    @property
    def place(self) -> str:
        return self.url or DEFAULT_LEDGER

    def require_named(self) -> None:
        if not self.url:
            raise ConfigError(
                "ledger.url: expected the one ledger that all workers of the deployment share, got none: "
                "redis://HOST:PORT/DB, or sqlite:FILE where all workers run on this machine"
            )


def is_file(url: str) -> bool:
    """Whether a ledger's URL names a file: `sqlite:FILE`, or just the file."""
    return url.startswith(SQLITE) or "://" not in url


class DashboardSection(Section, frozen=True, kw_only=True):
    """For `dashboard`. 48 slots are two days of hours. `statement` is a file that `ledger export`
    has written, `gtfs` a timetable, `tiles` an address with {z}, {x} and {y}, `history` a file that
    the dashboard writes. `holidays` are dates that count as Sundays in a typical week."""

    listen: str = "127.0.0.1:8321"
    slots: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 48
    statement: str = ""
    gtfs: str = ""
    title: str = ""
    note: str = ""
    tiles: str = ""
    tiles_credit: str = ""
    history: str = ""
    holidays: tuple[Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")], ...] = ()


DELIMITERS = {"": "", ",": ",", ";": ";", "\t": "\t", "tab": "\t", "|": "|"}

_OF_MAPPING = (*FIELDS, "records", "time_format", "message_time")
_OF_GTFS = {f"vehicle.vehicle.{name}": name for name in ("id", "label", "license_plate")}


class SourceSection(Section, frozen=True, kw_only=True):
    """Keys that are not set have the preset's value, else that of the contract's form.

    If any key but `delimiter` and `exchanged` is set, fields are read leniently: numbers may be
    text, plates integers. `exchanged`: longitude and latitude stand under each other's name.
    """

    preset: str = ""
    plate: str | tuple[str, ...] | None = None
    time: str | tuple[str, ...] | None = None
    time_format: str | None = None
    time_zone: str | None = None
    longitude: str | None = None
    latitude: str | None = None
    speed: str | None = None
    records: str | None = None
    message_time: str | None = None
    exchanged: bool = False
    delimiter: str = ""

    @property
    def is_mapped(self) -> bool:
        return not self.gtfs_plate and self._is_set

    @property
    def gtfs_plate(self) -> tuple[str, ...]:
        """The fields of GTFS-realtime's vehicle that name it, where `plate` alone is set and says
        so; its pings go on in the contract's form."""
        plates = (self.plate,) if isinstance(self.plate, str) else self.plate or ()
        is_alone = not msgspec.structs.replace(self, plate=None)._is_set
        return (
            tuple(_OF_GTFS[path] for path in plates)
            if is_alone and {*plates} <= {*_OF_GTFS}
            else ()
        )

    @property
    def _is_set(self) -> bool:
        return bool(self.preset) or any(
            getattr(self, name) is not None for name in (*_OF_MAPPING, "time_zone")
        )

    @property
    def mapping(self) -> FeedMapping:
        preset = _preset(self.preset)
        asked = {
            name: getattr(self, name)
            for name in _OF_MAPPING
            if name != "plate" or not self.gtfs_plate
        }
        keys = preset.keys | {name: value for name, value in asked.items() if value is not None}
        if self.delimiter not in DELIMITERS:
            raise ConfigError(
                f'source.delimiter: expected one of , ; | tab, or "", got {self.delimiter!r}'
            )
        try:
            mapping = FeedMapping(**keys, zone=self._zone, delimiter=DELIMITERS[self.delimiter])
        except ValueError as error:
            raise ConfigError(f"source.{error}") from error
        if mapping.zone is None and not mapping.reads_offsets:
            raise ConfigError(
                f"source.time_zone: expected an IANA time zone, as source.time_format {mapping.time_format!r} reads "
                'no offset (%z), got ""'
            )
        return mapping

    @property
    def form(self) -> FeedForm:
        form = (
            mapped_form(self.mapping)
            if self.is_mapped
            else FeedForm(self.mapping, JSON, self.gtfs_plate)
        )
        return exchanged(form) if self.exchanged else form

    @property
    def written(self) -> tuple[tuple[str, str], ...]:
        """The mapping of fields, for the policy: empty for the contract's own form."""
        is_exchanged = (("exchanged", "true"),) * self.exchanged
        if not self.is_mapped:
            return (
                *((("plate", json.dumps(self.gtfs_plate)),) if self.gtfs_plate else ()),
                *is_exchanged,
            )
        mapping = self.mapping
        reads_zone = mapping.time_format not in (*EPOCHS, SECONDS_AGO) or bool(mapping.message_time)
        zone = (self.time_zone or "") if reads_zone else ""
        # A day before a pattern says which file is read, and not how.
        pattern = OF_A_DAY.sub("DAY ", mapping.time_format)
        read = [(name, getattr(mapping, name)) for name in _OF_MAPPING]
        read = [(name, pattern if name == "time_format" else path) for name, path in read]
        texts = ((name, path if isinstance(path, str) else json.dumps(path)) for name, path in read)
        # A key that is newer than its feeds' ledgers is written where it says something.
        return (
            *((name, path) for name, path in texts if path or name != "message_time"),
            ("time_zone", zone),
            *is_exchanged,
        )

    @property
    def unit(self) -> str | None:
        """The unit that the preset's feed has; None where it may be any."""
        return _preset(self.preset).unit

    @property
    def _zone(self) -> ZoneInfo | None:
        return _zone("source.time_zone", self.time_zone) if self.time_zone else None


def _zone(key: str, name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # the latter: a folder of zones
        raise ConfigError(f"{key}: expected an IANA time zone, got {name!r}") from error


def _preset(name: str) -> Preset:
    if not name:
        return Preset("", None, {})
    if name in PRESETS:
        return PRESETS[name]
    if why := WITHOUT_SPEED.get(name.lower()):
        raise ConfigError(f"source.preset: there is none for {name!r}: {why}")
    near = difflib.get_close_matches(name.lower(), PRESETS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PRESETS)}"
    raise ConfigError(f"source.preset: expected a feed that is known by name, got {name!r}; {hint}")


def check_source(source: SourceSection, unit: str | None) -> None:
    """ConfigError for what types cannot say, and for a unit that is not the preset's."""
    _ = source.mapping
    if source.unit is not None and source.unit != unit:
        raise ConfigError(
            f"speed.unit: expected {source.unit!r}, in which feeds of source.preset {source.preset!r} have their "
            f"speeds, got {unit!r}. If yours differs, name the paths instead of the preset"
        )


EPSILON = 10.0


class HatSection(Section, frozen=True, kw_only=True):
    """Resolution 7 (5 km2) and an hour: there means around forecasts halve a guess's error, at
    epsilon 10 a day. `zones`, a GeoJSON file, stand in place of hexagons; its lines are
    `zone_width` wide, and `zone_name` is the property that names them. `headings` split
    each cell by the course of the plates in it."""

    zones: str = ""
    zone_width: str = ""
    zone_name: str = ""
    headings: Literal[1, 2, 4] = 1
    resolution: Annotated[int, msgspec.Meta(ge=0, le=15)] = 7
    slot: str = "1h"
    timezone: str = "Asia/Kolkata"
    grace: str = "2m"
    domain: str = ""


class SpeedSection(Section, frozen=True, kw_only=True):
    """U = 65 km/h: India's limit for buses within municipal limits, 60 km/h and 5 % (S.O. 1522(E),
    2018), rounded up.

    Take it from a speed limit, never from recorded speeds: their maximum is a function of protected
    data.
    """

    max_kmh: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 65.0
    unit: Literal["kmh", "mps", "mph", "knots"] | None = None
    reject_above_kmh: Annotated[float, msgspec.Meta(ge=1, le=2000)] = 200.0
    from_: SpeedFrom = msgspec.field(default="field", name="from")
    unit_checked: bool = False

    @property
    def read_in(self) -> str:
        return self.unit or "kmh"


class PingsSection(Section, frozen=True, kw_only=True):
    """Bounds of what a source may send: `box` is [west, south, east, north] in degrees, absent for
    the whole world. A bus sends a ping every `interval`."""

    box: tuple[float, float, float, float] | None = None
    interval: str = ""


class PrivacySection(Section, frozen=True, kw_only=True):
    """Which inputs have to look alike: "swap-values" hides speeds, as the papers do; "add-remove"
    the whole plate."""

    neighbours: str = "swap-values"

    @property
    def relation(self) -> NeighbourRelation:
        require(
            self.neighbours in NEIGHBOURS,
            "privacy.neighbours",
            f"one of {', '.join(NEIGHBOURS)}",
            f'"{self.neighbours}"',
        )
        return NEIGHBOURS[self.neighbours]


class BudgetSection(Section, frozen=True, kw_only=True):
    """Epsilon 10 with delta 1e-6 per plate and day: `udp-stream plan` says what it buys.

    Under "approximate" accounting the budget is the largest rho that implies (epsilon, delta);
    under "zcdp" it is `rho` itself. A release of epsilon then costs a rho of half its square.
    "approximate" is the default: estimates around forecasts err less under it than under "pure"
    (`docs/budgets.md`).
    """

    epsilon: Budget | None = None
    period: str = "1d"
    accounting: str = "approximate"
    delta: Annotated[float, msgspec.Meta(ge=1e-12, le=1e-3)] = 1e-6
    rho: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    schedule: Schedule = "spread"

    @property
    def promised(self) -> float:
        return EPSILON if self.epsilon is None else self.epsilon

    @property
    def accounted(self) -> Accounting:
        known = ", ".join(f'"{name}"' for name in ACCOUNTINGS)
        require(
            self.accounting in ACCOUNTINGS,
            "budget.accounting",
            f"one of {known}",
            f'"{self.accounting}"',
        )
        return ACCOUNTINGS[self.accounting]

    @property
    def nano(self) -> int:
        """The budget, in nano-units of what losses are counted in; rounded down."""
        promised = self.rho if self.accounted.key == "budget.rho" else self.promised
        return self.accounted.nano(promised, self.delta)

    def charge_nano(self, epsilon: float | Literal["auto"]) -> int | None:
        """The largest charge of a release of this epsilon, in the same units, rounded up; None is
        for "auto"."""
        return (
            None if epsilon == "auto" else self.accounted.measure.price_nano(nano_charge(epsilon))
        )


class ReleaseSection(Section, frozen=True, kw_only=True):
    """Epsilons are per HAT. Mean "auto" is taken around a forecast, or by a paper's mechanism where
    that errs less.

    An automatic epsilon is then a part of the budget, for the plate that moves a mean most. A HAT's
    CDF is the city's, tilted to its mean, or a tree of its own where that errs less
    (`docs/mechanisms/shapes.md`).
    """

    mean: Mean = "auto"
    grouping: Grouping = "best-fit"
    cap: Cap = "median"
    mean_epsilon: Epsilon | Literal["auto"] = "auto"
    variance_epsilon: Epsilon | Literal["auto"] = 0.0
    cdf: RequestedCdf = "auto"
    cdf_epsilon: Epsilon | Literal["auto"] = "auto"
    bins: Literal["auto"] | int | tuple[float, ...] = "auto"
    branching: Literal["auto"] | tuple[int, ...] = "auto"
    levels: Levels = "best"
    min_plates: Annotated[int, msgspec.Meta(ge=1, le=PINGS_MAX)] = 3
    suppression: Suppression = "off"
    hats_max: Annotated[int, msgspec.Meta(ge=0, le=PINGS_MAX)] = 0
    counts: CountsReleased = "all"
    plates: bool = False

    @property
    def epsilons(self) -> dict[str, float | Literal["auto"]]:
        return {
            name: getattr(self, f"{name}_epsilon", STATISTICS[name].epsilon) for name in priced()
        }


EPSILONS = tuple(
    f"release.{key}" for key in ReleaseSection.__struct_fields__ if key.endswith("_epsilon")
)


class Settings(Section, frozen=True, kw_only=True, dict=True):
    """The whole configuration. What follows from it is worked out once, when it is first asked for."""

    hat: HatSection = HatSection()
    speed: SpeedSection = SpeedSection()
    pings: PingsSection = PingsSection()
    source: SourceSection = SourceSection()
    live: LiveSection = LiveSection()
    privacy: PrivacySection = PrivacySection()
    budget: BudgetSection = BudgetSection()
    release: ReleaseSection = ReleaseSection()
    queries: QueriesSection = QueriesSection()
    query: tuple[QuerySection, ...] = ()
    ledger: LedgerSection = LedgerSection()
    kafka: KafkaSection = KafkaSection()
    dashboard: DashboardSection = DashboardSection()

    @cached_property
    def policy(self) -> Policy:
        budget = self.budget
        (period, period_seconds) = budget_period(self.budget.period)
        policy = Policy(
            grid=self.grid,
            slot_seconds=whole_seconds("hat.slot", self.hat.slot),
            timezone=self.hat.timezone,
            grace_ms=milliseconds(self.hat.grace),
            max_speed=int(self.speed.max_kmh * QUANTA_PER_KMH),
            unit=self.speed.read_in,
            reject_above_kmh=self.speed.reject_above_kmh,
            box=self.pings.box,
            budget_nano=budget.nano - self.queries.shared_nano(budget.nano),
            period=period,
            period_seconds=period_seconds,
            mean=self.release.mean,
            grouping=self.release.grouping,
            prices={
                name: budget.charge_nano(epsilon) for name, epsilon in self.release.epsilons.items()
            },
            bins=self.release.bins,
            branching=self.release.branching,
            levels=self.release.levels,
            cap=self.release.cap,
            min_plates=self.release.min_plates,
            accounting=budget.accounting,
            delta=self.budget.delta,
            suppression=self.release.suppression,
            hats_max=self.release.hats_max,
            counts_released=self.release.counts,
            schedule=self.budget.schedule,
            cdf=self.release.cdf,
            source=self.source.written,
            speed_from=self.speed.from_,
            neighbours=self.privacy.neighbours,
            domain=digest_of(self.domain) if self.domain.size else "",
            interval_ms=milliseconds(self.pings.interval) if self.pings.interval else 0,
            plates=self.release.plates,
        )
        # Trees are automatic beside automatic means around forecasts; elsewhere somebody has to ask
        # for them.
        asked = (
            policy.has_automatic_trees and policy.mean_nano is None and period_seconds is not None
        )
        is_by_default = policy.cdf == "auto" and policy.cdf_nano is None
        has_no_tree = policy.cdf not in ("auto", "tree") or (is_by_default and not asked)
        has_no_tree = has_no_tree or not self.privacy.relation.has_trees
        return (
            msgspec.structs.replace(policy, prices=policy.prices | {"cdf": 0})
            if has_no_tree
            else policy
        )

    @cached_property
    def grid(self) -> Grid:
        *others, (_, default) = GRIDS.items()
        make = next((made for key, made in others if getattr(self.hat, key)), default)
        headings = self.hat.headings
        return make(self.hat) if headings == 1 else Headings(make(self.hat), headings)

    @cached_property
    def domain(self) -> Cells:
        """The public list of cells, ascending, from the file; empty where there is none."""
        if not self.hat.domain:
            hides = self.privacy.neighbours == "add-remove"
            return self.grid.domain if hides else np.empty(0, np.uint64)
        return self.grid.split(read_domain(self.hat.domain, self.grid, self.pings.box))

    @property
    def judges_unit(self) -> bool:
        """Whether speeds may be found in another unit: not where they are derived, nor where a
        person has looked."""
        return self.speed.from_ == "field" and not self.speed.unit_checked

    @cached_property
    def ping_rules(self) -> PingRules:
        speed = self.speed
        box = self.pings.box
        return PingRules(
            unit=speed.read_in,
            max_kmh=speed.max_kmh,
            reject_above_kmh=speed.reject_above_kmh,
            box=box,
        )

    @property
    def decoder(self) -> PingDecoder:
        return PingDecoder(self.ping_rules, self.form.format)

    @cached_property
    def form(self) -> FeedForm:
        return self.source.form if self.speed.from_ == "field" else without_speeds(self.source.form)

    @property
    def window_rules(self) -> WindowRules:
        return WindowRules(
            grace_ms=milliseconds(self.hat.grace),
            movement=self.movement_rules,
            in_processing_time=self.privacy.relation.in_processing_time,
            grid=self.grid,
        )

    def arrival_clock(self, lag_max_s: float = inf) -> SteadyClock:
        """The clock of arrivals, from both clocks of the machine. Pings of a sound source are at
        most `lag_max_s` old; in processing time none of them moves it."""
        hears = not self.window_rules.in_processing_time
        return SteadyClock(time.time, time.monotonic, lag_max_s, hears)

    def reading_rules(
        self,
        hash_plate: Callable[[str], bytes],
        moments: MomentRules | None = None,
        archived_s: int | None = None,
    ) -> ReadingRules:
        """The rules that readers of a log share; `archived_s` is up to when their ledger is
        archived, in Unix seconds."""
        slots = self.calendar.slots
        windows = self.window_rules
        if archived_s is not None:
            windows = dataclasses.replace(windows, archived_ms=archived_s * 1000)
        return ReadingRules(self.decoder, windows, slots, hash_plate, moments)

    @property
    def movement_rules(self) -> PingRules | None:
        return None if self.speed.from_ == "field" else self.ping_rules

    @cached_property
    def zone(self) -> ZoneInfo:
        return _zone("hat.timezone", self.hat.timezone)

    @cached_property
    def calendar(self) -> BudgetCalendar:
        policy = self.policy
        seconds = policy.period_seconds
        if policy.rolls and seconds is not None:
            seconds = span_seconds(seconds, policy.slot_seconds)
        periods = None if seconds is None else SlotGrid(seconds, self.zone)
        return BudgetCalendar(
            policy, SlotGrid(policy.slot_seconds, self.zone), periods, self._one_budget
        )

    @cached_property
    def standing_queries(self) -> tuple[StandingQuery, ...]:
        return standing_queries(self.queries, self.query, self.pings.box, self._position_budget)

    @cached_property
    def position_periods(self) -> PositionPeriods:
        seconds = self.queries.period_seconds
        grid = None if seconds is None else SlotGrid(seconds, self.zone)
        budget = self.budget
        positions = self._position_budget
        shared = self._one_budget
        whole = budget.accounted.in_words(budget.nano, budget.delta) if shared else ""
        length = self.queries.period_name
        return PositionPeriods(positions.measure, positions.nano, length, grid, shared, whole)

    @cached_property
    def _one_budget(self) -> OneBudget | None:
        return self.queries.one_budget(self._position_budget.measure, self.budget.nano)

    @cached_property
    def _position_budget(self) -> PositionBudget:
        return self.queries.position_budget(self.budget.accounted.measure.name, self.budget.nano)
