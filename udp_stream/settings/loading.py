"""Reading the configuration: a TOML file, the environment over it, flags over both; unknown keys
name the nearest."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import fields

from udp_stream.base.errors import ConfigError
from udp_stream.settings.limits import DURATIONS, EPSILON_RULE
from udp_stream.settings.queries import QuerySection
from udp_stream.settings.rules import NO_LEDGERS, check
from udp_stream.settings.sections import EPSILONS, Settings

PREFIX = "UDP_STREAM_"

QUERY = "query"

CLIENT = "client"
"""The only key that is a table: options that go to a client as they are."""


PAPER = "release.paper"
LOGIN = "live.client"

MOVED = {
    f"{PAPER}.grouping": "release.grouping",
    f"{PAPER}.cap": "release.cap",
    f"{PAPER}.branching": "release.branching",
    f"{PAPER}.levels": "release.levels",
    f"{PAPER}.suppression": "release.suppression",
    f"{PAPER}.hats_max": "release.hats_max",
    f"{PAPER}.schedule": "budget.schedule",
    f"{LOGIN}.token_file": "live.token_file",
    f"{LOGIN}.token_header": "live.token_header",
    f"{LOGIN}.ca_file": "live.ca_file",
    f"{LOGIN}.username": "live.username",
    f"{LOGIN}.password_file": "live.password_file",
}
"""Keys of the tables [release.paper] and [live.client] by their older names, which stay."""


@cache
def known_keys() -> tuple[str, ...]:
    """Every `section.key` there is, [release.paper] and [live.client] as a key each; those of
    [[query]] are `query_keys`."""
    return *(key for key in accepted_keys() if key not in MOVED.values()), PAPER, LOGIN


@cache
def accepted_keys() -> tuple[str, ...]:
    """Every `section.key` of the sections' types, by which values are kept."""
    return tuple(
        f"{section.name}.{field.encode_name}"
        for section in fields(Settings)
        if section.name != QUERY
        for field in fields(section.type)
    )


@cache
def query_keys() -> tuple[str, ...]:
    """Every `query.key` there is, of each table [[query]]."""
    return tuple(f"{QUERY}.{field.name}" for field in fields(QuerySection))


def variable_of(key: str) -> str:
    """The environment variable of a key."""
    return PREFIX + key.replace(".", "__").upper()


def nearest(name: str) -> str:
    """'; did you mean ...?' for the nearest section or key, by its whole name or its last part."""
    known = *accepted_keys(), *MOVED
    if "." not in name:
        sections = {key.partition(".")[0]: f"[{key.partition('.')[0]}]" for key in known}
        meant = {key.rpartition(".")[2]: key for key in reversed(known)} | sections
        found = difflib.get_close_matches(name, meant, n=1)
        return (
            f"; did you mean {meant[found[0]]}?"
            if found
            else f"; known are {', '.join(sorted(sections.values()))}"
        )
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    return f"; did you mean {(same or difflib.get_close_matches(name, known, n=1, cutoff=0.0))[0]}?"


