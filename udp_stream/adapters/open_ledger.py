"""From a configured ledger URL to an open ledger and the hashes of its plates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from udp_stream.adapters.plate_keys import PlateKeys, load_or_create_key
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.sqlite_ledger import SqliteLedger, open_sqlite_ledger
from udp_stream.errors import ConfigError, UsageError

SQLITE = "sqlite:"


def ledger_path(url: str) -> Path:
    """The file of a `sqlite:` URL, or of a bare path; raises ConfigError for stores that this version cannot use."""
    if url.startswith(SQLITE):
        return Path(url.removeprefix(SQLITE))
    if "://" in url:
        raise ConfigError(f"ledger.url: expected sqlite:PATH in this version, got {url.partition('://')[0]}://...")
    return Path(url)


@contextmanager
def ledger_and_keys(
    settings: Settings, url: str | None = None, must_exist: bool = False
) -> Iterator[tuple[SqliteLedger, PlateKeys]]:
    """Open the ledger and its key (made at first use), bound to each other.

    Raises UsageError if `must_exist` and there is no ledger yet, PrivacyRefused if the key is not the ledger's own.
    """
    path = ledger_path(url or settings.ledger.url)
    if must_exist and not path.exists():
        raise UsageError(f"{path}: no ledger there")
    key_file = settings.ledger.key_file or f"{path}.key"
    with open_sqlite_ledger(path) as ledger:
        keys = PlateKeys(load_or_create_key(key_file))
        ledger.bind(keys.fingerprint())
        yield ledger, keys
