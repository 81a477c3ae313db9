"""Configuration is read here: TOML file, environment over it, flags over both; what is unknown names its nearest."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields

from udp_stream.adapters.settings.in_words import in_words, words_of
from udp_stream.adapters.settings.known import CLIENT, QUERY, known_keys, nearest, query_keys
from udp_stream.adapters.settings.limits import DURATIONS, EPSILONS, breach
from udp_stream.adapters.settings.query_sections import QuerySection
from udp_stream.adapters.settings.rules import NO_LEDGERS, faults_of
from udp_stream.adapters.settings.sections import Settings
from udp_stream.adapters.settings.tables import Origin, Report, Tables, read_tables, stop
from udp_stream.errors import ConfigError

TOKEN_NAMES = {"live.token_header": "letters, digits and -"}
"""What the name of a header is made of."""
OF_SECRETS = ("password_file", "token_file", CLIENT)
"""Keys that name the file of a secret. What is no text there may be a secret of digits."""


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
    return load_with_origins(path, flags, environment, options)[0]


def load_with_origins(
    path: Path | None,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[Settings, Mapping[str, Origin]]:
    """The same, and where each value that is no default came from."""
    tables = read_tables(path, flags, environment, options, stop)
    return settings_of(tables, stop, stop), tables.origins


def settings_of(tables: Tables, of_values: Report, of_rules: Report) -> Settings:
    """What the tables say; what is reported and not raised has its default."""
    queries = _queries(tables.queries, of_values)
    _refuse_unknown(tables.values, of_values)
    _refuse_nul(tables.values, of_values)
    _refuse_nameless_ledger(tables.values, of_values)
    settings = msgspec.structs.replace(_converted(tables.values, of_values), query=queries)
    for fault in faults_of(settings):
        of_rules(fault)
    return settings


def _converted(values: dict[str, Any], report: Report) -> Settings:
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError:
        return msgspec.convert(_readable(values, report), Settings)


def _readable(values: Mapping[str, Any], report: Report) -> dict[str, dict[str, Any]]:
    """The values that can be read: each is tried by itself."""
    readable: dict[str, dict[str, Any]] = {}
    for section, table in values.items():
        readable[section] = {}
        pieces = [{key: value} for key, value in table.items()] if isinstance(table, dict) else [table]
        for piece in pieces:
            try:
                msgspec.convert({section: piece}, Settings)
            except msgspec.ValidationError as error:
                report(ConfigError(_where(str(error), values)))
            else:
                readable[section] |= piece
    return readable


def _queries(tables: Any, report: Report) -> tuple[QuerySection, ...]:
    """The tables [[query]]; a fault names the query, by its place if it has no name."""
    if not isinstance(tables, list | tuple) or not all(isinstance(table, dict) for table in tables):
        report(ConfigError("query: expected tables [[query]], one for each query, with double brackets"))
        return ()
    found = []
    for place, table in enumerate(tables, 1):
        try:
            found.append(_query(table, place))
        except ConfigError as error:
            report(error)
    return tuple(found)


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
        words = words_of(next((field.type for field in fields(QuerySection) if field.name == key), None))
        rule = f"expected one of {', '.join(words)}" if words else in_words(text)
        raise ConfigError(f"{QUERY}.{key} {named}: {rule}, got {table.get(key)!r}") from error


def _refuse_unknown(values: dict[str, Any], report: Report) -> None:
    """What is unknown is reported and taken out."""
    known = known_keys()
    sections = {name.partition(".")[0] for name in known}
    for section, table in list(values.items()):
        if section not in sections:
            report(ConfigError(f"unknown section [{section}]{nearest(section)}"))
            del values[section]
            continue
        for key in list(table) if isinstance(table, dict) else ():
            if f"{section}.{key}" not in known:
                report(ConfigError(f"unknown key {section}.{key}{nearest(f'{section}.{key}')}"))
                del table[key]


def _refuse_nul(values: dict[str, Any], report: Report) -> None:
    """No file, server or user has a NUL in its name: the system would refuse it in the middle of the work. What has one
    is reported and taken out."""
    for section, table in values.items():
        client = table.get(CLIENT) if isinstance(table, dict) else None
        for name, values_of in ((section, table), (f"{section}.{CLIENT}", client)):
            if not isinstance(values_of, dict):
                continue
            for key in [key for key, value in values_of.items() if isinstance(value, str) and "\0" in value]:
                report(ConfigError(f"{name}.{key}: expected text without NUL, got one"))
                del values_of[key]


def _refuse_nameless_ledger(values: dict[str, Any], report: Report) -> None:
    """An empty ledger.url, as from an unset variable, is no choice of the default one."""
    section = values.get("ledger")
    if isinstance(section, dict) and "url" in section:
        for fault in breach(section["url"] not in NO_LEDGERS, "ledger.url", "a file or URL", repr(section["url"])):
            report(fault)


def _where(message: str, tables: Mapping[str, Any]) -> str:
    """msgspec's `... - at `$.section.key`` as `section.key: ..., got value`, with our own rule if there is one."""
    text, _, at = message.rpartition(" - at `$.")
    if not text:
        return message
    name = at.rstrip("`")
    section, _, key = name.partition("[")[0].partition(".")
    if rule := _rule(name):
        return f"{name}: expected {rule}, got {tables[section][key]!r}"
    value = tables[section][key] if key else tables[section]
    got = "something else (it is not shown: it might be the secret itself)" if key in OF_SECRETS else repr(value)
    return f"{name}: {in_words(text)}, got {got}"


def _rule(name: str) -> str | None:
    """What a duration, an epsilon, a switch, or one of a few words may be."""
    if name in DURATIONS:
        return "a duration such as 6h"
    if name in EPSILONS:
        return EPSILONS[name]
    if name in TOKEN_NAMES:
        return TOKEN_NAMES[name]
    if name == "release.bins":
        return "auto, a number of bins, or edges in km/h"
    sections = [section for section in fields(Settings) if section.name != QUERY]
    types = {f"{of.name}.{field.name}": field.type for of in sections for field in fields(of.type)}
    if types.get(name) is bool:
        return "true or false"
    words = words_of(types.get(name))
    return f"one of {', '.join(words)}" if words else None
