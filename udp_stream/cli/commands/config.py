"""`config`: every key with its value and where it came from."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from udp_stream.base.files import may_be_secret
from udp_stream.settings import Settings, read_tables
from udp_stream.settings.loading import CLIENT, LOGIN, MOVED, PAPER, QUERY
from udp_stream.settings.rules import has_password

COMMENT_COLUMN = 44

OF_KAFKA = "kafka.client.sasl_plain_password_file"
OF_REDIS = "ledger.client.password_file"
SECRETS = OF_KAFKA, OF_REDIS, "live.password_file", "live.token_file"

LEFT_OUT = "..."
"""Stands for a URL's user and password, and for what may be a secret in the place of its file's
name."""


def config(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print the configuration in force, and what is likely wrong though valid."""
    origins = read_tables(arguments.config, arguments.set).origins
    print(f"# policy {settings.policy.fingerprint()}: records made under these settings name it")
    print("\n".join(as_toml(settings, origins)))
    for name, (path, at) in settings.source.mapping.one_element.items():
        said = f"source.{name} = {path!r} reads element {at} of each array alone"
        print(f"# warning: {said}: if it has pings, set source.records")


def as_toml(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """Lines of a configuration file that sets the same; what is not set, or left out, is a comment."""
    for name, section in msgspec.structs.asdict(settings).items():
        for number, table in enumerate(section, 1) if name == QUERY else [(0, section)]:
            keys = {
                key.rstrip("_"): value  # `from_`
                for key, value in msgspec.structs.asdict(table).items()
                if f"{name}.{key}" not in MOVED.values()
            }
            client = keys.pop(CLIENT, None)
            yield f"[[{name}]]" if number else f"[{name}]"
            yield from _lines(f"{name}.{number}" if number else name, keys, settings, origins)
            yield ""
            if client:
                yield f"[{name}.{CLIENT}]"
                yield from _lines(f"{name}.{CLIENT}", client, settings, origins)
                yield ""
            nested = {
                newer.rpartition(".")[2]: attrgetter(older)(settings)
                for newer, older in MOVED.items()
                if newer.startswith(f"{name}.")
            }
            if nested:
                title = PAPER if name in PAPER else LOGIN
                yield f"[{title}]"
                yield from _lines(title, nested, settings, origins)
                yield ""


def _lines(
    table: str, keys: Mapping[str, Any], settings: Settings, origins: Mapping[str, str]
) -> Iterator[str]:
    for key, value in keys.items():
        name = MOVED.get(f"{table}.{key}", f"{table}.{key}")
        shown = _in_force(name, settings) if value is None or name == "ledger.url" else value
        if name in SECRETS and may_be_secret(value):
            shown = LEFT_OUT
        line = f"{key} = {_escaped(json.dumps(msgspec.to_builtins(shown), ensure_ascii=False))}"
        line = f"# {key} is not set" if shown is None else line if shown == value else f"# {line}"
        yield f"{line:<{COMMENT_COLUMN}} # {_escaped(origins.get(name, 'default'))}"


def _in_force(name: str, settings: Settings) -> object:
    section, _, key = name.partition(".")
    if section == "source":
        return getattr(settings.source.mapping, key, None)
    if name in ("ledger.url", "speed.unit"):
        return (
            settings.speed.read_in
            if section == "speed"
            else without_password(settings.ledger.place)
        )
    return (
        settings.budget.promised
        if name == settings.budget.accounted.key == "budget.epsilon"
        else None
    )


def without_password(url: str) -> str:
    """A ledger's URL without user and password, before the host and behind it.

    >>> without_password("redis://me:hush@ledger:6379/0"), without_password("redis://ledger/2?db=1&password=hush")
    ('redis://...@ledger:6379/0', 'redis://ledger/2?db=1&password=...')
    """
    shown = re.sub("(?<=://).*@", f"{LEFT_OUT}@", url)
    return (
        re.sub(r"((?:password|username)=)[^&#]*", rf"\1{LEFT_OUT}", shown)
        if has_password(url)
        else url
    )


def _escaped(text: str) -> str:
    return re.sub("[\x7f\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)
