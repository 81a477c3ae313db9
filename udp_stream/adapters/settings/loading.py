"""Configuration is read here: TOML file, environment over it, flags over both; what is unknown names its nearest."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec.structs import fields

from udp_stream.adapters.settings.limits import DURATIONS, EPSILONS, require
from udp_stream.adapters.settings.query_sections import QuerySection
from udp_stream.adapters.settings.rules import NO_LEDGERS, check
from udp_stream.adapters.settings.sections import Settings
from udp_stream.errors import ConfigError

PREFIX = "UDP_STREAM_"

QUERY = "query"
"""The one table that there may be several of."""


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
    queries = _queries(tables.pop("query", []))
    _refuse_unknown(tables)
    _refuse_nameless_ledger(tables)
    try:
        settings = msgspec.structs.replace(msgspec.convert(tables, Settings), query=queries)
    except msgspec.ValidationError as error:
        raise ConfigError(_where(str(error), tables)) from error
    check(settings)
    return settings


@cache
def known_keys() -> tuple[str, ...]:
    """Every `section.key` there is; those of [[query]] are `query_keys`."""
    sections = [section for section in fields(Settings) if section.name != QUERY]
    return tuple(f"{section.name}.{field.name}" for section in sections for field in fields(section.type))


@cache
def query_keys() -> tuple[str, ...]:
    """Every `query.key` there is, of each table [[query]]."""
    return tuple(f"{QUERY}.{field.name}" for field in fields(QuerySection))


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


def _queries(tables: Any) -> tuple[QuerySection, ...]:
    """The tables [[query]]; ConfigError names the query, by its place if it has no name."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError("query: expected tables [[query]], one for each query, with double brackets")
    return tuple(_query(table, place) for place, table in enumerate(tables, 1))


def _query(table: dict[str, Any], place: int) -> QuerySection:
    named = f"of {table['name']}" if isinstance(table.get("name"), str) else f"number {place}"
    for key in table:
        if f"{QUERY}.{key}" not in query_keys():
            meant = difflib.get_close_matches(f"{QUERY}.{key}", query_keys(), n=1, cutoff=0.0)[0]
            raise ConfigError(f"unknown key {QUERY}.{key} {named}; did you mean {meant}?")
    try:
        return msgspec.convert(table, QuerySection)
    except msgspec.ValidationError as error:
        text, _, at = str(error).rpartition(" - at `$.")
        if not text:
            raise ConfigError(f"{QUERY} {named}: {error}") from error
        key = at.rstrip("`").partition("[")[0]
        rule = f"expected one of {', '.join(_words(key))}" if _words(key) else text
        raise ConfigError(f"{QUERY}.{key} {named}: {rule}, got {table.get(key)!r}") from error


def _words(key: str) -> tuple[str, ...]:
    """What a key of a query may be, where that is one of a few words."""
    of = next((field.type for field in fields(QuerySection) if field.name == key), None)
    return get_args(of) if get_origin(of) is Literal else ()


def _section(tables: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    if section == QUERY:
        raise ConfigError(f"{name}: expected in the configuration file, in one of its tables [[query]], not beside it")
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
        require(section["url"] not in NO_LEDGERS, "ledger.url", "a file or URL", repr(section["url"]))


def _nearest(name: str) -> str:
    """'; did you mean ...?' for the nearest section or key, by its whole name or its last part."""
    known = known_keys()
    if "." not in name:
        sections = {key.partition(".")[0]: f"[{key.partition('.')[0]}]" for key in known}
        meant = {key.rpartition(".")[2]: key for key in reversed(known)} | sections
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
    sections = [section for section in fields(Settings) if section.name != QUERY]
    types = {f"{of.name}.{field.name}": field.type for of in sections for field in fields(of.type)}
    if types.get(name) is bool:
        return "true or false"
    words = get_args(types.get(name)) if get_origin(types.get(name)) is Literal else ()
    return f"one of {', '.join(map(str, words))}" if words else None
