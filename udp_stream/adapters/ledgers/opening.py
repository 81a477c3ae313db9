"""From a configured ledger URL to an open ledger and the hashes of its plates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from udp_stream.adapters.ledgers.ledger_id import adopt, kept_mark, known_ledger, replace_mark
from udp_stream.adapters.ledgers.plate_keys import PlateKeys, load_or_create_key
from udp_stream.adapters.ledgers.sqlite.file import MAGIC
from udp_stream.adapters.ledgers.sqlite.ledger import open_sqlite_ledger
from udp_stream.adapters.secret_files import TLS_FILES, tls_context, with_secrets
from udp_stream.adapters.settings import SQLITE, LedgerSection, is_file
from udp_stream.adapters.settings.connection_rules import url_faults
from udp_stream.errors import DependencyUnavailable, PrivacyRefused, UsageError, needs
from udp_stream.ledger.port import Ledger, Mark


@contextmanager
def ledger_and_keys(
    asked: LedgerSection,
    *,
    must_exist: bool = False,
    allow_volatile: bool = False,
    accept_older: bool = False,
    only_look: bool = False,
    named_elsewhere: str | None = None,
) -> Iterator[tuple[Ledger, PlateKeys]]:
    """Open the ledger and its key (both made at first use), bound to each other, and no older than its mark.

    Its URL is a file, `sqlite:FILE`, or one of Redis. `accept_older`: do not look at the mark. `only_look`: of a ledger
    that is new to this machine keep no id. `named_elsewhere`: the id of a ledger whose mark is also kept elsewhere, so
    that it may hold charges although this machine has no mark.

    Raises ConfigError for any other URL, UsageError if `must_exist` and there is none, DependencyUnavailable if the
    store cannot be reached, and PrivacyRefused if it would forget, may have forgotten, or belongs to another key.
    """
    if not is_file(asked.place):  # before its key is asked for
        _redis(asked.place)
    key_file, id_file = _key_files(asked)
    known = known_ledger(id_file)
    if must_exist and known is None and (_is_missing(asked.place) or _is_empty_redis(asked)):
        raise UsageError(f"{ledger_place(asked.place)}: no ledger there. Name an existing one with --ledger")
    if must_exist and known is None and (kind := _another_kind(asked.place)):
        raise UsageError(f"{ledger_place(asked.place)}: no ledger, but {kind}. Name one with --ledger")
    made = not key_file.exists()
    if made and is_file(asked.place) and not (_is_missing(asked.place) or _is_there(asked)):
        with _opened(asked, None, allow_volatile):  # says what it is instead of a ledger: no key is made for that
            pass
    if made and (must_exist or known is not None or _is_there(asked)):
        # Another process may have made both between the two looks: the key first.
        made = not key_file.exists()
        if made:
            raise _no_key(key_file, asked.place)
    # The key comes first: a crash here leaves a key without a ledger, not a ledger without its key.
    keys = PlateKeys(load_or_create_key(key_file))
    with _opened(asked, id_file, allow_volatile) as ledger:
        try:
            ledger.bind(keys.fingerprint())
        except PrivacyRefused as error:
            if not made:
                raise
            for file in (id_file, key_file):  # another machine has made the ledger meanwhile: ours fits nothing
                file.unlink(missing_ok=True)
            raise _no_key(key_file, asked.place) from error
        if not accept_older:
            if known is None:
                adopt(ledger, id_file, ledger_place(asked.place), named_elsewhere, only_look=only_look)
            ledger.compare()
        yield ledger, keys


def replace_mark_of(asked: LedgerSection, ledger: Ledger) -> None:
    """Keep the mark of the ledger as it is: what it is behind was accepted as forgotten."""
    replace_mark(ledger, _key_files(asked)[1])


def mark_beside(asked: LedgerSection) -> Mark | None:
    """The high-water mark that is kept beside the plates' key, if there is one."""
    return kept_mark(_key_files(asked)[1])


def ledger_place(url: str) -> str:
    """Where a ledger is, without user and password: a file's absolute path, or a Redis's host, port and database.

    >>> ledger_place("sqlite:/data/city.ledger"), ledger_place("redis://user:secret@ledger:6379/2")
    ('/data/city.ledger', 'ledger:6379/2')
    >>> ledger_place("redis://ledger?db=2&password=secret"), ledger_place("unix:///run/redis.sock?db=1")
    ('ledger:6379/2', '/run/redis.sock/1')
    """
    if is_file(url):
        return str(_path(url).resolve())
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are no address; who opens it says what is expected
        return f"{url.partition('://')[0]}://..."
    host = parts.netloc.rpartition("@")[2]
    (asked,) = parse_qs(parts.query).get("db", [""])[-1:]
    if parts.scheme == "unix":
        return f"{parts.path}/{asked or '0'}"
    port = ":6379" if "redis" in parts.scheme and ":" not in host.rpartition("]")[2] else ""
    return f"{host}{port}/{asked or parts.path.strip('/') or '0'}"


def has_mark(asked: LedgerSection) -> bool:
    """Whether this machine keeps which ledger it is, and how far it had come."""
    return known_ledger(_key_files(asked)[1]) is not None


def is_here(asked: LedgerSection) -> bool:
    """Whether this machine has used the ledger before, or has its file."""
    return has_mark(asked) or (is_file(asked.place) and not _is_missing(asked.place))


