"""Keyed hashes of license plates, and the file that holds their key.

Outside the ledger and the raw topics a plate leaves no trace; in the ledger it is a keyed hash, so that a copy of the
ledger without the key says nothing about who drove. The key matters as much as the ledger: under another key every
plate looks new and gets its budget again, which is why a ledger is bound to the `fingerprint` of its key.

The key file is made complete under another name and linked into place. A second process finds the key of the first.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from udp_stream.adapters.files.atomic import draft_of, link_first
from udp_stream.errors import DependencyUnavailable, PrivacyRefused

KEY_BYTES = 32
HASH_BYTES = 16  # a collision among a million plates has odds of 1 in 10**27
CACHE_PLATES_MAX = 2**17  # some 25 MB; far more buses than any fleet has

_PLATE = b"udp-stream/plate"  # 16 bytes, the most that BLAKE2b takes
_FINGERPRINT = b"udp-stream/keyid"
_KEY_FILE = re.compile(rb"[0-9a-f]{64}\n?")


class PlateKeys:
    """Turns plates into the ledger's keys; the same plate under the same key gives the same bytes.

    >>> keys = PlateKeys(bytes(range(32)))
    >>> keys.key_of("GJ05BX1234").hex()
    '50890a4dd0621754dcf5a253ccd6524f'
    >>> keys.key_of("GJ05BX1234") == PlateKeys(bytes(32)).key_of("GJ05BX1234")
    False
    """

    def __init__(self, key: bytes) -> None:
        """Take a key of 32 bytes, as `load_or_create_key` gives; ValueError for any other length."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(key)}")
        self._keyed = blake2b(key=key, digest_size=HASH_BYTES, person=_PLATE)
        self._fingerprint = blake2b(key=key, digest_size=HASH_BYTES, person=_FINGERPRINT).hexdigest()
        self._cache: dict[str, bytes] = {}

    def key_of(self, plate: str) -> bytes:
        """The plate's 16 bytes in the ledger; plates that differ in anything, even case, are different plates."""
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
    """The 32-byte key in the file at `path`; a new one, mode 0600 and synced to disk, if nothing is there.

    Processes that start together end up with one key. Raises PrivacyRefused if the file can be read by group or others
    or does not hold a key, and DependencyUnavailable if the directory is missing or the file cannot be read or made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_or_create_key(f"{folder}/plate.key") == load_or_create_key(f"{folder}/plate.key")
    True
    """
    where = Path(path)
    try:
        with suppress(FileNotFoundError):
            return load_key(where)
        if not where.parent.is_dir():  # as of a ledger in a new folder, whose key is beside it
            raise DependencyUnavailable(
                f"expected the folder {where.absolute().parent} for {where.name}: create it first"
            )
        # Then read back: if another process was first, its key stands.
        _create(where)
        return load_key(where)
    except OSError as error:
        raise DependencyUnavailable(f"the key file {where} cannot be read or made: {error.strerror}") from error


def load_key(path: str | os.PathLike[str]) -> bytes:
    """The 32-byte key in the file at `path`; none is made.

    OSError if it cannot be read, PrivacyRefused if group or others can read it, or if it holds no key.

    >>> load_key("/no/such/file")
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'
    """
    with Path(path).open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        # More than a key file has, so that a longer file is seen to be none.
        text = file.read(4 * KEY_BYTES)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PrivacyRefused(f"expected a key file that only its owner can read, got mode {mode:04o}: chmod 600 {path}")
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