@dataclass
class Tables:
    """Values by section and key, and the origin of each `section.key`; `query.2.key` is of the
    second [[query]]."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    queries: Any = ()

    def put(self, name: str, value: object, origin: str) -> None:
        name = MOVED.get(name, name)
        section, dot, key = name.partition(".")
        table = self._section(section if dot else "", name)
        within, nested, option = key.partition(".")
        if nested and within == CLIENT:
            table = table.setdefault(within, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{section}.{within}: expected a table")
        table[option if nested and within == CLIENT else key] = value
        self.origins[name] = origin

    def _section(self, section: str, name: str) -> dict[str, Any]:
        if section == QUERY:
            rule = "in the configuration file, in one of its tables [[query]], not beside it"
            raise ConfigError(f"{name}: expected {rule}")
        table = self.values.setdefault(section, {}) if section else None
        if not isinstance(table, dict):
            raise ConfigError(f"expected section.key, got {name!r}{nearest(name)}")
        return table


def read_tables(
    path: Path | None,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Tables:
    """As `load` reads them, unchecked: unknown keys are still in it."""
    tables = Tables() if path is None else _read(path)
    once_underscored = {
        variable_of(key).replace("__", "_"): variable_of(key) for key in (*accepted_keys(), *MOVED)
    }
    # Sorted, so that the fault that is told does not depend on how the shell orders variables.
    for variable, text in sorted((os.environ if environment is None else environment).items()):
        if variable in once_underscored:
            raise ConfigError(
                f"unknown variable {variable}; did you mean {once_underscored[variable]}?"
            )
        if variable.startswith(PREFIX) and "__" in variable:
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            tables.put(name, _value(text), variable)
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals:
            raise ConfigError(f"expected section.key=value, got {flag!r}")
        tables.put(name.strip(), _value(text), "--set")
    for name, text in (options or {}).items():
        tables.put(name, text, "option")
    return tables


def _read(path: Path) -> Tables:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    nested = [_nested(values, table) for table in (PAPER, LOGIN)]
    names = [
        f"{section}.{key}"
        for section, table in values.items()
        if isinstance(table, dict)
        for key in table
    ]
    for section in ("kafka", "ledger"):
        table = values.get(section)
        client = table.get(CLIENT) if isinstance(table, dict) else None
        names += [f"{section}.{CLIENT}.{key}" for key in client] if isinstance(client, dict) else []
    queries = values.pop(QUERY, ())
    for number, query in enumerate(queries if isinstance(queries, list) else (), 1):
        names += [f"{QUERY}.{number}.{key}" for key in query] if isinstance(query, dict) else []
    tables = Tables(values, dict.fromkeys(names, str(path)), queries)
    for table in nested:
        for name, value in table.items():
            tables.put(name, value, str(path))
    return tables


def _nested(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Take the table of this name out of its section: its values by their whole names."""
    section, _, key = name.partition(".")
    outer = values.get(section)
    table = outer.pop(key, {}) if isinstance(outer, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{name}: expected a table, got {table!r}")
    return {f"{name}.{option}": value for option, value in table.items()}


def _value(text: str) -> object:
    """A TOML value if the text reads so, else a string. Nothing may stand behind it: that would be
    left out unsaid."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def words_of(kind: Any) -> list[str]:
    """The words that a setting of this type may be, then other kinds of values; none if it takes no
    word."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]
    plain = (
        get_args(part)[0] if get_origin(part) is Annotated else get_origin(part) or part
        for part in parts
    )
    return (
        words + [part.__name__ for part in plain if part not in (Literal, NoneType)]
        if words
        else []
    )


def in_words(message: str) -> str:
    """A message of msgspec as our own begin and end."""
    return (
        message.partition(", got ")[0]
        .replace("`", "")
        .replace(" | null", "")
        .replace("Expected", "expected")
    )


OF_SECRETS = ("password_file", "token_file", CLIENT)
"""Keys that name the file of a secret. What is no text there may be a secret of digits."""


def load(
    path: Path | None,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Settings:
    """Read the file, `UDP_STREAM_SECTION__KEY` variables, `section.key=value` flags, options; a
    later value wins.

    Options are strings and not TOML: a file may be called `true`. Raises ConfigError naming the
    key, value and rule.
    """
    tables = read_tables(path, flags, environment, options)
    if not isinstance(tables.queries, list | tuple) or not all(
        isinstance(table, dict) for table in tables.queries
    ):
        raise ConfigError(
            "query: expected tables [[query]], one for each query, with double brackets"
        )
    queries = tuple(_query(table, place) for place, table in enumerate(tables.queries, 1))
    _refuse_unknown(tables.values)
    _refuse_nul(tables.values)
    ledger = tables.values.get("ledger")
    if (
        isinstance(ledger, dict) and (url := ledger.get("url")) in NO_LEDGERS
    ):  # as from an unset variable: no choice
        raise ConfigError(f"ledger.url: expected a file or URL, got {url!r}")
    try:
        settings = msgspec.convert(tables.values, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(_where(str(error), tables.values)) from error
    settings = msgspec.structs.replace(settings, query=queries)
    check(settings)
    return settings


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
        words = words_of(
            next((field.type for field in fields(QuerySection) if field.name == key), None)
        )
        rule = f"expected one of {', '.join(words)}" if words else in_words(text)
        raise ConfigError(f"{QUERY}.{key} {named}: {rule}, got {table.get(key)!r}") from error


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    known = accepted_keys()
    sections = {name.partition(".")[0] for name in known}
    for section, table in values.items():
        if section not in sections:
            raise ConfigError(f"unknown section [{section}]{nearest(section)}")
        for key in table if isinstance(table, dict) else ():
            if f"{section}.{key}" not in known:
                raise ConfigError(f"unknown key {section}.{key}{nearest(f'{section}.{key}')}")


def _refuse_nul(values: Mapping[str, Any], before: str = "") -> None:
    """No file, server or user has a NUL in its name: the system would refuse it in the middle of
    the work."""
    for key, value in values.items():
        if isinstance(value, dict):
            _refuse_nul(value, f"{before}{key}.")
        elif isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{before}{key}: expected text without NUL, got one")


def _where(message: str, tables: Mapping[str, Any]) -> str:
    """msgspec's `... - at `$.section.key`` as `section.key: ..., got value`, with our own rule if
    it is there."""
    text, _, at = message.rpartition(" - at `$.")
    if not text:
        return message
    name = at.rstrip("`")
    section, _, key = name.partition("[")[0].partition(".")
    if rule := _rule(name):
        return f"{name}: expected {rule}, got {tables[section][key]!r}"
    value = tables[section][key] if key else tables[section]
    got = (
        "something else (it is not shown: it might be the secret itself)"
        if key in OF_SECRETS
        else repr(value)
    )
    return f"{name}: {in_words(text)}, got {got}"


RULES = {
    **dict.fromkeys(DURATIONS, "a duration such as 6h"),
    **dict.fromkeys(EPSILONS, EPSILON_RULE),
    "live.token_header": "letters, digits and -",
    "release.bins": "auto, a number of bins, or edges in km/h",
    "release.branching": "auto, or a list of whole numbers, from the root down",
}
"""Rules in words that do not follow from a key's type."""


def _rule(name: str) -> str | None:
    if name in RULES:
        return RULES[name]
    sections = [section for section in fields(Settings) if section.name != QUERY]
    types = {
        f"{of.name}.{field.encode_name}": field.type for of in sections for field in fields(of.type)
    }
    if types.get(name) is bool:
        return "true or false"
    words = words_of(types.get(name))
    return f"one of {', '.join(words)}" if words else None
