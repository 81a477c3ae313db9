"""Where values come from: a TOML file, the environment over it, flags over both. Nothing is judged here but names.

What is wrong goes to `report`, as a ConfigError: `stop` raises it, so that the first fault ends the reading; another
`report` that keeps it gets to know all of them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from udp_stream.adapters.settings.known import CLIENT, PREFIX, QUERY, known_keys, nearest, variable_of
from udp_stream.errors import ConfigError

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
