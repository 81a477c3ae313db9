"""Rules between the keys of a configuration: a table of what a mode excludes, and a few others. No
file is read but `hat.domain`: a machine that only plans has none."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from udp_stream.base.errors import ConfigError
from udp_stream.base.units import NANO, QUANTA_PER_KMH, amount_text
from udp_stream.dashboard.branding import host_of
from udp_stream.ledger.rules import ROLLING
from udp_stream.mechanisms.cdf import BINS_MAX, bins_from_edges, equal_bins
from udp_stream.mechanisms.samplers import SCALE_MAX
from udp_stream.planning.add_remove import AddRemoveRules
from udp_stream.planning.policy import Policy
from udp_stream.settings.limits import (
    CONCENTRATED,
    DURATIONS,
    EPSILON_MAX,
    EPSILON_MIN,
    EPSILON_RULE,
    RHO_MIN,
    budget_period,
    require,
    require_box,
    seconds_of,
    whole_seconds,
)
from udp_stream.settings.sections import (
    SQLITE,
    KafkaSection,
    LedgerSection,
    Option,
    Settings,
    check_source,
    is_file,
)

NO_LEDGERS = ("", "-")

_HOST_PORT = re.compile(r"[^/:@]+:[0-9]+(/[0-9]*)?")


class Exclusion(NamedTuple):
    """Keys that have one of these values while a mode is on, and why. Without values: their
    default."""

    mode: str
    is_on: Callable[[Settings], bool]
    keys: tuple[str, ...]
    reason: str
    values: tuple[object, ...] = ()


def _under(
    neighbours: str, keys: tuple[str, ...], reason: str, values: tuple[object, ...] = ()
) -> Exclusion:
    """Exclusions of the neighbour relations."""
    mode = f'privacy.neighbours is "{neighbours}"'
    is_on = lambda settings: settings.privacy.neighbours == neighbours  # noqa: E731
    return Exclusion(mode, is_on, keys, reason, values)


EXCLUSIONS = (
    _under(
        "add-remove",
        (
            "release.mean",
            "release.grouping",
            "release.cap",
            "release.mean_epsilon",
            "release.variance_epsilon",
        ),
        "one query asks all HATs",
    ),
    _under(
        "add-remove",
        (
            "release.bins",
            "release.branching",
            "release.min_plates",
            "release.suppression",
            "release.hats_max",
        ),
        "counts are secret",
    ),
    _under(
        "add-remove",
        ("release.cdf",),
        "the only CDF is the city's, tilted",
        ("auto", "smoothed", "off"),
    ),
    _under("add-remove", ("release.cdf_epsilon",), "no HAT has a tree", ("auto", 0)),
    _under(
        "add-remove",
        ("budget.accounting",),
        "charges go by squares",
        ("approximate", "zcdp"),
    ),
    _under("add-remove", ("budget.schedule",), "a plate's HATs are secret"),
    _under("add-remove", ("kafka.shards",), "one worker sums over all cells of a plate"),
    _under(
        "add-remove",
        ("queries.share", "query"),
        "answers about positions tell which plates are there",
    ),
    _under(
        "swap-values",
        ("hat.domain", "pings.interval", "release.plates"),
        "only add-remove reads it",
    ),
    Exclusion(
        "hat.zones has no file",
        lambda settings: not settings.hat.zones,
        ("hat.zone_width", "hat.zone_name"),
        "they say how its features become zones",
    ),
    Exclusion(
        "hat.zones has a file",
        lambda settings: bool(settings.hat.zones),
        ("hat.resolution", "hat.domain"),
        "zones stand in place of hexagons, and are the domain",
    ),
    Exclusion(
        'budget.accounting is "zcdp"',
        lambda settings: settings.budget.accounting == "zcdp",
        ("budget.epsilon",),
        "the budget is budget.rho",
    ),
    Exclusion(
        'budget.accounting is not "zcdp"',
        lambda settings: settings.budget.accounting != "zcdp",
        ("budget.rho",),
        "the budget is budget.epsilon",
    ),
    Exclusion(
        "budget.accounting has a delta",
        lambda settings: settings.budget.accounted.has_delta,
        ("release.suppression",),
        "it compares worst cases of pure noise",
    ),
    Exclusion(
        'release.mean is "forecast-clip"',
        lambda settings: settings.release.mean == "forecast-clip",
        ("release.suppression",),
        "its worst cases are not those of forecasts",
    ),
    Exclusion(
        'release.suppression is "off"',
        lambda settings: settings.release.suppression == "off",
        ("release.hats_max",),
        "only suppression reads it",
    ),
    Exclusion(
        'release.mean is not "array-averaging"',
        lambda settings: settings.release.mean != "array-averaging",
        ("release.cap",),
        "only that mean has a cap",
    ),
    Exclusion(
        'release.branching is "auto"',
        lambda settings: settings.release.branching == "auto",
        ("release.levels",),
        "levels are found with the tree",
    ),
    Exclusion(
        "ledger.url is a file",
        lambda settings: is_file(settings.ledger.place),
        ("ledger.replicas",),
        "only a Redis has it",
    ),
    Exclusion(
        "dashboard.tiles is not set",
        lambda settings: not settings.dashboard.tiles,
        ("dashboard.tiles_credit",),
        "no map is shown",
    ),
    Exclusion(
        'means are taken around forecasts, or no epsilon is "auto"',
        lambda settings: settings.policy.forecasts or not settings.policy.automatic,
        ("budget.schedule",),
        "only automatic epsilons of other means read it",
    ),
    Exclusion(
        "no mean is taken around a forecast",
        lambda settings: not settings.policy.forecasts,
        ("release.cdf",),
        "there is none to tilt the city's CDF to",
        ("auto", "tree", "off"),
    ),
)
"""The policy's modes come last: it can be made once the other rows hold."""

