"""The keys that there are, and the nearest of them to one that there is not."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec.structs import fields

from udp_stream.errors import ConfigError
from udp_stream.settings.limits import DURATIONS, EPSILONS, breach
from udp_stream.settings.queries import QuerySection
from udp_stream.settings.rules import NO_LEDGERS, faults_of
from udp_stream.settings.sections import Settings

PREFIX: Final = "UDP_STREAM_"

QUERY: Final = "query"
"""The one table that there may be several of."""

CLIENT: Final = "client"
"""The one key that is a table: options that go to a client as they are."""


@cache
def known_keys() -> tuple[str, ...]:
    """Every `section.key` there is; those of [[query]] are `query_keys`."""
    sections = [section for section in fields(Settings) if section.name != QUERY]
    return tuple(f"{section.name}.{field.name}" for section in sections for field in fields(section.type))


@cache
def query_keys() -> tuple[str, ...]:
    """Every `query.key` there is, of each table [[query]]."""
    return tuple(f"{QUERY}.{field.name}" for field in fields(QuerySection))


def variable_of(key: str) -> str:
    """The environment variable of a key.

    >>> variable_of("hat.slot")
    'UDP_STREAM_HAT__SLOT'
    """
    return PREFIX + key.replace(".", "__").upper()


def nearest(name: str) -> str:
    """'; did you mean ...?' for the nearest section or key, by its whole name or its last part.

    >>> nearest("hat.resolutoin"), nearest("budget.slot")
    ('; did you mean hat.resolution?', '; did you mean hat.slot?')
    """
    known = known_keys()
    if "." not in name:
        sections = {key.partition(".")[0]: f"[{key.partition('.')[0]}]" for key in known}
        meant = {key.rpartition(".")[2]: key for key in reversed(known)} | sections
        found = difflib.get_close_matches(name, meant, n=1)
        return f"; did you mean {meant[found[0]]}?" if found else f"; known are {', '.join(sorted(sections.values()))}"
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    return f"; did you mean {(same or difflib.get_close_matches(name, known, n=1, cutoff=0.0))[0]}?"


# Where values come from: a TOML file, the environment over it, flags over both. Nothing is judged here but names.
#
# What is wrong goes to `report`, as a ConfigError: `stop` raises it, so that the first fault ends the reading; another
# `report` that keeps it gets to know all of them.

Report: TypeAlias = Callable[[ConfigError], None]


def stop(fault: ConfigError) -> None:
    """The first fault ends it."""
    raise fault


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: the name of a file, with its line where that was found; of a variable; of a flag.

    >>> str(Origin("file", "city.toml", 12)), str(Origin("environment", "UDP_STREAM_HAT__SLOT")), str(Origin("default"))
    ('city.toml:12', 'UDP_STREAM_HAT__SLOT', 'default')
    """

    kind: Literal["default", "preset", "file", "environment", "flag"]
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        """As people read it."""
        if self.kind == "preset":
            return f"preset {self.name}"
        return f"{self.name}:{self.line}" if self.line is not None else self.name or self.kind


