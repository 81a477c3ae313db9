"""What types cannot say of a configuration: rules between keys, and what names a ledger."""

from __future__ import annotations

import re
from typing import Any

from udp_stream.adapters.settings.limits import DURATIONS, EPSILON_MIN, EPSILONS, require, seconds_of
from udp_stream.adapters.settings.sections import SQLITE, Settings, is_file
from udp_stream.errors import ConfigError
from udp_stream.mechanisms.cdfs.bins import bins_from_edges, equal_bins
from udp_stream.planning.periods import accepted_nano
from udp_stream.planning.policy import Policy
from udp_stream.units import NANO, QUANTA_PER_KMH

NO_LEDGERS = ("", "-")
"""Neither names a file: nothing would be the current folder, and `-` is a standard stream everywhere else."""

_HOST_PORT = re.compile(r"[^/:@]+:[0-9]+(/[0-9]*)?")


def check(settings: Settings) -> None:
    """What types cannot say. Raises ConfigError."""
    for name in DURATIONS:
        duration = _value(settings, name)
        if (name, duration) != ("budget.period", "lifetime"):
            seconds_of(name, duration)
    policy = settings.policy
    require(
        policy.period_seconds is None or policy.period_seconds % policy.slot_seconds == 0,
        "budget.period",
        f"a multiple of hat.slot ({settings.hat.slot}), so that every slot lies in one period",
        settings.budget.period,
    )
    if (box := settings.pings.box) is not None:
        on_earth = -180 <= box[0] < box[2] <= 180 and -90 <= box[1] < box[3] <= 90
        rule = "[west, south, east, north] with -180 <= west < east <= 180 and -90 <= south < north <= 90"
        require(on_earth, "pings.box", rule, list(box))
    most, reject = settings.speed.max_kmh, settings.speed.reject_above_kmh
    require(reject >= most, "speed.reject_above_kmh", f"at least speed.max_kmh ({most})", reject)
    _check_epsilons(settings, policy)
    limited = settings.release.hats_max > 0 and settings.release.suppression == "off"
    require(not limited, "release.hats_max", '0 where release.suppression is "off"', settings.release.hats_max)
    around = settings.release.mean == "forecast-clip" and settings.release.suppression != "off"
    require(not around, "release.suppression", '"off" where release.mean is "forecast-clip"', "chop-user")
    shown = settings.release.counts == "all" or settings.forecast.counts == "off" or not policy.forecasts
    rule = '"off" where release.counts is not "all": a forecast that reads counts shows them'
    require(shown, "forecast.counts", rule, repr(settings.forecast.counts))
    _check_bins(settings)
    require(
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
    require(accounting == "pure", "budget.accounting", '"pure", the only one in this version', repr(accounting))
    for name, rule in EPSILONS.items():
        epsilon = _value(settings, name)
        require(epsilon in ("auto", 0) or epsilon >= EPSILON_MIN, name, rule, epsilon)
    nanos = policy.mean_nano, policy.variance_nano, policy.cdf_nano
    asked = sum(nano or 0 for nano in nanos)
    require(None in nanos or asked > 0, "release", "at least one epsilon above 0", "none")
    require(asked <= policy.budget_nano, "budget.epsilon", f"at least the charge of one HAT ({asked / NANO:g})", budget)
    lasting = policy.period_seconds is None
    require(not (lasting and None in nanos), "budget.period", 'a duration for "auto"', "lifetime")


def _check_bins(settings: Settings) -> None:
    bins, max_kmh = settings.release.bins, settings.policy.max_speed / QUANTA_PER_KMH
    if isinstance(bins, int):
        require(2 <= bins <= 4096, "release.bins", "2 to 4096 bins", bins)
    if bins != "auto":
        try:
            _ = equal_bins(bins, max_kmh) if isinstance(bins, int) else bins_from_edges(bins, max_kmh)
        except ValueError as error:
            raise ConfigError(f"release.bins: {error}") from error


def _value(settings: Settings, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)
