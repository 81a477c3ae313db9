"""`doctor`: is everything reachable and safely configured? Changes nothing, makes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace

from udp_stream.adapters.ledger_id import known_ledger
from udp_stream.adapters.open_ledger import inspect_ledger, ledger_and_keys, ledger_files
from udp_stream.adapters.overlaps import overlaps_on, said
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.sources import read_messages
from udp_stream.errors import ConfigError, DependencyUnavailable, UdpStreamError
from udp_stream.pings import PingDecoder
from udp_stream.plausibility import PAIRS_MIN, unit_evidence

LATEST = 5_000
"""Pings looked at of each partition."""


def doctor(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run every check, one line each; in the end raise the first failure, so that the exit status tells its kind."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("configuration", lambda: f"valid, policy {settings.policy.fingerprint()}"),
        ("ledger", lambda: f"{inspect_ledger(settings.ledger)}; {_promise(settings)}"),
    ]
    if arguments.files:
        checks += [(f"speeds of {file}", lambda file=file: _unit_of_file(file, settings)) for file in arguments.files]  # type: ignore[misc]
    else:
        checks += [("topics", lambda: _topics(settings)), ("speeds of the topic", lambda: _unit_of_topic(settings))]
    failures = [failure for name, check in checks if (failure := _told(name, check)) is not None]
    if failures:
        raise type(failures[0])(f"{len(failures)} of {len(checks)} checks failed")


def _told(name: str, check: Callable[[], str]) -> UdpStreamError | None:
    try:
        said = check()
    except UdpStreamError as error:
        print(f"FAIL  {name}: {error}", flush=True)
        return error
    print(f"ok    {name}: {said}", flush=True)
    return None


def _promise(settings: Settings) -> str:
    """What a plate can lose: by its budget, or more where periods overlap on the ledger, if there is one."""
    promise = f"epsilon {settings.budget.epsilon:g} per {settings.policy.period}"
    id_file = dict(ledger_files(settings.ledger))["the id of the ledger"]
    if known_ledger(id_file) is None:
        return promise
    with ledger_and_keys(settings.ledger, must_exist=True) as (ledger, _):
        overlaps = overlaps_on(ledger)
    return f"{promise}, but {said(overlaps)}" if overlaps else promise


def _topics(settings: Settings) -> str:
    """ConfigError for anything about the topics that is not as `topics create` would make it."""
    try:
        from streams.topics import differences
    except ImportError as error:
        raise DependencyUnavailable("no Kafka client: pip install 'udp-stream[kafka]'") from error
    found = differences(settings.kafka)
    if found:
        raise ConfigError("; ".join(found))
    return f"as they should be at {settings.kafka.bootstrap}"


def _unit_of_topic(settings: Settings) -> str:
    try:
        from streams.lookout import read_topic
        from streams.topics import topics_of
    except ImportError as error:
        raise DependencyUnavailable("no Kafka client: pip install 'udp-stream[kafka]'") from error
    records = read_topic(settings.kafka.bootstrap, topics_of(settings.kafka).pings, LATEST)
    return _unit((record.value or b"" for record in records), settings)


def _unit_of_file(file: str, settings: Settings) -> str:
    return _unit((message for messages in read_messages(file) for message in messages), settings)


def _unit(messages: Iterable[bytes], settings: Settings) -> str:
    """ConfigError if the pings move as if their speeds were in another unit than the configured one."""
    rules = replace(settings.ping_rules, max_kmh=settings.ping_rules.reject_above_kmh)
    pings, _ = PingDecoder(rules).decode(list(messages))
    evidence = unit_evidence(pings, rules.unit)
    if evidence.unit is None:
        return f"no telling, {evidence.pairs} of at least {PAIRS_MIN} pairs of pings"
    measured = f"pings move at {evidence.ratio:.2f} times the speed that they report ({evidence.pairs:,} pairs)"
    if evidence.unit != rules.unit:
        raise ConfigError(f"expected speed.unit = {evidence.unit!r}, got {rules.unit!r}: {measured}")
    return f"{rules.unit}: {measured}"