@dataclass
class Tables:
    """Values by section and key, as they were given, and where each came from: by `section.key`, or by section for what
    is no table. Keys of the second [[query]] are `query.2.key`; what stands under `query` is in `queries`."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    queries: Any = ()

    def put(self, name: str, value: object, origin: Origin) -> None:
        """Set section.key. ConfigError if there can be no such key."""
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
            raise ConfigError(
                f"{name}: expected in the configuration file, in one of its tables [[query]], not beside it"
            )
        table = self.values.setdefault(section, {}) if section else None
        if not isinstance(table, dict):
            raise ConfigError(f"expected section.key, got {name!r}{nearest(name)}")
        return table


def read_tables(
    path: Path | None,
    flags: Sequence[str],
    environment: Mapping[str, str] | None,
    options: Mapping[str, str] | None,
    report: Report,
) -> Tables:
    """The file, then `UDP_STREAM_SECTION__KEY` variables, then `section.key=value` flags, then options; later ones
    win. Unknown keys are still in it."""
    tables = Tables() if path is None else _read(path, report)
    once_underscored = {variable_of(key).replace("__", "_"): variable_of(key) for key in known_keys()}
    # Sorted, so that the fault that is told first does not depend on how the shell orders variables.
    for variable, text in sorted((os.environ if environment is None else environment).items()):
        if variable in once_underscored:
            report(ConfigError(f"unknown variable {variable}; did you mean {once_underscored[variable]}?"))
        elif variable.startswith(PREFIX) and "__" in variable:
            name = variable.removeprefix(PREFIX).lower().replace("__", ".")
            _put(tables, name, _value(text), Origin("environment", variable), report)
    for flag in flags:
        name, equals, text = flag.partition("=")
        if equals:
            _put(tables, name.strip(), _value(text), Origin("flag", "--set"), report)
        else:
            report(ConfigError(f"expected section.key=value, got {flag!r}"))
    for name, text in (options or {}).items():
        _put(tables, name, text, Origin("flag", "option"), report)
    return tables


def _put(tables: Tables, name: str, value: object, origin: Origin, report: Report) -> None:
    try:
        tables.put(name, value, origin)
    except ConfigError as error:
        report(error)


def _read(path: Path, report: Report) -> Tables:
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        report(ConfigError(f"{path}: cannot be read ({error.strerror})"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        report(ConfigError(f"{path}: not TOML: {error}"))
    else:
        origins = _origins(values, path, lines_of(text))
        return Tables(values, origins, values.pop(QUERY, ()))
    return Tables()


def _origins(values: Mapping[str, Any], path: Path, lines: Mapping[str, int]) -> dict[str, Origin]:
    names = list(values)
    for section, table in values.items():
        if isinstance(table, dict):
            names += [f"{section}.{key}" for key in table]
            client = table.get(CLIENT)
            names += [f"{section}.{CLIENT}.{key}" for key in client] if isinstance(client, dict) else []
        elif section == QUERY and isinstance(table, list):
            numbered = [(number, one) for number, one in enumerate(table, 1) if isinstance(one, dict)]
            names += [f"{QUERY}.{number}" for number, _ in numbered]
            names += [f"{QUERY}.{number}.{key}" for number, one in numbered for key in one]
    return {name: Origin("file", str(path), lines.get(name)) for name in names}


def _value(text: str) -> object:
    """A TOML value if it reads as one, else a string. One, and nothing behind it: that would be left out unsaid."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


_HEAD = re.compile(r"\s*\[(\[?)\s*([A-Za-z0-9_.-]+)\s*\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*(?:\.\s*([A-Za-z0-9_-]+)\s*)?=")


def lines_of(text: str) -> dict[str, int]:
    """The line of each section and key of a TOML file, by the way that people write them: one key a line. A key that is
    written otherwise (an inline table) has none.

    >>> lines_of('[hat]\\nslot = "1h"\\n\\n[[query]]\\nname = "a"\\n[[query]]\\nname = "b"')["query.2.name"]
    7
    """
    lines: dict[str, int] = {}
    section, queries = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            section = head[2]
            if head[1]:
                queries += 1
                section = f"{section}.{queries}"
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            name = ".".join(part for part in (section, key[1], key[2]) if part)
            lines.setdefault(name, number)
    return lines


# What a value of a setting may be, in words: from the types of the settings, and from msgspec's messages.

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_BOUNDS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}
_MESSAGE = re.compile(
    r"Expected `(?P<kinds>[a-z |]+)`(?: (?P<bound>[<>]=?) (?P<number>\S+))?(?P<length> of length [0-9]+)?"
    r"(?:, got (?:`[a-z]+`|[0-9]+))?$"
)


def words_of(kind: Any) -> list[str]:
    """The words that a setting of this type may be, or kinds of values beside them; none where it takes no word.

    >>> words_of(Literal["pure", "zcdp"] | Literal["auto"])
    ['pure', 'zcdp', 'auto']
    >>> words_of(Literal["auto"] | tuple[float, ...]), words_of(float | None), words_of(bool)
    (['auto', 'a list'], [], [])
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return words + [_kind_of(part) for part in parts if get_origin(part) is not Literal] if words else []


def _kind_of(kind: Any) -> str:
    origin = get_origin(kind)
    of = get_args(kind)[0] if origin is Annotated else origin or kind
    return _KINDS.get("array" if of is tuple else of.__name__, str(of))


def in_words(message: str) -> str:
    """A message of msgspec as our own say it; any other as it is.

    >>> in_words("Expected `float | null`, got `str`"), in_words("Expected `int` >= 1")
    ('expected a number', 'expected a whole number of at least 1')
    >>> in_words("Expected `array` of length 4, got 2"), in_words("Invalid time zone")
    ('expected a list of length 4', 'Invalid time zone')
    """
    found = _MESSAGE.match(message)
    if not found:
        return message
    kinds = [_KINDS.get(kind, kind) for kind in found["kinds"].split(" | ") if kind != "null"]
    bound = f" {_BOUNDS[found['bound']]} {found['number'].removesuffix('.0')}" if found["bound"] else ""
    return f"expected {' or '.join(kinds)}{bound}{found['length'] or ''}"


# Configuration is read here: TOML file, environment over it, flags over both; what is unknown names its nearest.

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


# All that is wrong with a configuration at once, with the line of the file: for `config`.


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, in the words of `load`, and where the value came from, where that is known."""

    message: str
    origin: Origin | None

    def __str__(self) -> str:
        """As people read it.

        >>> str(Fault("hat.slot: expected ...", Origin("file", "city.toml", 3)))
        'city.toml:3: hat.slot: expected ...'
        """
        return f"{self.origin}: {self.message}" if self.origin is not None else self.message


