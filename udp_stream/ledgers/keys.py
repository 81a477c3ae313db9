"""Files beside a ledger: the key of its plates, its id, and the mark of how far it had come.

**The key.** In the ledger a plate is a keyed hash, so that a copy without the key says nothing
about who drove. Under another key every plate looks new and gets its budget again: a ledger is
bound to the `fingerprint` of its key. The key file is made complete under another name and linked
into place. A second process finds the key of the first.

**The id and the mark.** A ledger that is wiped, removed or not mounted looks like one that was
never made. Made anew, it would give every plate its budget again and draw every HAT a second time;
so where a ledger is known, none is made. Its high-water mark (`rules.py`) shows an older copy. A
ledger that holds charges and has no such file is refused until a person accepts it. The file has a
line for the ledger's id and, after something was published, one for the mark. It is replaced as a
whole, by a single process at a time.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.base.files import draft_of, link_first, sync_directory
from udp_stream.ledger.port import Bits, Ledger, Mark
from udp_stream.ledger.rules import require_not_behind, see

KEY_BYTES = 32
HASH_BYTES = 16  # a collision among a million plates has odds of 1 in 10**27
CACHE_PLATES_MAX = 2**17  # some 25 MB; far more buses than any fleet has

_PLATE = b"udp-stream/plate"  # 16 bytes, the most that BLAKE2b takes
_FINGERPRINT = b"udp-stream/keyid"
_KEY_FILE = re.compile(rb"[0-9a-f]{64}\n?")


class PlateKeys:
    """Turns plates into the ledger's keys; the same plate under the same key gives the same bytes.

    >>> keys = PlateKeys(bytes(range(32)))
    >>> keys.hash_plate("GJ05BX1234").hex()
    '50890a4dd0621754dcf5a253ccd6524f'
    >>> keys.hash_plate("GJ05BX1234") == PlateKeys(bytes(32)).hash_plate("GJ05BX1234")
    False
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(key)}")
        self._keyed = blake2b(key=key, digest_size=HASH_BYTES, person=_PLATE)
        self._fingerprint = blake2b(
            key=key, digest_size=HASH_BYTES, person=_FINGERPRINT
        ).hexdigest()
        self._cache: dict[str, bytes] = {}

    def hash_plate(self, plate: str) -> bytes:
        """The plate's 16 bytes in the ledger; plates that differ in anything, even case, are
        different plates."""
        found = self._cache.get(plate)
        if found is None:
            if len(self._cache) >= CACHE_PLATES_MAX:
                self._cache.clear()
            # A copy, as `update` would change the keyed state for the next plate.
            hashing = self._keyed.copy()
            hashing.update(plate.encode("utf-8", "surrogatepass"))
            found = self._cache[plate] = hashing.digest()
        return found

    def fingerprint(self) -> str:
        """Names the key without giving it away: safe to store, show and compare (32 hex digits)."""
        return self._fingerprint


def is_key(text: bytes) -> bool:
    """Whether this is the whole of a key file."""
    return _KEY_FILE.fullmatch(text) is not None


def load_or_create_key(path: str | os.PathLike[str]) -> bytes:
    """The 32-byte key in the file at `path`; a new one, mode 0600 and synced to disk, if nothing is
    there.

    Processes that start together end up with one key. Raises PrivacyRefused if the file can be read
    by group or others or does not hold a key, and DependencyUnavailable if the directory is missing
    or the file cannot be read or made.
    """
    where = Path(path)
    try:
        with suppress(FileNotFoundError):
            return load_key(where)
        if not where.parent.is_dir():  # as of a ledger in a new folder, whose key is beside it
            raise DependencyUnavailable(
                f"expected the folder {where.absolute().parent} for {where.name}: create it first"
            )
        _create(where)
        return load_key(where)
    except OSError as error:
        raise DependencyUnavailable(
            f"the key file {where} cannot be read or made: {error.strerror}"
        ) from error


