"""Rules between the keys of a configuration. No file is read but `hat.domain`: a machine that only
plans has none."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final
from urllib.parse import parse_qs, urlsplit

from udp_stream.dashboard.branding import host_of
from udp_stream.errors import ConfigError
from udp_stream.ledger.rules import ROLLING
from udp_stream.mechanisms.cdf import BINS_MAX, bins_from_edges, equal_bins
from udp_stream.mechanisms.samplers import SCALE_MAX
from udp_stream.planning.policy import Policy
from udp_stream.settings.domain import Box
from udp_stream.settings.limits import (
    CONCENTRATED,
    DURATIONS,
    EPSILON_MAX,
    EPSILON_MIN,
    EPSILON_RULE,
    RHO_MIN,
    budget_period,
    require,
    seconds_of,
    whole_seconds,
)
from udp_stream.settings.sections import (
    SQLITE,
    DashboardSection,
    KafkaSection,
    LedgerSection,
    Option,
    ReleaseSection,
    Settings,
    check_source,
    is_file,
)
from udp_stream.units import NANO, QUANTA_PER_KMH, amount_text

NO_LEDGERS = ("", "-")

_HOST_PORT = re.compile(r"[^/:@]+:[0-9]+(/[0-9]*)?")


def check(settings: Settings) -> None:
    """What types cannot say. Raises ConfigError: the first fault."""
    check_source(
        settings.source,
        settings.speed.read_in if settings.speed.from_ == "field" else settings.source.unit,
    )
    for name in DURATIONS:
        section, _, key = name.partition(".")
        _read_duration(name, getattr(getattr(settings, section), key))
    _check_box(settings.pings.box)
    if settings.privacy.is_add_remove:
        _check_hidden(settings)
    else:
        _check_not_hidden(settings)
    policy = settings.policy
    _check_period(settings, policy)
    _check_epsilon(settings, policy)
    _check_noise(settings)
    _check_schedule(policy)
    _check_beside(settings)
    _check_ledger(settings.ledger)
    check_kafka(settings.kafka)
    check_redis(settings.ledger)
    check_dashboard(settings.dashboard)
    _ = settings.standing_queries, settings.zone


def _read_duration(name: str, duration: str) -> None:
    if name == "budget.period":
        budget_period(duration)
    elif name == "hat.slot" or (name == "queries.period" and duration != "lifetime"):
        whole_seconds(name, duration)
    elif name != "queries.period" and (duration or name != "pings.interval"):
        seconds_of(name, duration)


_MODE = 'where privacy.neighbours is "add-remove"'
_SLOT_MAX_S = 6 * 3600
_OF_ONE_QUERY = "mean", "grouping", "cap", "mean_epsilon", "variance_epsilon"
_OF_COUNTS = "bins", "branching", "min_plates", "suppression", "hats_max"
"""Keys of [release] that plans for single HATs read, and plans from public counts."""


def _check_not_hidden(settings: Settings) -> None:
    """What only "add-remove" reads would say nothing under "swap-values"."""
    given = {"hat.domain": settings.hat.domain, "pings.interval": settings.pings.interval}
    for name, value in given.items():
        require(
            not value,
            name,
            'none where privacy.neighbours is "swap-values", which does not read it',
            repr(value),
        )
    rule = 'false where privacy.neighbours is "swap-values", whose records count plates'
    require(not settings.release.plates, "release.plates", rule, "true")


def _check_hidden(settings: Settings) -> None:
    """What cannot be kept where a whole plate is hidden is refused."""
    hat = settings.hat
    budget = settings.budget
    release = settings.release
    queries = settings.queries
    why = "a public list of cells: a file of cells, a GeoJSON or a GTFS feed"
    require(bool(hat.domain), "hat.domain", f"{why} {_MODE}", "none")
    interval = settings.pings.interval
    require(
        bool(interval),
        "pings.interval",
        f"how often a bus sends a ping, such as 10s, {_MODE}",
        "none",
    )
    slot_s = whole_seconds("hat.slot", hat.slot)
    require(
        slot_s <= _SLOT_MAX_S,
        "hat.slot",
        f"at most 6h {_MODE}, as a forecast is of the slot before",
        hat.slot,
    )
    rule = f"at most a tenth of hat.slot ({hat.slot})"
    require(10 * seconds_of("pings.interval", interval) <= slot_s, "pings.interval", rule, interval)
    rule = f'"approximate" or "zcdp" {_MODE}, as charges go by squares'
    require(budget.accounting != "pure", "budget.accounting", rule, '"pure"')
    # What a plate has left follows from its secret pings. In a calendar each period begins anew; in
    # windows that overlap, later slots would go by pings of slots before the window, and a plate
    # could lose more than the budget.
    rule = f"a duration {_MODE}, as what is left to spend is secret and must begin anew"
    require(budget_period(budget.period)[1] is not None, "budget.period", rule, repr(budget.period))
    require(not budget.period.startswith(ROLLING), "budget.period", rule, repr(budget.period))
    require(
        budget.schedule == "spread", "budget.schedule", f'"spread" {_MODE}', f'"{budget.schedule}"'
    )
    default = ReleaseSection()
    for keys, reason in (
        (_OF_ONE_QUERY, "as one query asks all HATs"),
        (_OF_COUNTS, "as counts are secret"),
    ):
        for key in keys:
            rule = f"its default ({getattr(default, key)}) {_MODE}, {reason}"
            value = getattr(release, key)
            require(value == getattr(default, key), f"release.{key}", rule, value)
    require(
        release.cdf in ("auto", "off"),
        "release.cdf",
        f'"auto" or "off" {_MODE}: no CDF is made',
        release.cdf,
    )
    no_trees = release.cdf_epsilon in ("auto", 0)
    require(
        no_trees, "release.cdf_epsilon", f'"auto" or 0 {_MODE}: no CDF is made', release.cdf_epsilon
    )
    shards = settings.kafka.shards
    require(
        shards == 1,
        "kafka.shards",
        f"1 {_MODE}, as one worker sums over all cells of a plate",
        shards,
    )
    asked = "queries.share" if queries.share else "query" if settings.query else ""
    require(
        not asked,
        asked,
        f"none {_MODE}, as answers about positions tell which plates are there",
        "some",
    )


def _check_noise(settings: Settings) -> None:
    """Noise for a budget that is tiny, or is to last for many slots, cannot be drawn."""
    if (rules := settings.add_remove) is not None:
        rule = f"a budget whose noise has a deviation of at most {SCALE_MAX // QUANTA_PER_KMH:,} km/h {_MODE}"
        got = f"{rules.sigma / QUANTA_PER_KMH:,.0f} km/h: raise it, or shorten budget.period"
        require(rules.sigma <= SCALE_MAX, settings.policy.accounted.key, rule, got)


def _check_box(box: Box | None) -> None:
    if box is not None:
        on_earth = -180 <= box[0] < box[2] <= 180 and -90 <= box[1] < box[3] <= 90
        rule = "[west, south, east, north] with -180 <= west < east <= 180 and -90 <= south < north <= 90"
        require(on_earth, "pings.box", rule, list(box))


def _check_beside(settings: Settings) -> None:
    has_field = bool(settings.source.mapping.speed) or settings.speed.from_ == "movement"
    require(has_field, "source.speed", 'a path where speed.from is "field"', settings.source.speed)
    most = settings.speed.max_kmh
    reject = settings.speed.reject_above_kmh
    require(reject >= most, "speed.reject_above_kmh", f"at least speed.max_kmh ({most})", reject)
    limited = settings.release.hats_max > 0 and settings.release.suppression == "off"
    rule = '0 where release.suppression is "off"'
    require(not limited, "release.hats_max", rule, settings.release.hats_max)
    around = settings.release.mean == "forecast-clip" and settings.release.suppression != "off"
    require(
        not around,
        "release.suppression",
        '"off" where release.mean is "forecast-clip"',
        "chop-user",
    )
    cap = settings.release.cap
    rule = '"median" where release.mean is not "array-averaging"'
    require(cap == "median" or settings.release.mean == "array-averaging", "release.cap", rule, cap)
    cdf = settings.release.cdf
    rule = '"auto", "tree" or "off" where no mean is taken around a forecast'
    require(cdf != "smoothed" or settings.policy.forecasts, "release.cdf", rule, cdf)
    _check_bins(settings)
    if settings.queries.share:
        rule = f"that of budget.period ({settings.budget.period}), of which queries.share is a part"
        require(
            settings.queries.period == settings.budget.period,
            "queries.period",
            rule,
            settings.queries.period,
        )


def _check_period(settings: Settings, policy: Policy) -> None:
    """Slots lie in periods; a window of a rolling budget may begin anywhere, and holds a slot at
    least."""
    seconds = policy.period_seconds
    slot = settings.hat.slot
    if seconds is None:
        return
    if policy.rolls:
        rule = f"windows of at least hat.slot ({slot})"
        require(seconds >= policy.slot_seconds, "budget.period", rule, settings.budget.period)
    else:
        rule = f"a multiple of hat.slot ({slot}), so that every slot lies in one period"
        require(seconds % policy.slot_seconds == 0, "budget.period", rule, settings.budget.period)


def _check_ledger(ledger: LedgerSection) -> None:
    """A place that reads as a service, or as another library's URL of a file, is not taken for a
    file's name."""
    lonely = ledger.replicas == 0 or not is_file(ledger.place)
    url = ledger.url
    require(lonely, "ledger.replicas", "0 where ledger.url is a file", ledger.replicas)
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
    """A rho where it is read, and nowhere else; suppression compares worst cases of pure noise
    only."""
    budget = settings.budget
    suppression = settings.release.suppression
    if policy.accounting == "zcdp":
        rule = f'at least {RHO_MIN:g}, as budget.accounting is "zcdp": epsilon 10 with delta 1e-06 is rho 1.539'
        require(budget.rho >= RHO_MIN, "budget.rho", rule, f"{budget.rho:.15g}")
        rule = 'none where budget.accounting is "zcdp", whose budget is budget.rho'
        require(budget.epsilon is None, "budget.epsilon", rule, budget.epsilon)
    else:
        rule = f'0 where budget.accounting is "{policy.accounting}"'
        require(budget.rho == 0, "budget.rho", rule, f"{budget.rho:.15g}")
    if policy.accounting == "approximate":
        rule = f"an epsilon that is a rho of at least {RHO_MIN:g} with delta {budget.delta:g}"
        got = f"{budget.promised} (rho {policy.budget_nano / NANO:.15g})"
        require(policy.budget_nano >= RHO_MIN * NANO, "budget.epsilon", rule, got)
    known = not policy.accounted.has_delta or suppression == "off"
    require(
        known, "release.suppression", '"off" where budget.accounting is not "pure"', suppression
    )


