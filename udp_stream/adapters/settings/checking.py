"""All that is wrong with a configuration at once, with the line of the file: for `config check`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from udp_stream.adapters.settings.known import QUERY
from udp_stream.adapters.settings.loading import settings_of
from udp_stream.adapters.settings.sections import Settings
from udp_stream.adapters.settings.tables import Origin, Tables, read_tables
from udp_stream.errors import ConfigError


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


_KEY = re.compile(r"(?:unknown key |unknown section \[)?([a-z_]+(?:\.[A-Za-z0-9_-]+){0,2})\]?(?:[:;]| of | number )")
_OF_QUERY = re.compile(r"query(?:\.[a-z_]+)? (?:of ([a-z0-9-]+)|number ([0-9]+))")


def _key_of(message: str) -> str:
    """The key, or section, that a message is about; with the query's name or number, if it is of one."""
    query = _OF_QUERY.search(message)
    found = _KEY.match(message)
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