def load_key(path: str | os.PathLike[str]) -> bytes:
    """The 32-byte key at `path`. OSError if it cannot be read, PrivacyRefused if others can, or if
    it holds no key."""
    with Path(path).open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        # More than a key file has, so that a longer file is seen to be none.
        text = file.read(4 * KEY_BYTES)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PrivacyRefused(
            f"expected a key file that only its owner can read, got mode {mode:04o}: chmod 600 {path}"
        )
    if not is_key(text):
        raise PrivacyRefused(
            f"expected {2 * KEY_BYTES} hex digits in the key file {path}, got something else: restore it"
        )
    return bytes.fromhex(text.decode("ascii"))


def _create(path: Path) -> None:
    with draft_of(path) as draft:
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - the descriptor carries O_EXCL and the mode
            file.write(os.urandom(KEY_BYTES).hex().encode("ascii") + b"\n")
            file.flush()
            os.fsync(descriptor)
        link_first(draft, path)


class OsEntropy:
    """Bits from the kernel's generator, all releases of a slot in one run."""

    def streams(self, release_ids: Sequence[str]) -> Iterator[tuple[slice, Bits]]:
        yield slice(0, len(release_ids)), os.urandom


Where = str | os.PathLike[str]

_ID = re.compile(r"[0-9a-f]+")


def gone(place: Where, ledger_id: str) -> PrivacyRefused:
    """The refusal where a ledger was and is not any more."""
    return PrivacyRefused(
        f"expected the ledger {ledger_id} at {place}, got none or another one. It was wiped or is not mounted: "
        "restore it. Another ledger gives every plate a new budget and draws released HATs again. To begin with "
        "another one all the same, remove the plates' key and the .ledger-id beside it, or set another ledger.key_file"
    )


def known_ledger(id_file: Where | None) -> str | None:
    """The id that this file keeps; None without a file. DependencyUnavailable if it cannot be read,
    PrivacyRefused if it holds something else, or nothing."""
    return None if id_file is None else _read(Path(id_file))[0]


def kept_mark(id_file: Where | None) -> Mark | None:
    """The mark of the ledger; None if nothing was published from it yet, or no file is kept. Raises
    as above."""
    return None if id_file is None else _read(Path(id_file))[1]


def adopt(
    ledger: Ledger,
    id_file: Where,
    place: object,
    named_elsewhere: str | None = None,
    *,
    only_look: bool = False,
) -> None:
    """Keep the id of a ledger whose file there is none yet; with `only_look` only say whether that
    may be done.

    PrivacyRefused if the ledger holds charges and is another than `named_elsewhere`: nothing tells
    how far it had come.
    """
    ledger_id = ledger.meta()["ledger_id"]
    progress = ledger.progress()
    holds = progress.admitted > 0 or progress.recorded > 0
    # Asked again: another process may have adopted and charged it since it was opened.
    if holds and ledger_id not in (named_elsewhere, known_ledger(id_file)):
        raise PrivacyRefused(
            f"the ledger at {place} holds charges, and {Path(id_file).absolute()} is gone: without its high-water mark "
            "an older copy of the ledger cannot be told from the newest one. Restore that file from the backup, or "
            "copy it from a machine that works on this ledger. If there is none, `udp-stream ledger accept-older` says "
            "what may be forgotten and how to accept it"
        )
    if not only_look:
        remember_ledger(id_file, ledger_id)


def remember_ledger(id_file: Where, ledger_id: str) -> None:
    """Keep the id on disk, if no file is there; DependencyUnavailable if that cannot be done. A
    kept mark stays."""
    path = Path(id_file)
    with _draft(path, ledger_id, None) as draft:
        link_first(draft, path)