def ledger_there(asked: LedgerSection) -> str | None:
    """The id of the ledger that is there: as this machine knows it, or as a Redis tells. Nothing is made.

    None if there is none, or a file that was never opened here. DependencyUnavailable if a Redis does not answer.
    """
    known = known_ledger(_key_files(asked)[1])
    if known is not None or is_file(asked.place):
        return known
    found: str | None = _redis(asked.place).ledger_at(asked.place, client=_client(asked))
    return found


def ledger_files(asked: LedgerSection) -> list[tuple[str, Path]]:
    """What a ledger has on this machine, made already or not: what each file is, and its path."""
    url = asked.place
    key_file, id_file = _key_files(asked)
    files = [("the plates' key", key_file), ("the id of the ledger", id_file)]
    if is_file(url):
        real = os.path.realpath(_path(url))  # SQLite keeps its log beside what a link leads to
        logs = [("the log of the ledger", Path(f"{real}{suffix}")) for suffix in ("-wal", "-shm", "-journal")]
        files += [("the ledger", _path(url)), *logs]
    return files


def inspect_ledger(asked: LedgerSection) -> str:
    """What a worker would find, in a sentence; nothing is made. Raises as `ledger_and_keys`, and if the key is gone."""
    url = asked.place
    key_file, id_file = _key_files(asked)
    known = known_ledger(id_file)
    if known is None and _is_missing(url):
        folder = _path(url).resolve().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise DependencyUnavailable(f"{ledger_place(url)}: expected a folder in which it can be made")
        return f"{ledger_place(url)} will be made at first use"
    there = known is not None or _is_there(asked)
    if there and not key_file.exists():
        raise _no_key(key_file, url)
    if known is None and not is_file(url):
        _redis(url).inspect_redis(url, asked.replicas, _client(asked))
        what = "it has a ledger, new to this machine" if there else "a ledger will be made at first use"
        return f"a durable Redis at {ledger_place(url)}; {what}"
    with ledger_and_keys(asked, only_look=True):
        return f"opens at {ledger_place(url)}, bound to the key in {key_file.absolute()}"


def _key_files(asked: LedgerSection) -> tuple[Path, Path]:
    """Where the key of the plates is, and beside it the id and the mark by which a ledger that is lost or older is
    noticed."""
    url = asked.place
    key_file = asked.key_file or (f"{_path(url)}.key" if is_file(url) else "udp-stream.ledger.key")
    return Path(key_file), Path(f"{key_file}.ledger-id")


def _no_key(key_file: Path, url: str) -> PrivacyRefused:
    """Of a ledger that exists: a new key would fit no plate in it, and might be taken for the one that is lost."""
    return PrivacyRefused(
        f"{key_file.absolute()}: the key of the ledger's plates is not there, and the ledger at {ledger_place(url)} "
        f"needs it: restore it from the backup, or copy it there, and {key_file.name}.ledger-id beside it, from a "
        "machine that works on this ledger. No new key is made: under one every plate would get a new budget"
    )


def _opened(asked: LedgerSection, id_file: Path | None, allow_volatile: bool) -> AbstractContextManager[Ledger]:
    url = asked.place
    if is_file(url):
        return open_sqlite_ledger(_path(url), id_file=id_file)
    opened: AbstractContextManager[Ledger] = _redis(url).open_redis_ledger(
        url, id_file=id_file, allow_volatile=allow_volatile, replicas=asked.replicas, client=_client(asked)
    )
    return opened


def _redis(url: str) -> Any:
    """The module of Redis ledgers, imported only where one is asked for; ConfigError for a URL of something else."""
    for fault in url_faults(url):
        raise fault
    with needs("Redis client", "redis"):
        from udp_stream.adapters.ledgers.redis import opening
    return opening


def _client(asked: LedgerSection) -> dict[str, Any]:
    """Options of the Redis client. ConfigError for a file that cannot be used, DependencyUnavailable for a server by
    TLS that we do not trust, or that has none."""
    from udp_stream.adapters.ledgers.redis.trouble import require_tls

    if asked.url.startswith("rediss"):
        # The client reads these files at each connection; here they are tried, so that each has its sentence.
        files = (str(asked.client.get(name.partition(".")[2], "")) for name in TLS_FILES["ledger"])
        require_tls(asked.url, tls_context("ledger", *files))
    return with_secrets("ledger", asked.client)


def _is_missing(url: str) -> bool:
    return is_file(url) and not _path(url).exists()


def _is_there(asked: LedgerSection) -> bool:
    """Whether a ledger is there: a file of SQLite's (of any other kind the ledger itself says that it is none), or what
    belongs to a ledger in a Redis. DependencyUnavailable if that Redis does not answer."""
    if not is_file(url := asked.place):
        return _redis(url).ledger_at(url, client=_client(asked)) is not None
    if not _path(url).is_file():
        return False
    try:
        with _path(url).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _is_empty_redis(asked: LedgerSection) -> bool:
    """Whether it is a Redis without a ledger. DependencyUnavailable if it does not answer."""
    return not is_file(asked.place) and not _is_there(asked)


def _another_kind(url: str) -> str:
    """What is there instead of a file of SQLite's; nothing for an empty file."""
    if not is_file(url) or _is_missing(url):
        return ""
    if _path(url).is_dir():
        return "a folder"
    with _path(url).open("rb") as file:
        head = file.read(len(MAGIC))
    return "" if head == MAGIC or head.strip(b"\0") == b"" else "a file of another kind"


def _path(url: str) -> Path:
    return Path(url.removeprefix(SQLITE))
