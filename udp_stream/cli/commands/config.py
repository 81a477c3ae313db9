"""`config`: every key with its value and origin, and all faults at once."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import fields

from udp_stream.errors import ConfigError, PrivacyRefused
from udp_stream.files import TLS_FILES, may_be_secret, require_private, secret_of, tls_context
from udp_stream.ledgers.keys import load_key
from udp_stream.logs import counted
from udp_stream.pings.json import FeedMapping
from udp_stream.settings import Origin, Settings, faults_in, known_keys, load_with_origins
from udp_stream.settings.clients import has_password
from udp_stream.settings.loading import CLIENT, QUERY


def config(arguments: argparse.Namespace) -> None:
    """Print the configuration as it is in force, what is likely wrong though valid, and every fault, one a line.

    ConfigError with the number of faults, so that the exit status says that there are some.
    """
    faults = faults_in(arguments.config, arguments.set, further=file_faults)
    before = ""
    with suppress(ConfigError):  # it is among the faults
        settings, origins = load_with_origins(arguments.config, arguments.set)
        before = "# "
        print(f"# policy {settings.policy.fingerprint()}: records made under these settings name it")
        print(as_toml(shown_keys(settings, origins)))
        for name, (path, at) in settings.source.mapping.one_element.items():
            said = (
                f"source.{name} = {path!r} reads element {at} of each array alone: if it has pings, set source.records"
            )
            print(f"# warning: {said}")
    for fault in faults:
        print(f"{before}{fault}")
    sys.stdout.flush()
    if faults:
        raise ConfigError(f"{counted(len(faults), 'fault')} in the configuration")


COMMENT_COLUMN: Final = 44

LEFT_OUT: Final = "..."
"""Stands where a URL has its user and password, and for what may be a secret in the place of its file's name."""


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key, or one of a [[query]] as `query.2.key`. Where it is not set, `value` is what is in force without it, or
    None for nothing."""

    name: str
    value: object
    origin: Origin
    is_set: bool = True


def shown_keys(settings: Settings, origins: Mapping[str, Origin]) -> tuple[ShownKey, ...]:
    """Every key, in the order of sections, then the options of clients, then the keys of each [[query]]."""
    tables = {f"kafka.{CLIENT}": settings.kafka.client, f"ledger.{CLIENT}": settings.ledger.client}
    names = [name for name in known_keys() if not tables.get(name)]
    options = [f"{name}.{key}" for name, table in tables.items() for key in table]
    return (*(_shown(name, settings, origins) for name in [*names, *options]), *_of_queries(settings, origins))


def _shown(name: str, settings: Settings, origins: Mapping[str, Origin]) -> ShownKey:
    section, _, key = name.partition(".")
    within, nested, option = key.partition(".")
    value = getattr(getattr(settings, section), within)
    value = value[option] if nested else value
    origin = origins.get(name) or Origin("default")
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


def _of_feed(key: str, settings: Settings) -> tuple[object, Origin]:
    """What is read where the key is not set: by the preset, else by the contract's form."""
    source, mapping = settings.source, settings.source.mapping
    of_mapping = {field for field in FeedMapping.__dataclass_fields__ if field != "zone"}
    value = getattr(mapping, key) if key in of_mapping else None
    return value, Origin("preset", source.preset) if source.preset else Origin("default")


def _of_queries(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[ShownKey]:
    for number, query in enumerate(settings.query, 1):
        for field in fields(query):
            name, value = f"query.{number}.{field.name}", getattr(query, field.name)
            shown = query.unset(field.name) if value is None else value
            yield ShownKey(name, shown, origins.get(name) or Origin("default"), is_set=value is not None)


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
    return f"{setting:<{COMMENT_COLUMN}} # {_text_of(key.origin)}"


def _text_of(origin: Origin) -> str:
    return _escaped(str(origin))


def _text(value: object) -> str:
    """A value as TOML has it; nothing for None."""
    return "" if value is None else _escaped(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))


def _escaped(text: str) -> str:
    """Characters that no file of TOML may have, as it writes them."""
    return re.sub("[\x7f\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


SECRETS = (
    *("kafka.client.sasl_plain_password_file", "ledger.client.password_file"),
    *("live.password_file", "live.token_file"),
)
"""Keys whose file is one line that only its owner may read."""


def file_of(settings: Settings, name: str) -> str:
    """The file that a key, or an option of a client, names; nothing if it names none."""
    section, _, key = name.partition(".")
    table, _, option = key.partition(".")
    found = getattr(getattr(settings, section), table)
    return str(found.get(option, "") if option else found)


def file_faults(settings: Settings) -> Iterator[ConfigError]:
    """A fault for each file of a secret or a certificate that is not there, cannot be read or used, is empty, or can be
    read by others; in the words of the verbs that need it, and without anything of its content.

    >>> from udp_stream.settings.sections import LiveSection
    >>> [str(fault) for fault in file_faults(Settings(live=LiveSection(token_file="/no/such/file")))]
    ['live.token_file: /no/such/file cannot be read (No such file or directory)']
    """
    for key in SECRETS:
        if file := file_of(settings, key):
            yield from _refused(partial(secret_of, key, file))
    yield from _refused(partial(_require_plates_key, settings.ledger.key_file))
    for section in ("kafka", "ledger"):
        yield from _certificate_faults(settings, section)
    yield from _refused(partial(tls_context, "live", settings.live.ca_file))


def _certificate_faults(settings: Settings, section: str) -> Iterator[ConfigError]:
    """Each file by itself, so that no fault hides another; a certificate and its key together once both can be read."""
    names = [f"{section}.{key}" for key in TLS_FILES[section]]
    ca_file, *files = (file_of(settings, name) for name in names)
    yield from _refused(partial(tls_context, section, ca_file))
    if not files[0]:
        return
    of_files = [
        *_refused(partial(_require_readable, names[1], files[0])),
        *_refused(partial(require_private, names[2], files[1])),
    ]
    yield from of_files or _refused(partial(tls_context, section, "", *files))


def _require_readable(key: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from error


def _require_plates_key(file: str) -> None:
    """One that is not there is made at first use, if its folder is there."""
    if not file:
        return
    try:
        load_key(file)
    except FileNotFoundError:
        if not Path(file).parent.is_dir():
            raise ConfigError(f"ledger.key_file: expected a folder in which {file} can be made, got none") from None
    except OSError as error:
        raise ConfigError(f"ledger.key_file: {file} cannot be read ({error.strerror})") from error
    except PrivacyRefused as error:
        raise ConfigError(f"ledger.key_file: {error}") from error


def _refused(attempt: Callable[[], object]) -> Iterator[ConfigError]:
    try:
        attempt()
    except ConfigError as error:
        yield error
