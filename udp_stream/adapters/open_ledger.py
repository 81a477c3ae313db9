"""From a configured ledger URL to an open ledger and the hashes of its plates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from udp_stream.adapters.ledger_id import known_ledger
from udp_stream.adapters.plate_keys import PlateKeys, load_or_create_key
from udp_stream.adapters.settings import SQLITE, LedgerSection, is_file
from udp_stream.adapters.sqlite_ledger import open_sqlite_ledger
from udp_stream.errors import ConfigError, DependencyUnavailable, PrivacyRefused, UsageError
from udp_stream.ports import Ledger

REDIS = ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")


@contextmanager
def ledger_and_keys(
    asked: LedgerSection, *, must_exist: bool = False, allow_volatile: bool = False
) -> Iterator[tuple[Ledger, PlateKeys]]:
    """Open the ledger and its key (made at first use), bound to each other.

    Its URL is a file, `sqlite:FILE`, or one of Redis. Raises ConfigError for any other, UsageError if `must_exist` and
    there is no such file, DependencyUnavailable if the store cannot be reached, and PrivacyRefused if it would forget,
    has forgotten, or belongs to another key.
    """
    url = asked.url
    key_file, id_file = _key_files(asked)
    known = known_ledger(id_file)
    if must_exist and _is_missing(url) and known is None:
        raise UsageError(f"{_path(url)}: no ledger there")
    if must_exist or known is not None or _is_there(url):
        _require_key(key_file)
    # The key comes first: whoever dies now leaves a key without a ledger, not a ledger without its key.
    keys = PlateKeys(load_or_create_key(key_file))
    with _opened(asked, id_file, allow_volatile) as ledger:
        ledger.bind(keys.fingerprint())
        yield ledger, keys


def ledger_files(asked: LedgerSection) -> list[tuple[str, Path]]:
    """What a ledger has on this machine, made already or not: what each file is, and its path."""
    url = asked.url
    key_file, id_file = _key_files(asked)
    files = [("the plates' key", Path(key_file)), ("the id of the ledger", Path(id_file))]
    if is_file(url):
        real = os.path.realpath(_path(url))  # SQLite keeps its log beside what a link leads to
        logs = [("the log of the ledger", Path(f"{real}{suffix}")) for suffix in ("-wal", "-shm", "-journal")]
        files += [("the ledger", _path(url)), *logs]
    return files


def inspect_ledger(asked: LedgerSection) -> str:
    """What a worker would find, in a sentence; nothing is made. Raises as `ledger_and_keys`, and if the key is gone."""
    url = asked.url
    key_file, id_file = _key_files(asked)
    known = known_ledger(id_file)
    if known is None and _is_missing(url):
        return f"{_path(url)} will be made at first use"
    if known is None and not is_file(url):
        _redis(url).inspect_redis(url, asked.replicas)
        return f"a durable Redis at {_place(url)}; a ledger will be made at first use"
    _require_key(key_file)
    with ledger_and_keys(asked):
        return f"opens at {_place(url)}, bound to the key in {key_file}"


def _key_files(asked: LedgerSection) -> tuple[str, str]:
    """Where the key of the plates is, and beside it the id by which a lost ledger is noticed."""
    key_file = asked.key_file or (f"{_path(asked.url)}.key" if is_file(asked.url) else "udp-stream.ledger.key")
    return key_file, f"{key_file}.ledger-id"


def _require_key(key_file: str) -> None:
    """Of a ledger that exists: a new key would fit no plate in it, and might be taken for the one that is lost."""
    if not Path(key_file).exists():
        raise PrivacyRefused(f"{key_file}: the key of the ledger's plates is not there: restore it")


def _place(url: str) -> str:
    """The URL without what may be secret in it."""
    return str(_path(url)) if is_file(url) else url.rpartition("@")[2].rpartition("//")[2]


def _opened(asked: LedgerSection, id_file: str, allow_volatile: bool) -> AbstractContextManager[Ledger]:
    if is_file(asked.url):
        return open_sqlite_ledger(_path(asked.url), id_file=id_file)
    opened: AbstractContextManager[Ledger] = _redis(asked.url).open_redis_ledger(
        asked.url, id_file=id_file, allow_volatile=allow_volatile, replicas=asked.replicas
    )
    return opened


def _redis(url: str) -> Any:
    """The module of Redis ledgers, imported only where one is asked for; ConfigError for a URL of something else."""
    if not url.startswith(REDIS):
        raise ConfigError(
            f"ledger.url: expected sqlite:FILE or redis://HOST:PORT/DB, got {url.partition('://')[0]}://..."
        )
    try:
        from udp_stream.adapters import redis_ledger
    except ImportError as error:
        raise DependencyUnavailable("no Redis client: pip install 'udp-stream[redis]'") from error
    return redis_ledger


def _is_missing(url: str) -> bool:
    return is_file(url) and not _path(url).exists()


def _is_there(url: str) -> bool:
    """A file of SQLite's; of any other kind the ledger itself says that it is none."""
    if not (is_file(url) and _path(url).is_file()):
        return False
    try:
        with _path(url).open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _path(url: str) -> Path:
    return Path(url.removeprefix(SQLITE))
