"""`config`: every key with its value and where it came from."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec
from msgspec.structs import fields

from udp_stream.files import may_be_secret
from udp_stream.pings.json import FeedMapping
from udp_stream.settings import Settings, known_keys, read_tables
from udp_stream.settings.clients import has_password
from udp_stream.settings.loading import CLIENT, QUERY


def config(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print the configuration as it is in force, and what is likely wrong though valid."""
    origins = read_tables(arguments.config, arguments.set).origins
    print(f"# policy {settings.policy.fingerprint()}: records made under these settings name it")
    print(as_toml(shown_keys(settings, origins)))
    for name, (path, at) in settings.source.mapping.one_element.items():
        said = f"source.{name} = {path!r} reads element {at} of each array alone"
        print(f"# warning: {said}: if it has pings, set source.records")


COMMENT_COLUMN: Final = 44

SECRETS: Final = (
    *("kafka.client.sasl_plain_password_file", "ledger.client.password_file"),
    *("live.password_file", "live.token_file"),
)
"""Keys that name the file of a secret."""

LEFT_OUT: Final = "..."
"""Stands where a URL has its user and password, and for what may be a secret in the place of its file's name."""


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key, or one of a [[query]] as `query.2.key`. Where it is not set, `value` is what is in force without it, or
    None for nothing."""

    name: str
    value: object
    origin: str
    is_set: bool = True


def shown_keys(settings: Settings, origins: Mapping[str, str]) -> tuple[ShownKey, ...]:
    """Every key, in the order of sections, then the options of clients, then the keys of each [[query]]."""
    tables = {f"kafka.{CLIENT}": settings.kafka.client, f"ledger.{CLIENT}": settings.ledger.client}
    names = [name for name in known_keys() if not tables.get(name)]
    options = [f"{name}.{key}" for name, table in tables.items() for key in table]
    return (*(_shown(name, settings, origins) for name in [*names, *options]), *_of_queries(settings, origins))


def _shown(name: str, settings: Settings, origins: Mapping[str, str]) -> ShownKey:
    section, _, key = name.partition(".")
    within, nested, option = key.partition(".")
    value = getattr(getattr(settings, section), within)
    value = value[option] if nested else value
    origin = origins.get(name) or "default"
    if name == "ledger.url":
        return ShownKey(name, without_password(settings.ledger.place), origin, is_set=bool(value))
    if name in SECRETS and may_be_secret(value):
        return ShownKey(name, LEFT_OUT, origin)
    if section == "source" and value is None:
        return ShownKey(name, *_of_feed(key, settings), is_set=False)
    if name == "budget.epsilon" and value is None:
        return ShownKey(
            name, None if settings.budget.accounting == "zcdp" else settings.budget.promised, origin, is_set=False
        )
    return ShownKey(name, value, origin, is_set=value is not None)


def _of_feed(key: str, settings: Settings) -> tuple[object, str]:
    """What is read where the key is not set: by the preset, else by the contract's form."""
    source, mapping = settings.source, settings.source.mapping
    of_mapping = {field for field in FeedMapping.__dataclass_fields__ if field != "zone"}
    value = getattr(mapping, key) if key in of_mapping else None
    return value, f"preset {source.preset}" if source.preset else "default"


def _of_queries(settings: Settings, origins: Mapping[str, str]) -> Iterator[ShownKey]:
    for number, query in enumerate(settings.query, 1):
        for field in fields(query):
            name, value = f"query.{number}.{field.name}", getattr(query, field.name)
            shown = query.unset(field.name) if value is None else value
            yield ShownKey(name, shown, origins.get(name) or "default", is_set=value is not None)


def without_password(url: str) -> str:
    """A ledger's URL without user and password, before the host and behind it.

    >>> without_password("redis://me:hush@ledger:6379/0"), without_password("redis://ledger/2?db=1&password=hush")
    ('redis://...@ledger:6379/0', 'redis://ledger/2?db=1&password=...')
    """
    if not has_password(url):
        return url
    scheme, _, rest = url.partition("://")
    _, at, place = rest.rpartition("@")
    shown = f"{scheme}://{LEFT_OUT if at else ''}{at}{place}"
    return re.sub(r"((?:password|username)=)[^&#]*", rf"\1{LEFT_OUT}", shown)


def as_toml(keys: Sequence[ShownKey]) -> str:
    """A configuration file that sets the same; what is not set, or left out, is a comment."""
    tables = [
        "\n".join([_head(table), *(_line(key) for key in group)])
        for table, group in groupby(keys, key=lambda key: key.name.rpartition(".")[0])
    ]
    return "\n\n".join(tables)


def _head(table: str) -> str:
    return f"[[{QUERY}]]" if table.startswith(f"{QUERY}.") else f"[{table}]"


def _line(key: ShownKey) -> str:
    name, text = key.name.rpartition(".")[2], _text(key.value)
    setting = f"{name} = {text}"
    if not key.is_set or key.value == LEFT_OUT or (key.name == "ledger.url" and LEFT_OUT in text):
        setting = f"# {setting}" if text else f"# {name} is not set"
    return f"{setting:<{COMMENT_COLUMN}} # {_escaped(key.origin)}"


def _text(value: object) -> str:
    """A value as TOML has it; nothing for None."""
    return "" if value is None else _escaped(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))


def _escaped(text: str) -> str:
    """Characters that no file of TOML may have, as it writes them."""
    return re.sub("[\x7f\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)