_DEFAULTS = Settings()


def check(settings: Settings) -> None:
    """Raise ConfigError for the first fault that types cannot see."""
    check_source(
        settings.source,
        settings.speed.read_in if settings.speed.from_ == "field" else settings.source.unit,
    )
    for name in DURATIONS:
        duration = _value(settings, name)
        if name == "budget.period":
            budget_period(duration)
        elif name == "hat.slot" or (name == "queries.period" and duration != "lifetime"):
            whole_seconds(name, duration)
        elif name != "queries.period" and (duration or name != "pings.interval"):
            seconds_of(name, duration)
    if settings.pings.box is not None:
        require_box("pings.box", settings.pings.box)
    for name, (holds, rule) in TEXTS.items():
        text = _value(settings, name)
        require(holds(text), name, rule, repr(text))
    _check_ledger(settings.ledger)
    if settings.privacy.neighbours == "add-remove":
        _check_add_remove(settings)
    _check_exclusions(settings)
    policy = settings.policy
    _check_period(settings, policy)
    _check_epsilon(settings, policy)
    _check_noise(settings)
    _check_beside(settings)
    _check_bins(settings)
    check_kafka(settings.kafka)
    check_redis(settings.ledger)
    _ = settings.standing_queries, settings.zone


def _value(settings: Settings, name: str) -> Any:
    """The value of `section.key`, or of a section."""
    return attrgetter(name)(settings)


def _check_exclusions(settings: Settings) -> None:
    for mode, is_on, keys, reason, values in EXCLUSIONS:
        if not is_on(settings):
            continue
        for key in keys:
            value = _value(settings, key)
            allowed = values or (_value(_DEFAULTS, key),)
            rule = f"{' or '.join(map(_written, allowed))} where {mode}, as {reason}"
            got = _written(value)
            if not values and got != "some":
                got += f"; delete the line `{key.rpartition('.')[2]} = {got}`"
            require(value in allowed, key, rule, got)


def _written(value: Any) -> str:
    """A value as TOML has it; no table, which may hold a secret."""
    if value in (None, "", (), {}):
        return "none"
    return json.dumps(value) if isinstance(value, str | int | float) else "some"


