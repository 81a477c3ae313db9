"""Configuration: TOML file, environment over it, flags over both; one frozen value per section, with defaults.

Every default carries the measurement or the reason it was chosen by; `docs/configuration.md` tells the same at length.
What changes privacy goes on to the core as a `Policy`; the rest stays out here.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.structs import fields

from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.errors import ConfigError
from udp_stream.mechanisms.cdfs.bins import bins_from_edges, equal_bins
from udp_stream.pings.decoder import PingRules
from udp_stream.planning.allowances import EPSILON_NANO_MAX, FIXED_NANO_MIN
from udp_stream.planning.calendar import BudgetCalendar
from udp_stream.planning.periods import accepted_nano
from udp_stream.planning.policy import AccountingDetail, Grouping, Mean, Policy, Suppression
from udp_stream.units import NANO, QUANTA_PER_KMH, duration_name, nano_allowance, nano_charge, parse_duration
from udp_stream.windows.grid import SlotGrid
from udp_stream.windows.open_slots import WindowRules
from udp_stream.windows.slot_tables import PINGS_MAX

PREFIX = "UDP_STREAM_"

EPSILON_MIN = FIXED_NANO_MIN / NANO
EPSILON_MAX = EPSILON_NANO_MAX / NANO

Budget = Annotated[float, msgspec.Meta(ge=EPSILON_MIN, le=1e6)]
"""Up to 1e15 nano-epsilon: a ledger's amounts lie below 2**53."""
Epsilon = Annotated[float, msgspec.Meta(ge=0, le=EPSILON_MAX)]

EPSILONS = {
    "release.mean_epsilon": f"0, {EPSILON_MIN:g} to {EPSILON_MAX:g}, or auto",
    "release.variance_epsilon": f"0, or {EPSILON_MIN:g} to {EPSILON_MAX:g}",
    "release.cdf_epsilon": f"0, {EPSILON_MIN:g} to {EPSILON_MAX:g}, or auto",
}
"""What each may be."""

DURATIONS = {
    "hat.slot": ("1m", "31d"),
    "hat.grace": ("0s", "31d"),
    "pings.ahead": ("0s", "36500d"),
    "budget.period": ("1m", "36500d"),
    "kafka.retention": ("1m", "36500d"),
    "kafka.idle_timeout": ("0.1s", "31d"),
    "kafka.disorder": ("0s", "31d"),
    "kafka.skew": ("0s", "31d"),
    "kafka.session_timeout": ("1s", "1d"),
    "kafka.stuck_timeout": ("1s", "31d"),
}
"""The shortest and the longest of each. Milliseconds of a slot have 32 bits (49 days), those of a session Kafka's 31
(24 days), calendars four digits for the year; no timeout is zero, which would pass at once."""


NO_LEDGERS = ("", "-")
"""Neither names a file: nothing would be the current folder, and `-` is a standard stream everywhere else."""

SQLITE = "sqlite:"

DEFAULT_LEDGER = "sqlite:udp-stream.ledger"
"""In the current folder: a first run needs no service and no setting."""

_HOST_PORT = re.compile(r"[^/:@]+:[0-9]+(/[0-9]*)?")


class HatSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where and when: resolution 6 (36 km2) and six hours are the finest at which epsilon 10 a day rivals a guess."""

    resolution: Annotated[int, msgspec.Meta(ge=0, le=15)] = 6
    slot: str = "6h"
    timezone: str = "Asia/Kolkata"
    grace: str = "2m"


class SpeedSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """U = 65 km/h: India's limit for buses within municipal limits, 60 km/h and 5 % (S.O. 1522(E), 2018), rounded up.

    The value came first from arXiv 2401.15906, which gives no reason. Take yours from a speed limit or a limiter, never
    from recorded speeds: their maximum is a function of what is protected.
    """

    max_kmh: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 65.0
    unit: Literal["kmh", "mps", "mph"] = "kmh"
    reject_above_kmh: Annotated[float, msgspec.Meta(ge=1, le=2000)] = 200.0


class PingsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a source may send: `box` is [west, south, east, north] in degrees, absent for the whole world."""

    box: tuple[float, float, float, float] | None = None
    ahead: str = "1d"
    per_slot_max: Annotated[int, msgspec.Meta(ge=1, le=PINGS_MAX)] = 50_000_000


class BudgetSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Epsilon 10 per plate and day: `udp-stream plan` says what it buys.

    Individual accounting promises the same for 1.0 to 2.5 times the releases (`benchmarks/budget_shares.py`).
    """

    epsilon: Budget = 10.0
    period: str = "1d"
    accounting: Literal["pure", "zcdp", "approximate"] = "pure"
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-6
    accounting_detail: AccountingDetail = "individual"
    accept_overlap: str = ""


class ReleaseSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Epsilons are per HAT; "auto" spreads what a plate has left over the HATs that it is likely still to visit.

    With them mean "auto" errs by 2 to 22 % less than Array-Averaging on seven of eight days. CDFs are off: at
    epsilon 1 they err more on every feed than one city-wide CDF does (`docs/measurements.md`).
    """

    mean: Mean = "auto"
    grouping: Grouping = "best-fit"
    mean_epsilon: Epsilon | Literal["auto"] = "auto"
    variance_epsilon: Epsilon = 0.0
    cdf_epsilon: Epsilon | Literal["auto"] = 0.0
    bins: Literal["auto"] | int | tuple[float, ...] = "auto"
    min_plates: Annotated[int, msgspec.Meta(ge=1, le=PINGS_MAX)] = 10
    suppression: Suppression = "off"
    hats_max: Annotated[int, msgspec.Meta(ge=0, le=PINGS_MAX)] = 0


class LedgerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where balances are kept; the key of the plates' hashes is beside it unless told otherwise.

    `url` is empty where nobody named a ledger. One run on one machine then takes `DEFAULT_LEDGER`; workers share a
    ledger, so they take none that was not named.
    """

    url: str = ""
    key_file: str = ""
    replicas: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0

    @property
    def place(self) -> str:
        """The ledger that was named, or the default one."""
        return self.url or DEFAULT_LEDGER

    def require_named(self) -> None:
        """ConfigError if nobody named a ledger: for what shares one with others."""
        if not self.url:
            raise ConfigError(
                "ledger.url: expected the one ledger that all workers of the deployment share, got none: name it with "
                "--ledger redis://HOST:PORT/DB, or with --ledger sqlite:FILE where all workers run on this machine"
            )


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole configuration."""

    hat: HatSection = HatSection()
    speed: SpeedSection = SpeedSection()
    pings: PingsSection = PingsSection()
    budget: BudgetSection = BudgetSection()
    release: ReleaseSection = ReleaseSection()
    ledger: LedgerSection = LedgerSection()
    kafka: KafkaSection = KafkaSection()

    @property
    def policy(self) -> Policy:
        """What changes privacy, or what is computed."""
        lifetime = self.budget.period == "lifetime"
        period_seconds = None if lifetime else _whole_seconds("budget.period", self.budget.period)
        return Policy(
            resolution=self.hat.resolution,
            slot_seconds=_whole_seconds("hat.slot", self.hat.slot),
            timezone=self.hat.timezone,
            grace_ms=_milliseconds(self.hat.grace),
            max_speed=int(self.speed.max_kmh * QUANTA_PER_KMH),
            unit=self.speed.unit,
            reject_above_kmh=self.speed.reject_above_kmh,
            box=self.pings.box,
            budget_nano=nano_allowance(self.budget.epsilon),
            period="lifetime" if period_seconds is None else duration_name(period_seconds),
            period_seconds=period_seconds,
            mean=self.release.mean,
            grouping=self.release.grouping,
            mean_nano=_nano(self.release.mean_epsilon),
            variance_nano=nano_charge(self.release.variance_epsilon),
            cdf_nano=_nano(self.release.cdf_epsilon),
            bins=self.release.bins,
            min_plates=self.release.min_plates,
            accounting_detail=self.budget.accounting_detail,
            suppression=self.release.suppression,
            hats_max=self.release.hats_max,
        )

    @property
    def ping_rules(self) -> PingRules:
        """What the decoder accepts."""
        return PingRules(
            unit=self.speed.unit,
            max_kmh=self.speed.max_kmh,
            reject_above_kmh=self.speed.reject_above_kmh,
            box=self.pings.box,
        )

    @property
    def window_rules(self) -> WindowRules:
        """What the windows keep open, and for how long."""
        return WindowRules(
            grace_ms=_milliseconds(self.hat.grace),
            ahead_ms=_milliseconds(self.pings.ahead),
            pings_per_slot_max=self.pings.per_slot_max,
            skew_ms=_milliseconds(self.kafka.skew),
            disorder_ms=_milliseconds(self.kafka.disorder),
        )

    @property
    def zone(self) -> ZoneInfo:
        """The zone of the slots; raises ConfigError if there is none of that name."""
        try:
            return ZoneInfo(self.hat.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder of zones
            raise ConfigError(f"hat.timezone: expected an IANA time zone, got {self.hat.timezone!r}") from error

    @property
    def calendar(self) -> BudgetCalendar:
        """Slots and periods in the zone."""
        policy = self.policy
        periods = None if policy.period_seconds is None else SlotGrid(policy.period_seconds, self.zone)
        accepted = accepted_nano(self.budget.accept_overlap)
        return BudgetCalendar(policy, SlotGrid(policy.slot_seconds, self.zone), periods, accepted)


def load(
    path: Path | None,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Settings:
    """Read the file, then `UDP_STREAM_SECTION__KEY` variables, then `section.key=value` flags; the later one wins.

    Last, `options` are strings as they stand, by key: a file may be called `true`.

    Raises ConfigError naming the key, the value and the rule; an unknown key is answered with the nearest known one,
    a variable with one underscore for two with the right one. Other variables are left alone.
    """
    tables = {} if path is None else _read(path)
    once_underscored = {_variable(key).replace("__", "_"): _variable(key) for key in known_keys()}
    for name, text in sorted((os.environ if environment is None else environment).items()):
        if name in once_underscored:
            raise ConfigError(f"unknown variable {name}; did you mean {once_underscored[name]}?")
        if name.startswith(PREFIX) and "__" in name:
            _put(tables, name.removeprefix(PREFIX).lower().replace("__", "."), text)
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals:
            raise ConfigError(f"expected section.key=value, got {flag!r}")
        _put(tables, name.strip(), text)
    for name, text in (options or {}).items():
        section, _, key = name.partition(".")
        _section(tables, section, name)[key] = text
    _refuse_unknown(tables)
    _refuse_nameless_ledger(tables)
    try:
        settings = msgspec.convert(tables, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(_where(str(error), tables)) from error
    _check(settings)
    return settings


def known_keys() -> list[str]:
    """Every `section.key` there is."""
    return [f"{section.name}.{field.name}" for section in fields(Settings) for field in fields(section.type)]


def _variable(key: str) -> str:
    return PREFIX + key.replace(".", "__").upper()


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _put(tables: dict[str, Any], name: str, text: str) -> None:
    """Set section.key; the text is a TOML value if it reads as one, else a string."""
    section, dot, key = name.partition(".")
    table = _section(tables, section if dot else "", name)
    try:
        table[key] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[key] = text


def _section(tables: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    table = tables.setdefault(section, {}) if section else None
    if not isinstance(table, dict):
        raise ConfigError(f"expected section.key, got {name!r}{_nearest(name)}")
    return table


def _refuse_unknown(tables: dict[str, Any]) -> None:
    known = known_keys()
    sections = {name.partition(".")[0] for name in known}
    for section, table in tables.items():
        if section not in sections:
            raise ConfigError(f"unknown section [{section}]{_nearest(section)}")
        for key in table if isinstance(table, dict) else ():
            if f"{section}.{key}" not in known:
                raise ConfigError(f"unknown key {section}.{key}{_nearest(f'{section}.{key}')}")


def _refuse_nameless_ledger(tables: dict[str, Any]) -> None:
    """Whoever sets ledger.url to nothing, as an unset variable does, has not chosen the default one."""
    section = tables.get("ledger")
    if isinstance(section, dict) and "url" in section:
        _require(section["url"] not in NO_LEDGERS, "ledger.url", "a file or URL", repr(section["url"]))


def _nearest(name: str) -> str:
    """'; did you mean ...?' for the nearest section or key, by its whole name or its last part."""
    known = known_keys()
    if "." not in name:
        sections = {key.partition(".")[0]: f"[{key.partition('.')[0]}]" for key in known}
        meant = {key.rpartition(".")[2]: key for key in known} | sections
        found = difflib.get_close_matches(name, meant, n=1)
        return f"; did you mean {meant[found[0]]}?" if found else f"; known are {', '.join(sorted(sections.values()))}"
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    return f"; did you mean {(same or difflib.get_close_matches(name, known, n=1, cutoff=0.0))[0]}?"


def _where(message: str, tables: dict[str, Any]) -> str:
    """msgspec's `... - at `$.section.key`` as `section.key: ..., got value`, with our own rule if there is one."""
    text, _, at = message.rpartition(" - at `$.")
    if not text:
        return message
    name = at.rstrip("`")
    section, _, key = name.partition("[")[0].partition(".")
    if rule := _rule(name):
        return f"{name}: expected {rule}, got {tables[section][key]!r}"
    return f"{name}: {text}" if ", got " in text else f"{name}: {text}, got {tables[section][key]!r}"


def _rule(name: str) -> str | None:
    """What a duration, an epsilon, a switch, or one of a few words may be."""
    if name in DURATIONS:
        return "a duration such as 6h"
    if name in EPSILONS:
        return EPSILONS[name]
    if name == "release.bins":
        return "auto, a number of bins, or edges in km/h"
    types = {f"{of.name}.{field.name}": field.type for of in fields(Settings) for field in fields(of.type)}
    if types.get(name) is bool:
        return "true or false"
    words = get_args(types.get(name)) if get_origin(types.get(name)) is Literal else ()
    return f"one of {', '.join(map(str, words))}" if words else None


def _nano(epsilon: float | Literal["auto"]) -> int | None:
    return None if epsilon == "auto" else nano_charge(epsilon)


def _milliseconds(duration: str) -> int:
    return round(parse_duration(duration) * 1000)


def _whole_seconds(name: str, duration: str) -> int:
    """Seconds of a slot or period, within `DURATIONS`: a length that divides a day or is whole days."""
    seconds = _seconds(name, duration)
    whole = int(seconds)
    if seconds != whole or (86_400 % whole and whole % 86_400):
        raise ConfigError(f"{name}: expected at least 1m that divides a day, or whole days, got {duration!r}")
    return whole


def _seconds(name: str, duration: str) -> float:
    """Seconds of a duration. ConfigError if it is none, or not within `DURATIONS`."""
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    least, most = DURATIONS[name]
    _require(parse_duration(least) <= seconds <= parse_duration(most), name, f"{least} to {most}", duration)
    return seconds


def is_file(url: str) -> bool:
    """Whether a ledger's URL names a file: `sqlite:FILE`, or just the file."""
    return url.startswith(SQLITE) or "://" not in url


def _check(settings: Settings) -> None:
    """What types cannot say. Raises ConfigError."""
    for name in DURATIONS:
        duration = _value(settings, name)
        if (name, duration) != ("budget.period", "lifetime"):
            _seconds(name, duration)
    policy = settings.policy
    _require(
        policy.period_seconds is None or policy.period_seconds % policy.slot_seconds == 0,
        "budget.period",
        f"a multiple of hat.slot ({settings.hat.slot}), so that every slot lies in one period",
        settings.budget.period,
    )
    if (box := settings.pings.box) is not None:
        on_earth = -180 <= box[0] < box[2] <= 180 and -90 <= box[1] < box[3] <= 90
        rule = "[west, south, east, north] with -180 <= west < east <= 180 and -90 <= south < north <= 90"
        _require(on_earth, "pings.box", rule, list(box))
    most, reject = settings.speed.max_kmh, settings.speed.reject_above_kmh
    _require(reject >= most, "speed.reject_above_kmh", f"at least speed.max_kmh ({most})", reject)
    _check_epsilons(settings, policy)
    limited = settings.release.hats_max > 0 and settings.release.suppression == "off"
    _require(not limited, "release.hats_max", '0 where release.suppression is "off"', settings.release.hats_max)
    _check_bins(settings)
    _require(
        settings.ledger.replicas == 0 or not is_file(settings.ledger.place),
        "ledger.replicas",
        "0 where ledger.url is a file",
        settings.ledger.replicas,
    )
    _check_ledger(settings.ledger.url)
    _ = settings.zone
    try:
        accepted_nano(settings.budget.accept_overlap)
    except ValueError as error:
        raise ConfigError(f"budget.accept_overlap: {error}") from error


def _check_ledger(url: str) -> None:
    """A place that reads as a service, or as another library's URL of a file, is not taken for a file's name."""
    if "://" in url or not url:
        if url.startswith(f"{SQLITE}//"):
            file = url.removeprefix(f"{SQLITE}//")
            raise ConfigError(f"ledger.url: expected sqlite:FILE, got {url!r}: did you mean sqlite:{file}?")
        return
    if not url.startswith(SQLITE) and ":" in url:
        meant = f"redis://{url}" if _HOST_PORT.fullmatch(url) else "redis://HOST:PORT/DB"
        raise ConfigError(
            f"ledger.url: expected a file or a URL, got {url!r}: did you mean {meant}? A file whose name has a "
            f"colon is written {SQLITE}FILE"
        )


def _check_epsilons(settings: Settings, policy: Policy) -> None:
    accounting, budget = settings.budget.accounting, settings.budget.epsilon
    _require(accounting == "pure", "budget.accounting", '"pure", the only one in this version', repr(accounting))
    for name, rule in EPSILONS.items():
        epsilon = _value(settings, name)
        _require(epsilon in ("auto", 0) or epsilon >= EPSILON_MIN, name, rule, epsilon)
    nanos = policy.mean_nano, policy.variance_nano, policy.cdf_nano
    asked = sum(nano or 0 for nano in nanos)
    _require(None in nanos or asked > 0, "release", "some epsilon above 0", "none")
    _require(asked <= policy.budget_nano, "budget.epsilon", f"at least what one HAT costs ({asked / NANO:g})", budget)
    lasting = policy.period_seconds is None
    _require(not (lasting and None in nanos), "budget.period", 'a duration for "auto"', "lifetime")


def _check_bins(settings: Settings) -> None:
    bins, max_kmh = settings.release.bins, settings.policy.max_speed / QUANTA_PER_KMH
    if isinstance(bins, int):
        _require(2 <= bins <= 4096, "release.bins", "2 to 4096 bins", bins)
    if bins != "auto":
        try:
            _ = equal_bins(bins, max_kmh) if isinstance(bins, int) else bins_from_edges(bins, max_kmh)
        except ValueError as error:
            raise ConfigError(f"release.bins: {error}") from error


def _value(settings: Settings, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def _require(holds: bool, key: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{key}: expected {rule}, got {value}")