def _check_schedule(policy: Policy) -> None:
    schedule = policy.schedule
    if schedule == "spread":
        return
    require(
        not policy.forecasts,
        "budget.schedule",
        '"spread" where means are taken around forecasts',
        schedule,
    )
    require(
        policy.automatic > 0, "budget.schedule", '"spread" where no epsilon is "auto"', schedule
    )


def _check_bins(settings: Settings) -> None:
    bins = settings.release.bins
    max_kmh = int(settings.speed.max_kmh * QUANTA_PER_KMH) / QUANTA_PER_KMH
    if isinstance(bins, int) and not 2 <= bins <= BINS_MAX:
        require(False, "release.bins", f"2 to {BINS_MAX} bins", bins)
    elif bins != "auto":
        try:
            _ = (
                equal_bins(bins, max_kmh)
                if isinstance(bins, int)
                else bins_from_edges(bins, settings.speed.max_kmh)
            )
        except ValueError as error:
            raise ConfigError(f"release.bins: {error}") from error
    branching = settings.release.branching
    levels = settings.release.levels
    rule = '"best" where release.branching is "auto"'
    require(levels == "best" or branching != "auto", "release.levels", rule, levels)
    if branching == "auto":
        return
    name = "release.branching"
    leaves = math.prod(branching)
    require(min(branching, default=0) >= 2, name, "numbers of at least 2", list(branching))
    require(leaves <= 2 * BINS_MAX, name, f"at most {2 * BINS_MAX} leaves", leaves)
    if bins != "auto":
        least = bins if isinstance(bins, int) else len(bins) - 1
        require(leaves >= least, name, f"at least as many leaves as bins ({least})", leaves)
        return
    try:
        _ = equal_bins(leaves - 1, max_kmh, zeros_apart=True)
    except ValueError as error:
        raise ConfigError(
            f"{name}, whose leaves are the bins as release.bins is auto: {error}"
        ) from error