_SLOT_MAX_S = 6 * 3600


def _check_add_remove(settings: Settings) -> None:
    """ConfigError for what is missing, or cannot be kept, where a whole plate is hidden."""
    where = 'where privacy.neighbours is "add-remove"'
    slot = settings.hat.slot
    slot_s = whole_seconds("hat.slot", slot)
    needed = {
        "hat.domain": "a public list of cells: a file of cells, a GeoJSON or a GTFS feed",
        "pings.interval": "how often a bus sends a ping, such as 10s,",
    }
    if settings.hat.zones:
        del needed["hat.domain"]
    for name, rule in needed.items():
        require(bool(_value(settings, name)), name, f"{rule} {where}", "none")
    rule = f"at most 6h {where}, as a forecast is of the slot before"
    require(slot_s <= _SLOT_MAX_S, "hat.slot", rule, slot)
    interval = settings.pings.interval
    rule = f"at most a tenth of hat.slot ({slot})"
    require(10 * seconds_of("pings.interval", interval) <= slot_s, "pings.interval", rule, interval)
    # What a plate has left follows from its secret pings. In a calendar each period begins anew; in
    # windows that overlap, later slots would go by pings of slots before the window, and a plate
    # could lose more than the budget.
    period = settings.budget.period
    begins_anew = budget_period(period)[1] is not None and not period.startswith(ROLLING)
    rule = f"a duration {where}, as what is left to spend is secret and must begin anew"
    require(begins_anew, "budget.period", rule, repr(period))


def _check_noise(settings: Settings) -> None:
    """Noise for a budget that is tiny, or is to last for many slots, cannot be drawn."""
    if settings.privacy.neighbours == "add-remove":
        rules = AddRemoveRules.of(settings.policy, settings.domain)
        rule = (
            f"a budget whose noise has a deviation of at most {SCALE_MAX // QUANTA_PER_KMH:,} km/h"
        )
        got = f"{rules.sigma / QUANTA_PER_KMH:,.0f} km/h: raise it, or shorten budget.period"
        require(rules.sigma <= SCALE_MAX, settings.policy.accounted.key, rule, got)


def _check_beside(settings: Settings) -> None:
    has_field = bool(settings.source.mapping.speed) or settings.speed.from_ == "movement"
    require(has_field, "source.speed", 'a path where speed.from is "field"', settings.source.speed)
    most = settings.speed.max_kmh
    reject = settings.speed.reject_above_kmh
    require(reject >= most, "speed.reject_above_kmh", f"at least speed.max_kmh ({most})", reject)
    period = settings.queries.period
    ours = settings.budget.period
    rule = f"that of budget.period ({ours}), of which queries.share is a part"
    require(not settings.queries.share or period == ours, "queries.period", rule, period)


def _check_period(settings: Settings, policy: Policy) -> None:
    """Slots lie in periods; a window of a rolling budget may begin anywhere, and holds a slot at
    least."""
    seconds = policy.period_seconds
    slot_s = policy.slot_seconds
    if seconds is None:
        return
    fits = seconds >= slot_s if policy.rolls else seconds % slot_s == 0
    slot = f"hat.slot ({settings.hat.slot})"
    rule = f"windows of at least {slot}" if policy.rolls else f"a multiple of {slot}, such as 30d"
    require(fits, "budget.period", rule, settings.budget.period)


def _check_ledger(ledger: LedgerSection) -> None:
    """A place that reads as a service, or as another library's URL of a file, is not taken for a
    file's name."""
    url = ledger.url
    if "://" in url or not url:
        if url.startswith(f"{SQLITE}//"):
            file = url.removeprefix(f"{SQLITE}//")
            raise ConfigError(
                f"ledger.url: expected sqlite:FILE, got {url!r}: did you mean sqlite:{file}?"
            )
        check_url(ledger.place)
        return
    if not url.startswith(SQLITE) and ":" in url:
        meant = f"redis://{url}" if _HOST_PORT.fullmatch(url) else "redis://HOST:PORT/DB"
        got = re.sub(":.*@", ":...@", url)  # a password, perhaps
        raise ConfigError(
            f"ledger.url: expected a file or a URL, got {got!r}: did you mean {meant}? A file whose name has a "
            f"colon is written {SQLITE}FILE"
        )