FurtherCheck = Callable[[Settings], Iterator[ConfigError]]
"""What else is wrong with settings, each fault by its key: of the files that they name, say."""


def faults_in(
    path: Path | None,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    further: FurtherCheck | None = None,
) -> tuple[Fault, ...]:
    """Everything that `load` would refuse, not only the first, in the order of the file; then what `further` finds.

    What follows from another fault is left out: a rule between two keys says nothing where one of them cannot be read,
    and `further` is not asked about a section with a fault.
    """
    of_values, of_rules = list[ConfigError](), list[ConfigError]()
    tables = read_tables(path, flags, environment, None, of_values.append)
    settings = settings_of(tables, of_values.append, of_rules.append)
    unread = [key for key in map(_key_of, map(str, of_values)) if key]
    # An empty pattern would match every rule: where nothing is unread, this one matches none.
    follows = re.compile("|".join(rf"\b{re.escape(key)}\b" for key in unread) or "(?!)")
    messages = [*map(str, of_values), *(str(one) for one in of_rules if not follows.search(str(one)))]
    faulty = {_section_of(message) for message in messages}
    more = map(str, () if further is None else further(settings))
    messages += [message for message in more if _section_of(message) not in faulty]
    faults = [Fault(message, _origin_of(message, tables)) for message in dict.fromkeys(messages)]
    return tuple(sorted(faults, key=lambda fault: fault.origin.line or 0 if fault.origin else 0))


def located(
    error: ConfigError, path: Path | None, flags: Sequence[str] = (), options: Mapping[str, str] | None = None
) -> ConfigError:
    """The error of `load` with the file and line that it is about, where it is about a value or section of the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "city.toml").write_text("[hat]\\nslto = '1h'\\n")
    ...     error = located(ConfigError("unknown key hat.slto; ..."), Path(folder, "city.toml"))
    >>> print(str(error).removeprefix(folder))
    /city.toml:2: unknown key hat.slto; ...
    """
    tables = Tables() if path is None else read_tables(path, flags, None, options, lambda _: None)
    origin = _origin_of(str(error), tables)
    return error if origin is None or origin.kind != "file" else ConfigError(f"{origin}: {error}")


_KEY_IN_FAULT = re.compile(
    r"(?:unknown key |unknown section \[)?([a-z_]+(?:\.[A-Za-z0-9_-]+){0,2})\]?(?:[:;]| of | number )"
)
_OF_QUERY = re.compile(r"query(?:\.[a-z_]+)? (?:of ([a-z0-9-]+)|number ([0-9]+))")


def _key_of(message: str) -> str:
    """The key, or section, that a message is about; with the query's name or number, if it is of one."""
    query = _OF_QUERY.search(message)
    found = _KEY_IN_FAULT.match(message)
    key = found[1] if found else ""
    return f"{key} {query[1] or query[2]}" if query and key else key


def _section_of(message: str) -> str:
    return _key_of(message).partition(".")[0]


def _origin_of(message: str, tables: Tables) -> Origin | None:
    key, _, query = _key_of(message).partition(" ")
    section, table = key.partition(".")[0], key.rpartition(".")[0]
    if query:
        names = [one.get("name") if isinstance(one, dict) else None for one in tables.queries]
        number = names.index(query) + 1 if query in names else query
        key, section = key.replace(QUERY, f"{QUERY}.{number}", 1), f"{QUERY}.{number}"
    return tables.origins.get(key) or tables.origins.get(table) or tables.origins.get(section)