# How services are reached.

_USERNAME = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65_535
TEXTS_OF_PAGE: Final = {"title": 80, "note": 300, "tiles": 300, "tiles_credit": 120}
"""Keys of `[dashboard]` that a page shows, and how long they may be."""
_PREFIX_MAX = 200
_PREFIX = re.compile(rf"[A-Za-z0-9._-]{{0,{_PREFIX_MAX}}}")
"""A topic's name has at most 249 characters, and ours have less than 49 behind the prefix."""
_DATABASE = re.compile(r"[0-9]+")

NOT_SHOWN: Final = "something else (it is not shown: it might be the secret itself)"

SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")

_OPTIONS = ("db", "username", "password")
"""Behind the question mark. Others change what the ledger relies on: timeouts, replies,
certificates."""

KAFKA_CLIENT: Final = (
    *("security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile"),
    *("sasl_mechanism", "sasl_plain_username", "sasl_plain_password_file"),
    *("request_timeout_ms", "metadata_max_age_ms", "connections_max_idle_ms", "retry_backoff_ms"),
)
REDIS_CLIENT: Final = (
    *("username", "password_file", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "client_name"),
)
"""Options of clients. Others change what our promises rely on: acknowledgements, isolation,
replies, certificates."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def check_kafka(kafka: KafkaSection) -> None:
    """ConfigError for options that contradict each other: a file of authorities beside "PLAINTEXT"
    asks for TLS."""
    rule = "HOST:PORT, or several of them with commas"
    require(
        all(map(_is_address, kafka.bootstrap.split(","))),
        "kafka.bootstrap",
        rule,
        repr(kafka.bootstrap),
    )
    rule = f"at most {_PREFIX_MAX} letters, digits, dots, underscores and hyphens, as names of topics have"
    require(_PREFIX.fullmatch(kafka.prefix) is not None, "kafka.prefix", rule, repr(kafka.prefix))
    require(bool(kafka.group.strip()), "kafka.group", "a name", repr(kafka.group))
    _check_client("kafka", kafka.client, KAFKA_CLIENT)
    client = kafka.client
    protocol = kafka.protocol
    name = "kafka.client.security_protocol"
    if protocol not in PROTOCOLS:
        require(False, name, f"one of {', '.join(PROTOCOLS)}", repr(protocol))
        return
    for prefix, of_protocol in (("ssl_", "SSL"), ("sasl_", "SASL")):
        if (
            given := [key for key in client if key.startswith(prefix)]
        ) and of_protocol not in protocol:
            require(
                False,
                name,
                f"one with {of_protocol}, as kafka.client.{given[0]} is set",
                repr(protocol),
            )
    if protocol.startswith("SASL"):
        for key in ("sasl_plain_username", "sasl_plain_password_file"):
            require(
                bool(client.get(key)),
                f"kafka.client.{key}",
                f"one, as {name} is {protocol!r}",
                "none",
            )
        mechanism = client.get("sasl_mechanism", MECHANISMS[0])
        rule = f"one of {', '.join(MECHANISMS)}"
        require(mechanism in MECHANISMS, "kafka.client.sasl_mechanism", rule, repr(mechanism))
        # One of the clients sends a comma or an equals sign of a SCRAM user as it is, which means
        # something else there.
        user = str(client.get("sasl_plain_username", ""))
        plain = not user or (_USERNAME.fullmatch(user) and not set(",=") & set(user))
        rule = "printable ASCII without white space, comma or ="
        require(bool(plain), "kafka.client.sasl_plain_username", rule, repr(user))


def _check_client(section: str, client: Mapping[str, Option], known: Sequence[str]) -> None:
    """ConfigError for an unknown option, a path that is none, a certificate without its key. No
    value is shown."""
    for key, value in client.items():
        if key not in known:
            meant = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"unknown key {section}.client.{key}; did you mean {section}.client.{meant}?"
            )
        if key.endswith("_file") or key.startswith("ssl_"):
            named = isinstance(value, str) and bool(value)
            require(named, f"{section}.client.{key}", "the path of a file", NOT_SHOWN)
    pair = "ssl_certfile", "ssl_keyfile"
    for key, other in (pair, pair[::-1]):
        has_both = key in client or other not in client
        require(
            has_both, f"{section}.client.{key}", f"one, as {section}.client.{other} is set", "none"
        )


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text.strip())
    return found is not None and 0 < int(found[1]) <= _PORT_MAX


def check_dashboard(dashboard: DashboardSection) -> None:
    """ConfigError for what is no address, and for a text that is not one line; port 0 is any free
    one.

    >>> check_dashboard(DashboardSection(listen="[::1]:0"))
    """
    address = _ADDRESS.fullmatch(dashboard.listen)
    rule = "HOST:PORT, as in 127.0.0.1:8321"
    require(
        address is not None and int(address[1]) <= _PORT_MAX,
        "dashboard.listen",
        rule,
        repr(dashboard.listen),
    )
    for key, most in TEXTS_OF_PAGE.items():
        text = getattr(dashboard, key)
        is_line = len(text) <= most and all(sign.isprintable() for sign in text)
        require(
            is_line,
            f"dashboard.{key}",
            f"one line of at most {most} characters",
            f"{len(text)} characters",
        )
    rule = "an address such as https://tiles.example.org/{z}/{x}/{y}.png"
    require(
        not dashboard.tiles or host_of(dashboard.tiles) is not None,
        "dashboard.tiles",
        rule,
        repr(dashboard.tiles),
    )
    require(
        bool(dashboard.tiles) or not dashboard.tiles_credit,
        "dashboard.tiles_credit",
        "dashboard.tiles, too",
        "none",
    )


def check_redis(ledger: LedgerSection) -> None:
    """ConfigError where `[ledger.client]` is set for a file, does not fit to the URL, or says the
    same."""
    scheme = ledger.url.partition("://")[0]
    client = ledger.client
    _check_client("ledger", client, REDIS_CLIENT)
    if tls := [key for key in client if key.startswith("ssl_")]:
        rule = f"rediss:// or rediss+cluster://, as ledger.client.{tls[0]} is set"
        require(scheme.startswith("rediss"), "ledger.url", rule, f"{scheme}://...")
    if client:
        rule = f"a Redis, as ledger.client.{next(iter(client))} is set"
        require(not is_file(ledger.place), "ledger.url", rule, "a file")
    if login := [key for key in client if key in ("username", "password_file")]:
        rule = f"no user and password, as ledger.client.{login[0]} is set"
        require(not has_password(ledger.url), "ledger.url", rule, f"{scheme}://...@...")
    lacks = "username" in client and "password_file" not in client
    require(not lacks, "ledger.client.password_file", "one for ledger.client.username", "none")


def check_url(url: str) -> None:
    """ConfigError for the URL of a service that no run would take. It may have a password, so it is
    not repeated."""
    if is_file(url):
        return
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        rule = "sqlite:FILE or redis://HOST:PORT/DB (or rediss, redis+cluster, rediss+cluster, unix:///SOCKET)"
        require(False, "ledger.url", rule, f"{scheme}://...")
        return
    try:
        parts = urlsplit(f"redis://{rest}")
        named = parts.port != 0  # the client would take the usual one for 0
    except ValueError:
        named = False
    if not named:
        rule = "redis://HOST:PORT with a port of 1 to 65535"
        require(False, "ledger.url", rule, "something else")
        return
    if scheme == "unix":  # the client would leave out a folder in the place of a host
        is_path = len(parts.path) > 1 and not parts.netloc.rpartition("@")[2]
        require(is_path, "ledger.url", "unix:///PATH of a socket, from the root", "something else")
    else:  # the client would take database 0 for a name
        is_number = not (path := parts.path.strip("/")) or _DATABASE.fullmatch(path) is not None
        require(
            is_number, "ledger.url", "the number of a database behind the host", "something else"
        )
    options = parse_qs(parts.query, keep_blank_values=True)
    once = all(name in _OPTIONS and len(values) == 1 for name, values in options.items())
    number = once and all(map(_DATABASE.fullmatch, options.get("db", ())))
    require(number, "ledger.url", "?db=NUMBER or no option", ", ".join(options))


def has_password(url: str) -> bool:
    """Whether a URL has a user or a password in it, before the host or behind it."""
    rest = url.partition("://")[2]
    return "@" in rest or "password=" in rest or "username=" in rest