def compare(ledger: Ledger, id_file: Where | None, place: object, mark: Mark | None = None) -> None:
    """Raise PrivacyRefused if the ledger is behind the mark that is kept, or behind
    `mark`.

    A given mark, of another machine, that the ledger is behind is kept: it counts what is to be
    accepted as forgotten.
    """
    if (kept := kept_mark(id_file)) is not None:
        require_not_behind(see(ledger, kept.release_id), kept, place)
    if mark is not None:
        try:
            require_not_behind(see(ledger, mark.release_id), mark, place)
        except PrivacyRefused:
            if id_file is not None and mark.ledger_id == known_ledger(id_file):
                with _locked(Path(id_file)):
                    _write(Path(id_file), mark.ledger_id, mark)
            raise


def raise_mark(ledger: Ledger, id_file: Where | None, place: object, release_id: str) -> Mark:
    """The ledger's mark with this record, kept from now on; PrivacyRefused if the ledger is behind
    the kept one."""
    if id_file is None:
        return see(ledger, release_id).mark(release_id)
    while True:
        kept = kept_mark(id_file)
        seen = see(ledger, release_id, "" if kept is None else kept.release_id)
        if kept is not None:
            require_not_behind(seen, kept, place)
        now = seen.mark(release_id)
        if kept is not None and kept.at_least(now):
            return kept
        with _locked(Path(id_file)):  # never while the ledger is asked: it may be away for long
            # Another process may have raised it meanwhile: then all is looked at again.
            if kept_mark(id_file) == kept:
                _write(Path(id_file), now.ledger_id, now)
                return now


def replace_mark(ledger: Ledger, id_file: Where) -> None:
    """Keep the ledger's mark as it is now, also if that is lower or the file is gone: what is
    missing was accepted as forgotten."""
    remember_ledger(id_file, ledger.meta()["ledger_id"])
    with _locked(Path(id_file)):
        now = see(ledger).mark()
        _write(Path(id_file), now.ledger_id, now)


def _read(path: Path) -> tuple[str | None, Mark | None]:
    try:
        text = path.read_text("latin-1")  # whatever is in it
    except FileNotFoundError:
        return None, None
    except OSError as error:
        why = error.strerror
        raise DependencyUnavailable(
            f"the file {path} with the ledger's id cannot be read: {why}"
        ) from error
    known, _, mark = text.partition("\n")
    if not known.strip():
        raise PrivacyRefused(f"expected the ledger's id in {path}, got an empty file: restore it")
    if _ID.fullmatch(known.strip()) is None:
        raise PrivacyRefused(f"expected the ledger's id in {path}, got something else: restore it")
    try:
        return known.strip(), msgspec.json.decode(mark, type=Mark) if mark.strip() else None
    except msgspec.DecodeError as error:
        raise PrivacyRefused(
            f"expected the ledger's high-water mark in the second line of {path}, got something else: restore it"
        ) from error


def _write(path: Path, ledger_id: str, mark: Mark | None) -> None:
    with _draft(path, ledger_id, mark) as draft:
        draft.replace(path)
        sync_directory(path.parent)


@contextmanager
def _draft(path: Path, ledger_id: str, mark: Mark | None) -> Iterator[Path]:
    line = "" if mark is None else f"{msgspec.json.encode(mark).decode()}\n"
    try:
        with draft_of(path) as draft:
            with draft.open("x", encoding="ascii") as file:
                file.write(f"{ledger_id}\n{line}")
                file.flush()
                os.fsync(file.fileno())
            yield draft
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A single process at a time; the lock is on the file as it is named now, since writing
    replaces it."""
    while True:
        try:
            file = path.open("rb+")
        except FileNotFoundError as error:
            raise PrivacyRefused(
                f"the file {path} with the ledger's id is gone: restore it"
            ) from error
        except OSError as error:
            raise _unwritable(path, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise _unwritable(path, error) from error
            if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                yield
                return


def _unwritable(path: Path, error: OSError) -> DependencyUnavailable:
    return DependencyUnavailable(
        f"the file {path} with the ledger's id cannot be written: {error.strerror}"
    )
