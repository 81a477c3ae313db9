"""The files that keys of the configuration name: are they what the verbs that need them will ask for?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from udp_stream.adapters.ledgers.plate_keys import load_key
from udp_stream.adapters.secret_files import TLS_FILES, require_private, secret_of, tls_context
from udp_stream.adapters.settings import Settings
from udp_stream.errors import ConfigError, PrivacyRefused

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

    >>> from udp_stream.adapters.live_section import LiveSection
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