def _check_epsilon(settings: Settings, policy: Policy) -> None:
    _check_budget(settings, policy)
    is_linear = policy.accounted.measure.noise.power == 1
    least, most, rule = (EPSILON_MIN, EPSILON_MAX, EPSILON_RULE) if is_linear else CONCENTRATED
    for name, epsilon in settings.release.epsilons.items():
        require(
            epsilon == "auto" or epsilon == 0 or least <= epsilon <= most,
            f"release.{name}_epsilon",
            rule,
            epsilon,
        )
    nanos = policy.prices.values()
    asked = sum(nano or 0 for nano in nanos)
    require(None in nanos or asked > 0, "release", "at least one epsilon above 0", "none")
    budget = settings.budget
    key = policy.accounted.key
    unit = f"{policy.accounted.measure.unit} " if policy.accounted.has_delta else ""
    # In full: what is named as the least has to be taken.
    charge, ours = (f"{unit}{amount_text(nano)}" for nano in (asked, policy.budget_nano))
    got = f"rho {budget.rho:.15g}" if key == "budget.rho" else f"{budget.promised}"
    if settings.queries.share:
        got += f", of which speeds have {ours}"
    elif policy.accounting == "approximate":
        got += f" ({ours})"
    require(asked <= policy.budget_nano, key, f"at least the charge of one HAT ({charge})", got)
    lasting = policy.period_seconds is None
    require(not (lasting and None in nanos), "budget.period", 'a duration for "auto"', "lifetime")


def _check_budget(settings: Settings, policy: Policy) -> None:
    """ConfigError for a rho that is too small to be charged."""
    budget = settings.budget
    if policy.accounting == "zcdp":
        rule = f'at least {RHO_MIN:g}, as budget.accounting is "zcdp": epsilon 10 with delta 1e-06 is rho 1.539'
        require(budget.rho >= RHO_MIN, "budget.rho", rule, f"{budget.rho:.15g}")
    if policy.accounting == "approximate":
        rule = f"an epsilon that is a rho of at least {RHO_MIN:g} with delta {budget.delta:g}"
        got = f"{budget.promised} (rho {policy.budget_nano / NANO:.15g})"
        require(policy.budget_nano >= RHO_MIN * NANO, "budget.epsilon", rule, got)


def _check_bins(settings: Settings) -> None:
    bins = settings.release.bins
    branching = settings.release.branching
    max_kmh = int(settings.speed.max_kmh * QUANTA_PER_KMH) / QUANTA_PER_KMH
    leaves = 0
    if isinstance(bins, int):
        require(2 <= bins <= BINS_MAX, "release.bins", f"2 to {BINS_MAX} bins", bins)
    if branching != "auto":
        name = "release.branching"
        require(min(branching, default=0) >= 2, name, "numbers of at least 2", list(branching))
        leaves = math.prod(branching)
        least = 1 if bins == "auto" else bins if isinstance(bins, int) else len(bins) - 1
        most = 2 * BINS_MAX
        too_few = f"at least as many leaves as bins ({least})"
        rule = f"at most {most} leaves" if leaves > most else too_few
        require(least <= leaves <= most, name, rule, leaves)
    try:
        if isinstance(bins, int):
            equal_bins(bins, max_kmh)
        elif bins != "auto":
            bins_from_edges(bins, settings.speed.max_kmh)
        elif leaves:
            equal_bins(leaves - 1, max_kmh, zeros_apart=True)
    except ValueError as error:
        key = "release.branching, whose leaves are the bins" if bins == "auto" else "release.bins"
        raise ConfigError(f"{key}: {error}") from error


# How services are reached.

_USERNAME = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65_535
_PREFIX_MAX = 200
_PREFIX = re.compile(rf"[A-Za-z0-9._-]{{0,{_PREFIX_MAX}}}")
"""A topic's name has at most 249 characters, and ours have less than 49 behind the prefix."""
_DATABASE = re.compile(r"[0-9]+")

NOT_SHOWN = "something else (it is not shown: it might be the secret itself)"

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")

_OPTIONS = ("db", "username", "password")
"""Behind the question mark. Others change what the ledger relies on: timeouts, replies,
certificates."""

KAFKA_CLIENT = (
    "security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile",
    "sasl_mechanism", "sasl_plain_username", "sasl_plain_password_file",
    "request_timeout_ms", "metadata_max_age_ms", "connections_max_idle_ms", "retry_backoff_ms",
)  # fmt: skip
REDIS_CLIENT = (
    "username", "password_file", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile",
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "client_name",
)  # fmt: skip
"""Options of clients. Others change what our promises rely on: acknowledgements, isolation,
replies, certificates."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def _is_address(text: str, least_port: int = 1) -> bool:
    found = _ADDRESS.fullmatch(text.strip())
    return found is not None and least_port <= int(found[1]) <= _PORT_MAX


def _is_line(text: str, most: int) -> bool:
    return len(text) <= most and text.isprintable()


TEXTS: Final[Mapping[str, tuple[Callable[[str], bool], str]]] = {
    "kafka.bootstrap": (
        lambda text: all(map(_is_address, text.split(","))),
        "HOST:PORT, or several of them with commas",
    ),
    "kafka.prefix": (
        lambda text: _PREFIX.fullmatch(text) is not None,
        f"at most {_PREFIX_MAX} letters, digits, dots, underscores and hyphens, as names of topics have",
    ),
    "kafka.group": (lambda text: bool(text.strip()), "a name"),
    "dashboard.listen": (partial(_is_address, least_port=0), "HOST:PORT, as in 127.0.0.1:8321"),
    "dashboard.title": (partial(_is_line, most=80), "one line of at most 80 characters"),
    "dashboard.note": (partial(_is_line, most=300), "one line of at most 300 characters"),
    "dashboard.tiles": (
        lambda text: not text or (_is_line(text, 300) and host_of(text) is not None),
        "an address such as https://tiles.example.org/{z}/{x}/{y}.png",
    ),
    "dashboard.tiles_credit": (partial(_is_line, most=120), "one line of at most 120 characters"),
}
"""Texts that have a form, by key, and the form in words."""


def check_kafka(kafka: KafkaSection) -> None:
    """ConfigError for options that contradict each other: a file of authorities beside "PLAINTEXT"
    asks for TLS."""
    client = kafka.client
    _check_client("kafka", client, KAFKA_CLIENT)
    protocol = kafka.protocol
    name = "kafka.client.security_protocol"
    require(protocol in PROTOCOLS, name, f"one of {', '.join(PROTOCOLS)}", repr(protocol))
    for prefix, layer in (("ssl_", "SSL"), ("sasl_", "SASL")):
        given = next((key for key in client if key.startswith(prefix)), None)
        rule = f"one with {layer}, as kafka.client.{given} is set"
        require(given is None or layer in protocol, name, rule, repr(protocol))
    if not protocol.startswith("SASL"):
        return
    for key in ("sasl_plain_username", "sasl_plain_password_file"):
        rule = f"one, as {name} is {protocol!r}"
        require(bool(client.get(key)), f"kafka.client.{key}", rule, "none")
    mechanism = client.get("sasl_mechanism", MECHANISMS[0])
    rule = f"one of {', '.join(MECHANISMS)}"
    require(mechanism in MECHANISMS, "kafka.client.sasl_mechanism", rule, repr(mechanism))
    # A client sends a comma or an equals sign of a SCRAM user as it is, which means something else
    # there.
    user = str(client["sasl_plain_username"])
    is_plain = _USERNAME.fullmatch(user) is not None and not set(",=") & set(user)
    rule = "printable ASCII without white space, comma or ="
    require(is_plain, "kafka.client.sasl_plain_username", rule, repr(user))


_NEEDS = {
    "ssl_certfile": "ssl_keyfile",
    "ssl_keyfile": "ssl_certfile",
    "username": "password_file",
}
"""Options of clients that say nothing without another."""


def _check_client(section: str, client: Mapping[str, Option], known: Sequence[str]) -> None:
    """ConfigError for an unknown option, a path that is none, an option without the other that it
    needs. No value is shown."""
    for key, value in client.items():
        name = f"{section}.client.{key}"
        if key not in known:
            meant = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"unknown key {name}; did you mean {section}.client.{meant}?")
        is_path = key.endswith("_file") or key.startswith("ssl_")
        is_named = isinstance(value, str) and bool(value)
        require(not is_path or is_named, name, "the path of a file", NOT_SHOWN)
        other = _NEEDS.get(key, key)
        require(other in client, f"{section}.client.{other}", f"one, as {name} is set", "none")


def check_redis(ledger: LedgerSection) -> None:
    """ConfigError where `[ledger.client]` does not fit to the URL, or says the same."""
    scheme = ledger.url.partition("://")[0]
    client = ledger.client
    _check_client("ledger", client, REDIS_CLIENT)
    is_beside = bool(client) and is_file(ledger.place)
    require(not is_beside, "ledger.url", "a Redis, as ledger.client is set", "a file")
    tls = next((key for key in client if key.startswith("ssl_")), None)
    rule = f"rediss:// or rediss+cluster://, as ledger.client.{tls} is set"
    require(tls is None or scheme.startswith("rediss"), "ledger.url", rule, f"{scheme}://...")
    login = next((key for key in client if key in ("username", "password_file")), None)
    rule = f"no user and password, as ledger.client.{login} is set"
    is_twice = login is not None and has_password(ledger.url)
    require(not is_twice, "ledger.url", rule, f"{scheme}://...@...")


def check_url(url: str) -> None:
    """ConfigError for the URL of a service that no run would take. It may have a password, so it is
    not repeated."""
    scheme, _, rest = url.partition("://")
    rule, got = ("", "") if is_file(url) else _fault_of_service(scheme, rest)
    require(not rule, "ledger.url", rule, got)


def _fault_of_service(scheme: str, rest: str) -> tuple[str, str]:
    """The rule that a service's URL breaks, empty if none, and what may be shown of it."""
    if scheme not in SCHEMES:
        rule = "sqlite:FILE or redis://HOST:PORT/DB (or rediss, redis+cluster, rediss+cluster, unix:///SOCKET)"
        return rule, f"{scheme}://..."
    other = "something else"
    try:
        parts = urlsplit(f"redis://{rest}")
        has_port = parts.port != 0  # the client would take the usual port for 0
    except ValueError:
        has_port = False
    if not has_port:
        return "redis://HOST:PORT with a port of 1 to 65535", other
    if scheme == "unix":  # the client would leave out a folder in the place of a host
        if len(parts.path) <= 1 or parts.netloc.rpartition("@")[2]:
            return "unix:///PATH of a socket, from the root", other
    elif re.fullmatch("/*[0-9]*/*", parts.path) is None:  # the client would take 0 for a name
        return "the number of a database behind the host", other
    options = parse_qs(parts.query, keep_blank_values=True)
    is_known = all(name in _OPTIONS and len(values) == 1 for name, values in options.items())
    is_number = all(map(_DATABASE.fullmatch, options.get("db", ())))
    fits = is_known and is_number
    return ("", "") if fits else ("?db=NUMBER or no option", ", ".join(options))


def has_password(url: str) -> bool:
    """Whether a URL has a user or a password in it, before the host or behind it."""
    rest = url.partition("://")[2]
    return "@" in rest or "password=" in rest or "username=" in rest
